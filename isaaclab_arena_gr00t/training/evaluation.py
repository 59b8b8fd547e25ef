"""Checkpoints in closed loop while training goes on: the runner's own evaluation, on the ranks that train."""

import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gr00t.model import Gr00tSmallProcessor
from gr00t.model.checkpoint import save_checkpoint
from gr00t.model.modeling import Gr00tSmall

from isaaclab_arena.config.loading import JobsFile, load_jobs_file
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.condition_sets import agreed_hash
from isaaclab_arena.evaluation.eval_runner import PROGRAM, EvalOptions
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.run import execute_among
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.results.freshness import TABLE as RESULTS_FILE
from isaaclab_arena.storage.layout import RUN_PLAN_FILE

_LOG = logging.getLogger("isaaclab_arena.gr00t")
_FOLDER = "evaluations"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What came of an evaluation, as one rank knows it.

    Attributes:
        exit_code: As the runner's command would return it.
        success_rates: Job to share of its episodes that succeeded, as far as there are any.
    """

    exit_code: int
    success_rates: dict[str, float]


class ClosedLoopEvaluation:
    """Evaluates checkpoints of a training run with the jobs of a file.

    Args:
        jobs_file: The file; policies of it that have the option ``model_path`` get the checkpoint.
        output_directory: Folder of the training run.
        ranks: All ranks of the training run.
        device: Where to simulate, None for the rank's own choice.

    Raises:
        ConfigError: If the file is wrong.
    """

    def __init__(self, jobs_file: Path, *, output_directory: Path, ranks: Ranks, device: str | None) -> None:
        self._jobs_file: JobsFile = load_jobs_file(jobs_file)
        self._output_directory = output_directory
        self._ranks = ranks
        self._device = device

    def check(self, model: Gr00tSmall, processor: Gr00tSmallProcessor) -> None:
        """Refuse jobs that could not be evaluated, before hours of training. Every rank calls it, and rank 0 looks.

        Raises:
            ConfigError: On rank 0, with every problem of the jobs, or if none of them takes the checkpoint.
            PeerStoppedError: On the other ranks, if rank 0 found something wrong.
        """
        if self._ranks.context.is_rank_zero:
            self._check(model, processor)
        self._ranks.share_from_rank_zero("verdict on the jobs", "can be evaluated")

    def _check(self, model: Gr00tSmall, processor: Gr00tSmallProcessor) -> None:
        with tempfile.TemporaryDirectory(prefix="untrained_model_") as folder:
            save_checkpoint(folder, model, processor)
            jobs = self._jobs(Path(folder))
        if not any("model_path" in job.policy_options for job in jobs):
            message = "no job's policy takes a checkpoint; use policy_type gr00t_closedloop"
            raise ConfigError(Problem(message, file=self._jobs_file.path, key="--eval_jobs_config"))

    def folder(self, num_steps: int) -> Path:
        """Return where the evaluation after so many steps lies."""
        return self._output_directory / _FOLDER / f"step-{num_steps}"

    def is_complete(self, num_steps: int) -> bool:
        """Whether that evaluation has been made."""
        results = self.folder(num_steps) / RESULTS_FILE
        return results.is_file() and bool(json.loads(results.read_text(encoding="utf-8"))["complete"])

    def run(self, checkpoint: Path, num_steps: int) -> Evaluated:
        """Evaluate a checkpoint that rank 0 has written, or go on where that was interrupted. Every rank calls it.

        Raises:
            ArenaError: See `isaaclab_arena.evaluation.run.execute`.
        """
        folder = self.folder(num_steps)
        ranks = self._ranks.within(f"evaluation after {num_steps} steps")
        # Nobody may look for the checkpoint before it is there.
        ranks.share_from_rank_zero("checkpoint", str(checkpoint))
        is_begun = (folder / RUN_PLAN_FILE).is_file()
        is_begun = ranks.share_from_rank_zero("begun", str(is_begun)) == str(True)
        options = EvalOptions(
            eval_jobs_config=self._jobs_file.path,
            output_dir=str(folder),
            resume=str(folder) if is_begun else None,
            device=self._device,
            no_dataset=True,
        )
        jobs = self._jobs(checkpoint)
        request = RunRequest(
            jobs=jobs,
            config_hash=agreed_hash(self._jobs_file.config_hash, [job.saved_conditions for job in jobs]),
            source_file=self._jobs_file.path,
            command_line=(PROGRAM, "--eval_jobs_config", self._jobs_file.path, "--no_dataset"),
            options=options,
        )
        _LOG.info("evaluating %s", checkpoint)
        exit_code = execute_among(ranks, request)
        return Evaluated(exit_code=exit_code, success_rates=self._success_rates(folder))

    def _jobs(self, checkpoint: Path) -> tuple[Job, ...]:
        return resolve_jobs(self._jobs_file.jobs, file=self._jobs_file.path, overrides={"model_path": str(checkpoint)})

    def _success_rates(self, folder: Path) -> dict[str, float]:
        if not self._ranks.context.is_rank_zero or not (folder / RESULTS_FILE).is_file():
            return {}
        rows = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))["jobs"]
        return {row["name"]: row["success_rate"] for row in rows if row["success_rate"] is not None}
