"""The loop of every training run: step, save, evaluate on the ranks that train, report, and stop all ranks together."""

import csv
import json
import logging
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from isaaclab_arena.config.schema import JobsFile
from isaaclab_arena.distributed.ranks import Ranks, highest_of_ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import eval_runner, planning, process, validation
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.run import RankHost, run
from isaaclab_arena.storage import atomic, layout, ledger
from isaaclab_arena.training.config import PROGRESS

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluatedJob:
    """The results of one job of an evaluation."""

    episodes: int  # finished episodes with a verdict
    success_rate: float | None  # None if success is not measured
    mean_return: float | None  # mean sum of rewards, None without episodes
    mean_length: float | None  # mean number of control steps, None without episodes


@dataclass
class ClosedLoopEvaluation:
    """Evaluates checkpoints of a training run with the same jobs each time, on all its ranks."""

    jobs_file: JobsFile
    # Policies with this option get the checkpoint: ``checkpoint_path`` of ``rsl_rl``, ``model_path`` of
    # ``gr00t_closedloop``.
    checkpoint_option: str
    policy_type: str  # the name of such a policy, for messages
    output_directory: Path
    ranks: Ranks
    device: str | None
    # None for the number during training. The last digits of a network's output depend on the number of threads.
    torch_threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # further options of the runner
    num_runs: int = 0

    def check(self, save_checkpoint: Callable[[Path], Path]) -> None:
        """Refuse jobs that cannot be evaluated, before hours of training; ConfigError. Every rank calls it."""
        # Rank 0 checks with a checkpoint of the untrained policy.
        if self.ranks.context.is_rank_zero:
            with tempfile.TemporaryDirectory(prefix="untrained_policy_") as directory:
                jobs = self._jobs(save_checkpoint(Path(directory)))
            if not any(self.checkpoint_option in job.policy_options for job in jobs):
                message = f"no job's policy takes a checkpoint; use policy_type {self.policy_type}"
                raise ConfigError(message, file=self.jobs_file.path, key="--eval_jobs_config")
        # If rank 0 found a problem, the other ranks raise PeerStoppedError here.
        self.ranks.share_from_rank_zero("verdict on the jobs", "can be evaluated")

    def directory(self, num_steps: int) -> Path:
        """Return the directory of the evaluation after `num_steps` steps."""
        return self.output_directory / "evaluations" / f"step-{num_steps}"

    def is_complete(self, num_steps: int) -> bool:
        """True if that evaluation is complete."""
        results = self.directory(num_steps) / ledger.RESULTS_FILE
        return results.is_file() and bool(json.loads(results.read_text(encoding="utf-8"))["complete"])

    def run(self, checkpoint: Path, num_steps: int) -> int:
        """Evaluate rank 0's checkpoint, or go on with that; return the exit code. ArenaError. Every rank calls it."""
        directory = self.directory(num_steps)
        self.num_runs += 1
        ranks = self.ranks.within(f"evaluation {self.num_runs} after {num_steps} steps")
        # No rank may look for the checkpoint before it exists.
        ranks.share_from_rank_zero("checkpoint", str(checkpoint))
        is_begun = (directory / layout.RUN_PLAN_FILE).is_file()
        is_begun = ranks.share_from_rank_zero("begun", str(is_begun)) == str(True)
        options = eval_runner.EvalOptions(
            eval_jobs_config=self.jobs_file.path,
            output_dir=str(directory),
            resume=str(directory) if is_begun else None,
            # A training that resumed from an earlier checkpoint may have written this one again, with other numbers.
            rerun=tuple(job.name for job in self.jobs_file.jobs) if is_begun else (),
            device=self.device,
            **{"no_dataset": True, **self.options},
        )
        request = planning.RunRequest.of(
            self._jobs(checkpoint),
            self.jobs_file.config_hash,
            source_file=self.jobs_file.path,
            command_line=(eval_runner.PROGRAM, "--eval_jobs_config", self.jobs_file.path, "--no_dataset"),
            options=options,
        )
        _LOG.info("evaluating %s", checkpoint)
        with process.generators_put_back(), process.put_back():
            torch.set_num_threads(self.torch_threads or torch.get_num_threads())
            return run(request, RankHost(ranks)).exit_code

    def results(self, num_steps: int) -> dict[str, EvaluatedJob]:
        """Return the results of an evaluation by job, none if its run has none; for rank 0."""
        path = self.directory(num_steps) / ledger.RESULTS_FILE
        jobs = json.loads(path.read_text(encoding="utf-8"))["jobs"] if path.is_file() else ()
        names = [each.name for each in fields(EvaluatedJob)]
        return {job["name"]: EvaluatedJob(**{name: job[name] for name in names}) for job in jobs}

    def _jobs(self, checkpoint: Path) -> tuple[Job, ...]:
        return validation.resolve_jobs(
            self.jobs_file.jobs,
            file=self.jobs_file.path,
            overrides={self.checkpoint_option: str(checkpoint)},
            policy_batch=self.options.get("policy_batch") if self.options.get("deterministic") else None,
            device=self.device,
        )


