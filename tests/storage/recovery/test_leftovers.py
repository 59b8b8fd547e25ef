"""What a killed process leaves behind."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.observers import Outcome
from isaaclab_arena.results import merge_results
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import verify_episodes
from isaaclab_arena.storage.ledger import TRANSITIONS, write_run_plan
from isaaclab_arena.storage.recovery import remove_if_empty
from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import ForkServer
from tests.faults.world import World
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, plan, recover

# A process that writes episodes is killed at any moment: what it committed is there, whole.


WRITER = """
import itertools, pathlib, sys
import numpy as np
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.episode_file import RecordedEpisode

directory, first = pathlib.Path(sys.argv[1]), int(sys.argv[2])
writer = CommitWriter(directory, 0)
for index in itertools.count(first):
    arrays = {"actions": np.full((200, 50), index, np.float32), "camera_obs/a": np.full((50, 64, 64, 3), 7, np.uint8)}
    name = episode_file_name(index)
    crc = write_episode(
        directory / name, RecordedEpisode(episode_index=index, arrays=arrays, attributes={}, env_args={})
    )
    record = EpisodeRecord(
        episode=Episode(job="lift", episode_index=index, seed=0), env_id=0, outcome=Outcome.SUCCESS, success=True,
        length=200, episode_return=0.0, termination="terminated", conditions={}, language_instruction="",
    )
    context = {"rank": 0, "episode_in_env": 0, "timestamp": "", "episode_file": name, "checksum": crc}
    writer.write(commit_line(record, wall_s=0.0, **context))
"""


def test_no_committed_episode_is_lost_when_the_writer_is_killed(tmp_path):
    generator = random.Random(0)
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(life * 100_000)])
        commits = tmp_path / ("episode_results_rank0" + (f"_life{life}" if life else "") + ".jsonl")
        deadline = time.monotonic() + 60
        while not (commits.exists() and commits.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.2))
        process.kill()
        process.wait()
    log = read_commits(tmp_path, "lift")
    assert len({line.episode_index // 100_000 for line in log.lines}) == 4
    assert log.problems == ()
    for line in log.lines:
        verify_episodes(tmp_path / str(line.episode_file), [line.episode_index])
    done = consolidate(sorted(tmp_path.glob("e*.h5")), tmp_path / "dataset_lift.hdf5")
    assert set(done.episode_indices) >= {line.episode_index for line in log.lines}
    assert done.damaged == ()


def test_an_empty_directory_is_removed_and_another_is_not(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "episode").touch()
    remove_if_empty(empty)
    remove_if_empty(full)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_directory_that_another_rank_removes_at_the_same_moment_is_no_failure(tmp_path, monkeypatch):
    directory = tmp_path / "episodes"
    directory.mkdir()
    rmdir = Path.rmdir

    def beaten_to_it(path: Path) -> None:
        rmdir(path)
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", beaten_to_it)
    remove_if_empty(directory)
    assert not directory.exists()


def test_what_is_no_directory_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot remove"):
        remove_if_empty(tmp_path / "file")


# Recordings of errors that somebody deleted or damaged: an error is an outcome, and no loss makes it run again.


@pytest.fixture
def job(tmp_path) -> JobOnDisk:
    """Return a job that is complete, of whose four episodes the second ended in an error."""
    write_run_plan(tmp_path, plan())
    job = JobOnDisk(tmp_path)
    job.finish(0, 2, 3)
    job.finish(1, outcome=Outcome.ERROR, error="it fell")
    job.report(num_episodes=4)
    return job


@pytest.mark.parametrize("damage", [None, b"", b"no HDF5"], ids=["deleted", "empty", "garbage"])
def test_an_error_whose_recording_is_lost_stands_and_is_reported(tmp_path, job, damage):
    job.part(1).unlink()
    if damage is not None:
        job.part(1).write_bytes(damage)
    recovery = recover(tmp_path)
    assert recovery.jobs[0].finished == ((0, 4),)
    assert not recovery.left()
    assert any("demo_1 ended in an error, and the recording is lost" in note for note in recovery.notes)
    assert job.committed()[1].outcome == "error"
    assert merge_results(tmp_path).jobs["retried"].tolist() == [0]


def test_verify_names_the_lost_recording_before_and_after_a_resume(tmp_path, job, capsys):
    job.part(1).unlink()
    for _ in range(2):
        assert main(["verify", str(tmp_path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        told = [line for line in lines if "recording of an error is lost" in line]
        assert len(told) == 1
        assert "demo_1" in told[0]
        recover(tmp_path)


def test_a_lost_recording_runs_again_where_errors_do(tmp_path, job):
    job.part(1).unlink()
    assert recover(tmp_path, retry_errors=True).jobs[0].finished == ((0, 1), (2, 4))


def test_a_retry_that_had_begun_is_still_due_and_one_that_came_out_is_not(tmp_path, job):
    begun = recover(tmp_path, retry_errors=True)
    begin_attempt(tmp_path, 2, begun, retry_errors=True)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 1), (2, 4))
    job.finish(1, outcome=Outcome.ERROR, error="it fell again", attempt=2)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 4),)


def test_an_attempt_without_that_option_begins_no_retry(tmp_path, job):
    begun = recover(tmp_path, retry_errors=True)
    begin_attempt(tmp_path, 2, begun, retry_errors=False)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ((0, 4),)


def test_a_line_that_was_made_an_error_by_hand_is_withdrawn(tmp_path):
    job = JobOnDisk(tmp_path)
    job.write_part(job.line(1))
    job.commit(job.line(1, outcome=Outcome.ERROR, success=None, error="never happened"))
    assert recover(tmp_path).jobs[0].finished == ()
    assert job.committed() == {}


# A process dies before each transition of a run's ledger, for each assignment of episodes to ranks.


BEFORE = {
    "the run is planned": ("replace .run.json", 1),
    "an attempt begins": ("replace attempts/.attempt_1.json", 1),
    "a piece is claimed": ("open claims/attempt_1/j000000_p00001", 1),
    "a job begins": ("replace a/.job_begun_rank", 1),
    "an episode is recorded": ("replace a/episodes/.e000001.h5", 1),
    "an episode is committed": ("write a/episode_results_rank", 1),
    "a piece is played": ("open claims/attempt_1/j000000_p00001.done", 1),
    "a job is consolidated": ("replace a/.dataset_a", 1),
    "a job is reported": ("replace a/.job_report_rank", 1),
    "the run is merged": ("replace .results.csv", 1),
}
"""The operation before which the process dies, and its number among those of its kind."""
ONLY_CLAIMED = {"a piece is claimed", "a piece is played"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("fork_server") / "log") as server:
        yield server


@pytest.fixture(scope="module", params=list(Assignment))
def world(server, tmp_path_factory, request) -> World:
    directory = tmp_path_factory.mktemp(str(request.param))
    return World(directory, server, f"--assignment={request.param}", num_jobs=1, num_episodes=4)


def test_each_transition_is_cut():
    assert list(BEFORE) == [each.event for each in TRANSITIONS]


@pytest.mark.parametrize("event", BEFORE)
def test_the_next_start_ends_a_run_that_died_before(world, request, event):
    if event in ONLY_CLAIMED and request.node.callspec.params["world"] is not Assignment.DYNAMIC:
        pytest.skip("episodes are assigned before the start")
    only, at = BEFORE[event]
    cut = world.begin(faults={0: Fault(effect=Effect.DIES, at=at, only=only)})
    assert cut.met[0], cut.output
    world.resume_to_the_end()
