"""What a killed process leaves behind."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.options import ASSIGNMENTS, ROUND_ROBIN
from isaaclab_arena.observers import Outcome
from isaaclab_arena.results import merge_results
from isaaclab_arena.storage.atomic import remove_if_empty
from isaaclab_arena.storage.ledger import TRANSITIONS, write_run_plan
from tests.end_to_end.launching import ROOT, environment
from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import ForkServer
from tests.faults.world import World
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, plan, recover


def test_only_an_empty_directory_is_removed_and_another_rank_may_have_done_so(tmp_path):
    (tmp_path / "full" / "empty").mkdir(parents=True)
    for name in ("full", "full/empty", "full/empty"):
        remove_if_empty(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["full"]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot remove"):
        remove_if_empty(tmp_path / "file")


# Deleted or damaged recordings of errors: an error is an outcome, and no loss makes it run again.


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
def test_an_error_whose_recording_is_lost_stands_and_is_reported(tmp_path, job, damage, capsys):
    job.part(1).unlink()
    if damage is not None:
        job.part(1).write_bytes(damage)
    recovery = recover(tmp_path)
    assert (recovery.jobs[0].finished, recovery.left()) == ({0, 1, 2, 3}, ())
    assert any("recording is lost" in note for note in recovery.notes)
    assert job.committed()[1].outcome == "error"
    assert merge_results(tmp_path).jobs["retried"].tolist() == [0]
    assert main(["verify", str(tmp_path), "--sample", "0"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "demo_1" in line and "is lost" in line]


@pytest.mark.parametrize("retry_errors", [False, True])
def test_a_lost_recording_runs_again_where_errors_do_until_it_has(tmp_path, job, retry_errors):
    job.part(1).unlink()
    begun = recover(tmp_path, retry_errors=True)
    assert begun.jobs[0].finished == {0, 2, 3}
    begin_attempt(tmp_path, 2, begun, retry_errors=retry_errors)
    assert recover(tmp_path, attempt=3).jobs[0].finished == ({0, 2, 3} if retry_errors else {0, 1, 2, 3})
    job.finish(1, outcome=Outcome.ERROR, error="it fell again", attempt=2)
    assert recover(tmp_path, attempt=3).jobs[0].finished == {0, 1, 2, 3}


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
FAST = {"a job begins", "a job is consolidated"}
"""With episodes that are assigned before the start; `tests/faults/test_transitions.py` cuts those that are claimed."""


def cuts() -> Iterator[Any]:
    for name, assignment in ASSIGNMENTS.items():
        for event in BEFORE:
            is_fast = assignment is ROUND_ROBIN and event in FAST
            if assignment.claims or event not in ("a piece is claimed", "a piece is played"):
                marks = [] if is_fast else [pytest.mark.slow]
                yield pytest.param(name, event, marks=marks, id=f"{name}-{event}")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("fork_server") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def world(server, tmp_path_factory, request) -> World:
    directory = tmp_path_factory.mktemp(str(request.param))
    return World(directory, server, f"--assignment={request.param}", num_jobs=1, num_episodes=4)


def test_each_transition_is_cut():
    assert list(BEFORE) == [event for event, _, _ in TRANSITIONS]


@pytest.mark.parametrize(("world", "event"), list(cuts()), indirect=["world"], scope="module")
def test_the_next_start_ends_a_run_that_died_before(world, event):
    only, at = BEFORE[event]
    cut = world.begin(faults={0: Fault(effect=Effect.DIES, at=at, only=only)})
    assert cut.met[0], cut.output
    world.resume_to_the_end()


# A repair that is itself interrupted, at any of its file operations, is completed by the next one.


@pytest.mark.parametrize(
    ("effect", "stride"),
    [
        (Effect.DIES, 60),
        *(pytest.param(each, 1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]) for each in Effect),
    ],
)
def test_a_repair_that_is_disturbed_is_completed_by_the_next(tmp_path, effect, stride):
    command = [sys.executable, "-m", "tests.storage.recovery.interrupted_recovery", str(tmp_path), str(stride), effect]
    variables = environment({"OMP_NUM_THREADS": "1"})
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 2
    assert done.stdout.rstrip().endswith("nothing 0")