_COLUMNS = ("step", "measure", "value")


class Progress:
    """Writes measures of a training run, on the rank that writes; the others' calls do nothing."""

    def __init__(self, output_directory: Path, *, is_writer: bool, after_step: int = 0, writer: Any = None) -> None:
        # ``writer`` has ``add_scalar``, as TensorBoard's and rsl_rl's; None for no other writer. An interrupted run may
        # have written measures of steps after ``after_step``; they are removed.
        self._path = output_directory / PROGRESS
        self.is_writer = is_writer
        self._writer = writer
        if is_writer and self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)[1:]
            # The last line may be incomplete, and others may be damaged.
            whole = [(line, line.partition(",")[0]) for line in lines if line.endswith("\n")]
            kept = [line for line, step in whole if step.isdecimal() and int(step) <= after_step]
            if len(kept) < len(lines) or not lines:
                atomic.write_text(self._path, "".join([",".join(_COLUMNS) + "\n", *kept]), overwrite=True)

    def write(self, num_steps: int, measures: Mapping[str, float], *, told: str | None = None) -> None:
        """Write the measures (name to value) after `num_steps` steps; `told` replaces their line in the log."""
        if not (self.is_writer and measures):
            return
        if told is None:
            told = f"step {num_steps}: " + ", ".join(f"{name} {value:.4g}" for name, value in measures.items())
        _LOG.info("%s", told)
        is_new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(_COLUMNS)
            writer.writerows([num_steps, name, f"{value:.8g}"] for name, value in measures.items())
        if self._writer is not None:
            for name, value in measures.items():
                self._writer.add_scalar(name, value, num_steps)

    def has(self, num_steps: int, measure: str) -> bool:
        """True if a measure whose name begins with `measure` has been written after `num_steps` steps."""
        if not self._path.is_file():
            return False
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return any(line.startswith(f"{num_steps},{measure}") for line in lines)

    def close(self) -> None:
        """Close the other writer."""
        # TensorBoard's has ``close``, those of rsl_rl have ``stop``, and some have both.
        for name in ("close", "stop"):
            if (end := getattr(self._writer, name, None)) is not None:
                end()


def tensorboard(directory: Path, *, after_step: int = 0) -> Any:
    """Return a writer of TensorBoard files, None if it is not installed; steps after `after_step` are hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional package, slow to load
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=after_step + 1)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps after which a training run saves, evaluates and ends."""

    max_steps: int  # the run ends after this number of steps
    # Steps between checkpoints. The last step and each evaluation have a checkpoint too.
    save_every: int
    evaluate_every: int | None  # steps between evaluations, None for the one after the last step only


