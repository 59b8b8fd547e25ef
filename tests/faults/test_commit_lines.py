"""Commit files that a crash or a person has damaged."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.launching import jobs_table, same_tables
from tests.faults.file_operations import Effect, Fault
from tests.faults.invariants import check_whole
from tests.faults.world import World

FILE = "a/episode_results_rank0.jsonl"


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("world"), server, num_jobs=2, num_episodes=3)


@pytest.fixture
def lines(world) -> Path:
    """The commit file of a run that is complete."""
    assert world.begin().exit_code == 0
    return world.output / FILE


def problems(world: World) -> list[str]:
    return json.loads((world.output / "results.json").read_text())["problems"]


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_an_episode_whose_line_was_torn_is_taken_in_again_from_its_recording(world, kept):
    """It has finished, and its recording holds the line, so it need not run again."""
    world.begin(faults={0: Fault(effect=Effect.DIES, at=3, only="replace a/episodes/")})
    path = world.output / FILE
    *whole, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole, last[:kept]]))
    episode = ("a", json.loads(last)["episode_index"])
    world.resume_to_the_end()
    assert episode not in world.started


def test_a_line_that_is_no_episode_is_taken_out_and_changes_nothing(world, lines):
    before = lines.read_bytes()
    with lines.open("ab") as file:
        file.write(b"\x00\xff garbage\n{}\n[1, 2]\n")
    ended = world.resume()
    assert ended.exit_code == 0
    assert not world.started
    assert same_tables(world.output, world.undisturbed)
    assert problems(world) == []
    assert lines.read_bytes() == before
    assert (lines.parent / "set_aside" / lines.name).read_bytes().startswith(before)


def test_an_episode_that_was_committed_twice_alike_counts_once(world, lines):
    lines.write_bytes(lines.read_bytes() + lines.read_bytes().splitlines(keepends=True)[0])
    assert world.resume().exit_code == 0
    assert not world.started
    check_whole(world.output, world.undisturbed)
    assert problems(world) == []


def test_of_two_different_lines_of_an_episode_the_first_counts_and_the_table_says_so(world, lines):
    first = json.loads(lines.read_text().splitlines()[0])
    index = first["episode_index"]
    second = {**first, "outcome": "failure", "success": False, "episode_length": 99}
    with lines.open("a") as file:
        file.write(json.dumps(second) + "\n")
    assert world.run("--resume", world.output).exit_code == 0
    assert not world.started
    table = jobs_table(world.output).set_index("name")
    before = jobs_table(world.undisturbed).set_index("name")
    assert table.loc["a", "reproducible"] == "plan"
    assert table.loc["a", "mean_length"] == before.loc["a", "mean_length"]
    assert table.loc["b"].equals(before.loc["b"])
    expected = f"job 'a': episode {index} was committed more than once, with different results; the first counts"
    assert problems(world) == [expected]
