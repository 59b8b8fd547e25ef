"""Repairs one damaged run again and again, and has something go wrong at the first, second, third … file operation.

A program of its own: each repair that is disturbed is a forked child. Prints one line for each of them.
"""

import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import h5py

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.faults.file_operations import KILLED, Effect, Fault, FaultyFiles
from tests.storage.recovery.crashed_runs import JobOnDisk, planned, recover, state_of

JOBS = (planned(num_episodes=8), planned("walk", index=1, num_episodes=None, num_steps=50))
_FAILED, _UNHARMED = 3, 0


def write_damaged_run(output: Path) -> None:
    """Write a run that has everything that can be repaired."""
    job = JobOnDisk(output)
    job.finish(0, 1)
    job.finish(2, outcome=Outcome.ERROR, error="it fell")
    job.consolidate()
    with h5py.File(job.dataset, "r+") as file:
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] += 1
    (job.directory / "dataset_lift_rank1.hdf5").write_bytes(b"garbage")
    third = JobOnDisk(output, dataset="dataset_lift_rank2.hdf5")
    third.finish(7, outcome=Outcome.ERROR, error="it fell too")
    third.finish(3)
    third.consolidate()
    job.finish(4, 6)
    job.part(6).write_bytes(b"")
    job.write_part(job.line(5))
    job.write_part(job.line(1), config_hash="wrong")
    (job.part(0).parent / ".e000000.h5.host.7.tmp").touch()
    job.report().write_text("{")
    walk = JobOnDisk(output, "walk")
    walk.finish(0)
    walk.consolidate()
    walk.finish(1)
    walk.report(ReportedStatus.INTERRUPTED)


def outcome(output: Path) -> tuple[object, ...]:
    """Repair a run undisturbed and return what came of it."""
    first, again = (recover(output, *JOBS, retry_errors=True) for _ in range(2))
    assert again.notes == ()
    jobs = state_of(first)
    assert state_of(again) == jobs
    directories = [JobOnDisk(output, job.name) for job in JOBS]
    files = sorted(str(path) for path in output.rglob("*.tmp"))
    return (jobs, files, *((each.committed(), each.recorded(), each.set_aside()) for each in directories))


def main(directory: Path, stride: int, *effects: str) -> None:
    """Disturb repairs with every effect at every operation, or every n-th, until one meets no disturbance any more."""
    write_damaged_run(directory / "damaged")
    undisturbed = outcome(shutil.copytree(directory / "damaged", directory / "undisturbed"))
    for effect in map(Effect, effects):
        at, met = 1, True
        while met:
            output = shutil.copytree(directory / "damaged", directory / "out")
            pid = os.fork()
            if pid == 0:
                os._exit(_repair(output, Fault(effect=effect, at=at), directory / "met"))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            met = (directory / "met").exists()
            what = (directory / "met").read_text() if met else "nothing"
            assert code in (_UNHARMED, _FAILED, KILLED), f"{effect} at {at} ({what}): exit code {code}"
            assert outcome(output) == undisturbed, f"{effect} at {at} ({what})"
            sys.stdout.write(f"{effect} {at} {what} {code}\n")
            (directory / "met").unlink(missing_ok=True)
            shutil.rmtree(output)
            at += stride


def _repair(output: Path, fault: Fault, met: Path) -> int:
    """Repair with a fault in this forked child and return its exit code."""
    FaultyFiles(str(output), fault, lambda operation: _note(met, operation)).install()
    try:
        recover(output, *JOBS, retry_errors=True)
    except StorageError:
        return _FAILED
    except BaseException:  # noqa: BLE001  a child must not go on with its parent's work
        traceback.print_exc()
        return 1
    return _UNHARMED


def _note(path: Path, operation: str) -> None:
    path.write_text(operation)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