class Training(Protocol):
    """One rank of one kind of training: its steps and its checkpoints."""

    evaluation_measure: str  # prefix of a measure that each evaluation writes to the progress file

    @property
    def num_steps(self) -> int:
        """Steps done, the same on all ranks."""
        ...

    def step(self, progress: Progress) -> None:
        """Make one step, and write its measures; every rank calls it."""

    def save(self) -> None:
        """Write the checkpoint of this step; every rank calls it."""

    def checkpoint(self, num_steps: int) -> Path:
        """Return the path of the checkpoint after `num_steps` steps."""
        ...

    def note_evaluation(
        self, evaluation: ClosedLoopEvaluation, progress: Progress, *, exit_code: int, evaluation_s: float
    ) -> None:
        """Write the newest checkpoint's evaluation, of `evaluation_s` [s] (0: before an interruption)."""


def run_loop(
    training: Training,
    schedule: Schedule,
    *,
    evaluation: ClosedLoopEvaluation | None,
    progress: Progress,
    interruption: process.Interruption,
    stop_file: Path | None = None,
) -> int:
    """Train to the end on one rank; return 0, or 128 plus the number of the signal that stopped the run."""
    # All ranks make the same decisions after each step. A signal to any rank stops all of them after the same step,
    # with a checkpoint to resume from. So does ``stop_file``, which must be None on all ranks or on none. Without
    # evaluations ``evaluation`` is None.
    num_steps, every = training.num_steps, schedule.evaluate_every
    is_evaluated = num_steps == schedule.max_steps or (every is not None and num_steps % every == 0)
    if evaluation is not None and num_steps > 0 and is_evaluated:
        # The run resumes from an evaluated checkpoint: complete the part that an interruption left out.
        # All ranks look before any rank evaluates, because the evaluation writes the file that they look at.
        if not highest_of_ranks(int(evaluation.is_complete(num_steps))):
            code = _evaluate(training, evaluation, progress)
            if code != 0:
                return _stopped(training, progress, code)
        elif progress.is_writer and not progress.has(num_steps, training.evaluation_measure):
            # The run was stopped between the end of the evaluation and the writing of its measures.
            training.note_evaluation(evaluation, progress, exit_code=0, evaluation_s=0.0)

    is_last = num_steps >= schedule.max_steps
    while not is_last:
        training.step(progress)
        num_steps = training.num_steps
        is_last = num_steps == schedule.max_steps
        if not is_last and stop_file is not None and highest_of_ranks(int(stop_file.exists())):
            is_last = True
            if progress.is_writer:
                _LOG.info("ending after %d steps, because %s is there", num_steps, stop_file)
        is_evaluated = evaluation is not None and (is_last or (every is not None and num_steps % every == 0))
        if is_evaluated or is_last or num_steps % schedule.save_every == 0:
            training.save()
        code = _evaluate(training, evaluation, progress) if evaluation is not None and is_evaluated else 0
        # All ranks exchange codes here, so that all stop after the same step.
        code = highest_of_ranks(code or interruption.exit_code)
        if code != 0 and (is_evaluated or not is_last):
            if not is_evaluated:
                training.save()
            # A launcher ends the other ranks as soon as one has left, so none leaves before all have saved.
            return _stopped(training, progress, highest_of_ranks(code))
    return 0


def _stopped(training: Training, progress: Progress, code: int) -> int:
    """Log the last checkpoint and the command that continues from it; return `code`."""
    if progress.is_writer:
        last = training.checkpoint(training.num_steps)
        command = f"isaaclab-arena resume {shlex.quote(str(last.parent))}"
        _LOG.info("stopped; the last checkpoint is %s; continue with: %s", last, command)
    return code


def _evaluate(training: Training, evaluation: ClosedLoopEvaluation, progress: Progress) -> int:
    """Evaluate the newest checkpoint; return 0, or the exit code of an interruption, the same on all ranks."""
    began = time.perf_counter()
    exit_code = evaluation.run(training.checkpoint(training.num_steps), training.num_steps)
    # Codes from 128 on are of signals.
    interrupted = highest_of_ranks(exit_code if exit_code >= 128 else 0)
    if interrupted == 0 and progress.is_writer:
        evaluation_s = time.perf_counter() - began
        training.note_evaluation(evaluation, progress, exit_code=exit_code, evaluation_s=evaluation_s)
    return interrupted
