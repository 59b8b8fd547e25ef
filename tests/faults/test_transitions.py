"""A process dies between two files of each step of a run, and the next start ends the run, or the ranks that are left.

Job ``a`` is decided after a few of its episodes, ``b`` plays them all.
"""

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.results import merge_results
from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import Ended
from tests.faults.invariants import check_whole, committed
from tests.faults.world import World

BETWEEN = {
    "the plan and its copy": ("replace attempts/.plan.json", 1),
    "the plan and the first attempt": ("replace attempts/.attempt_1.json", 1),
    "a claim and its owner's name": ("write claims/attempt_1/j000001", 1),
    "a claim and the first word on its job": ("replace b/.job_begun_rank0", 1),
    "the first word on a job and its first episode": ("write b/episodes/", 1),
    "a recording and its line": ("write b/episode_results_rank0.jsonl", 3),
    "the last line of a piece and its end": ("open claims/attempt_1/j000001_p00002.done", 1),
    "a recording and the line that decides": ("write a/episode_results_rank0.jsonl", 2),
    "the line that decides and the end of its piece": ("open claims/attempt_1/j000000_p00001.done", 1),
    "a decision and the dataset of its job": ("replace a/.dataset_a", 1),
    "a decision and the report of its job": ("replace a/.job_report", 1),
    "the last line of a job and its dataset": ("replace b/.dataset_b", 1),
    "a dataset and the first recording that it replaces": ("unlink b/episodes/", 1),
    "a dataset and the last recording that it replaces": ("unlink b/episodes/", 6),
    "a dataset and the report": ("replace b/.job_report", 1),
    "the report and the first word on its job": ("unlink b/job_begun", 1),
    "the last report and the tables": ("replace .results.csv", 1),
    "two tables": ("replace .episodes.csv", 1),
    "the tables and the one that is written last": ("replace .results.json", 1),
    "the tables and the page": ("replace .report.html", 1),
}
"""Before which operation of its kind the process dies."""

FAST = ("a recording and its line", "a decision and the report of its job", "a dataset and the report", "two tables")
"""One place for each kind of file; the others wait for the nightly tests."""


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    bars = [{"job": "a", "at_least": 0.1, "stop": {"alpha": 0.05}}]
    jobs = {"num_jobs": 2, "num_episodes": 6, "success_rate": 1.0, "top_level": {"bars": bars}}
    return World(tmp_path_factory.mktemp("world"), server, "--assignment=dynamic", **jobs)


def cut(world: World, place: tuple[str, int], *options: str, rank: int = 0, **how: object) -> Ended:
    """Run until the process dies before an operation."""
    only, at = place
    return world.run(
        "--output_dir", world.output, *options, faults={rank: Fault(effect=Effect.DIES, at=at, only=only)}, **how
    )


def check_next_start_ends(world: World) -> str:
    """Go on with the run, which plays nothing twice, and return what it says."""
    before = committed(world.output)
    ended = world.run("--output_dir", world.output, "--resume")
    assert ended.exit_code == 0, ended.output
    assert not before.keys() & world.started.keys()
    return ended.output


def check_ended(world: World, output: str) -> None:
    """The run is whole, and says what an undisturbed one says. How many episodes follow a decision is chance."""
    merged = merge_results(world.output)
    assert merged.complete, output
    assert main(["verify", str(world.output), "--sample", "0"]) == 0
    for name in ("results.csv", "results.parquet"):
        assert (world.output / name).read_bytes() == (world.undisturbed / name).read_bytes(), name
    assert not [*world.output.rglob("*.h5"), *world.output.rglob("set_aside")]
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[] if where in FAST else [pytest.mark.slow]) for where in BETWEEN]
)
def test_the_next_start_ends_a_run_that_was_cut_between(world, where):
    world.bring_back("nothing")
    ended = cut(world, BETWEEN[where])
    assert ended.met[0], ended.output
    check_ended(world, check_next_start_ends(world))


EXTENDING = {
    "a longer plan's copy and the plan": ("replace .run.json", 1),
    "a longer plan and the attempt that has more to do": ("replace attempts/.attempt_2.json", 1),
    "that attempt and its first episode": ("write a/episodes/", 1),
}


@pytest.fixture(scope="module")
def longer(server, tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("longer"), server, "--assignment=dynamic", num_jobs=1, num_episodes=6)


@pytest.mark.parametrize("where", EXTENDING)
def test_the_next_start_ends_an_extension_that_was_cut_between(longer, server, tmp_path, where):
    shorter = World(tmp_path, server, "--assignment=dynamic", output=longer.output, num_jobs=1, num_episodes=3)
    longer.bring_back("nothing")
    assert shorter.run("--output_dir", shorter.output).exit_code == 0
    ended = cut(longer, EXTENDING[where], "--resume")
    assert ended.met[0], ended.output
    check_next_start_ends(longer)
    check_whole(longer.output, longer.undisturbed)


@pytest.mark.parametrize("where", ["a decision and the report of its job", "a dataset and the report"])
def test_a_decided_run_without_any_word_of_the_rank_that_died_is_ended_by_the_next_start(world, where):
    """As earlier versions left it, whose ranks said nothing before their report."""
    world.bring_back("nothing")
    cut(world, BETWEEN[where])
    for path in world.output.glob("*/job_begun_*"):
        path.unlink()
    check_ended(world, check_next_start_ends(world))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("where", ["write b/episode_results_rank", "replace b/.job_report_rank"])
def test_ranks_that_are_left_end_a_run_of_which_one_has_died(world, where, rank):
    """Which rank plays which episodes is left to chance; the one that is to die may have none of job ``b``."""
    world.bring_back("nothing")
    ended = cut(world, (where, 1), rank=rank, ranks=2, survive=True)
    assert ended.exit_codes[1 - rank] == 0, ended.output
    check_ended(world, ended.output)
