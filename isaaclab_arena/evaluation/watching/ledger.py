"""Remember in files which checkpoints of a watch are evaluated, so that watchers can share them and go on.

Below the directory of the watch, ``watch/step_<n>/`` has the record of a checkpoint and a lock, and ``step_<n>/`` has
its run. Whoever holds the lock evaluates; the system gives it back when its holder has died.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.run.run_lock import RunLock

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a watch knows of a checkpoint whose evaluation was begun.

    Attributes:
        step: Its step.
        path: The checkpoint, as it was found.
        fingerprint: Its files when they were found complete; see `Look`.
        content: Hash of what was evaluated, with what it takes to load it; None as long as that is not done, or where
            it was gone by then.
        is_done: Whether every job has all its episodes.
        tries: How often it was evaluated without becoming done.
        reason: Why the last try failed; None where none did.
        schema_version: Version of the format.
    """

    step: int
    path: str
    fingerprint: str
    content: str | None = None
    is_done: bool = False
    tries: int = 0
    reason: str | None = None
    schema_version: int = SCHEMA_VERSION


def step_name(step: int) -> str:
    """Return the name of the directory of a checkpoint's run, and of its lock."""
    return f"step_{step}"


def runner_directory(run_directory: Path) -> Path:
    """Return the directory whose lock the program that evaluates a checkpoint holds from its first moment on."""
    return run_directory.parent / "watch" / run_directory.name / "runner"


class Ledger:
    """The records of one watch.

    Args:
        directory: Directory of the watch.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run_directory(self, step: int) -> Path:
        """Return the directory of a checkpoint's run."""
        return self.directory / step_name(step)

    def read(self, step: int) -> Evaluated | None:
        """Return what is known of a checkpoint, None where its evaluation was never begun.

        Raises:
            ConfigError: If the record is damaged or of a newer version.
        """
        path = self._record(step)
        return read_versioned(path, Evaluated, SCHEMA_VERSION) if path.is_file() else None

    def all(self) -> list[Evaluated]:
        """Return everything that is known, in the order of the steps; checkpoints may be gone meanwhile."""
        names = (path.parent.name for path in self.directory.glob("watch/step_*/evaluated.json"))
        records = (self.read(int(name.removeprefix("step_"))) for name in names)
        return sorted((record for record in records if record is not None), key=lambda record: record.step)

    def write(self, evaluated: Evaluated) -> None:
        """Write what is known of a checkpoint; its lock must be held."""
        write_text(self._record(evaluated.step), json_text(evaluated), overwrite=True)

    def forget_run(self, step: int) -> None:
        """Remove the run of a checkpoint that has changed since; its lock must be held."""
        with storage_errors("remove", self.run_directory(step)):
            shutil.rmtree(self.run_directory(step), ignore_errors=True)

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Hold a lock in a ``with`` block; yields whether nobody else holds it.

        Args:
            name: What it is for. If it is the name of a run's directory, the lock is not to be had either as long as
                that run goes on, though the watcher that started it may be dead.
        """
        directory = self.directory / "watch" / name
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
        with RunLock(directory) as lock:
            yield _is_free(lock) and not self._is_at_work(self.directory / name)

    def _is_at_work(self, run_directory: Path) -> bool:
        # A program that has just been started has no directory yet, and holds only what its watcher gave it.
        return any(not _is_unlocked(each) for each in (run_directory, runner_directory(run_directory)))

    def _record(self, step: int) -> Path:
        return self.directory / "watch" / step_name(step) / "evaluated.json"


def _is_unlocked(directory: Path) -> bool:
    if not directory.is_dir():
        return True
    with RunLock(directory) as lock:
        return _is_free(lock)


def _is_free(lock: RunLock) -> bool:
    """Take a lock, and return whether nobody else had it."""
    try:
        lock.hold_alone()
    except ConfigError:
        return False
    return True
