"""Evaluate one checkpoint by the runner of job files, in a process of its own."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.job_document import jobs_of_checkpoint
from isaaclab_arena.evaluation.watching.ledger import runner_directory
from isaaclab_arena.evaluation.watching.other_episodes import take_unused_conditions, with_shifted_seed
from isaaclab_arena.evaluation.watching.watcher import Outcome, Verdict
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.run.run_lock import RunLock

_RUNNER = "isaaclab_arena.evaluation.eval_runner"
_INTERRUPTED = (-2, -15, 130, 143)
_REFUSED = 2


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Runs the jobs of a watch for one checkpoint.

    Attributes:
        document: The job file of the watch.
        training: Directory of the training.
        pattern: Glob of the checkpoints below it, None for the usual names.
        options: Options of the runner, such as ``--device`` and its value.
        nice: How much less of the processor the evaluation gets than the training, 0 to 19.
        seed_offset: What is added to every seed; then saved conditions are others too, where there are enough.
        directory: What relative paths of saved conditions in the job file start from.
    """

    document: Mapping[str, Any]
    training: Path
    pattern: str | None = None
    options: Sequence[str] = ()
    nice: int = 0
    seed_offset: int = 0
    directory: Path = Path()

    def __call__(self, checkpoint: Checkpoint, directory: Path) -> Outcome:
        """Evaluate a checkpoint in a directory, or go on with what was begun there.

        Raises:
            ConfigError: If the job file cannot be that of a checkpoint, or saved conditions cannot be read.
            StorageError: If the job file of the checkpoint, or conditions, cannot be written.
        """
        jobs = jobs_of_checkpoint(
            self.document,
            checkpoint,
            training=self.training,
            pattern=self.pattern,
            seed_offset=self.seed_offset,
            directory=self.directory,
        )
        job_file = directory.parent / "watch" / directory.name / "jobs.json"
        job_file.parent.mkdir(parents=True, exist_ok=True)
        if self.seed_offset:
            take_unused_conditions(jobs, job_file.parent)
        write_text(job_file, json_text(jobs), overwrite=True)
        exit_code = self._exit_code(self._command(job_file, directory), runner_directory(directory))
        if exit_code in _INTERRUPTED:
            return Outcome(verdict=Verdict.INTERRUPTED)
        if exit_code == 0:
            return Outcome(verdict=Verdict.DONE)
        if exit_code == _REFUSED:
            return Outcome(verdict=Verdict.REFUSED, reason="it was refused; the message stands above")
        unfinished = "not every job has all its episodes; its table says why"
        reason = unfinished if exit_code == 1 else f"its process ended with {exit_code}"
        return Outcome(verdict=Verdict.FAILED, reason=reason)

    def _exit_code(self, command: Sequence[str], lock_directory: Path) -> int:
        """Run the runner; it keeps others away from its checkpoint even if this process is killed."""
        lock_directory.mkdir(parents=True, exist_ok=True)
        with RunLock(lock_directory) as lock:
            lock.hold_alone()
            return subprocess.run(command, check=False, pass_fds=(lock.descriptor,)).returncode  # noqa: S603 - our own program

    def runner(self) -> list[str]:
        """Return the program that runs job files, as the beginning of a command line."""
        return [sys.executable, "-m", _RUNNER]

    def _command(self, job_file: Path, directory: Path) -> list[str]:
        begun = (directory / RUN_PLAN_FILE).is_file()
        place = ["--resume", str(directory), "--retry_errors"] if begun else ["--output_dir", str(directory)]
        nice = ["nice", "-n", str(self.nice)] if self.nice else []
        return [
            *nice,
            *self.runner(),
            "--eval_jobs_config",
            str(job_file),
            *place,
            *with_shifted_seed(self.options, self.seed_offset),
        ]
