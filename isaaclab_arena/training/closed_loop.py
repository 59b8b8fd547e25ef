"""Evaluations during training, by the evaluation runner on the ranks that train."""

import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobsFile
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.eval_runner import PROGRAM, EvalOptions
from isaaclab_arena.evaluation.job import OPEN_BACKEND, Job
from isaaclab_arena.evaluation.planning import Machinery, RunRequest, settle_backends
from isaaclab_arena.evaluation.process import generators_put_back, put_back
from isaaclab_arena.evaluation.run import RankHost, run
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.results.freshness import RESULTS_FILE
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.training.config import TrainingConfig

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluatedJob:
    """The results of one job of an evaluation."""

    episodes: int  # finished episodes with a verdict
    success_rate: float | None  # None if success is not measured
    mean_return: float | None  # mean sum of rewards, None without episodes
    mean_length: float | None  # mean number of control steps, None without episodes


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The results of an evaluation, as one rank knows them."""

    exit_code: int  # the exit code of the runner's command
    config_hash: str  # hash of the jobs, the same for each evaluation of a training run
    # The results by job, on rank 0; empty on the others, or if the run has no results.
    jobs: dict[str, EvaluatedJob]

    @property
    def success_rates(self) -> dict[str, float]:
        """Success rate of each job that measures it."""
        return {name: job.success_rate for name, job in self.jobs.items() if job.success_rate is not None}


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
        results = self.directory(num_steps) / RESULTS_FILE
        return results.is_file() and bool(json.loads(results.read_text(encoding="utf-8"))["complete"])

    def run(self, checkpoint: Path, num_steps: int) -> Evaluated:
        """Evaluate a checkpoint of rank 0, or resume an interrupted evaluation; ArenaError. Every rank calls it."""
        directory = self.directory(num_steps)
        self.num_runs += 1
        ranks = self.ranks.within(f"evaluation {self.num_runs} after {num_steps} steps")
        # No rank may look for the checkpoint before it exists.
        ranks.share_from_rank_zero("checkpoint", str(checkpoint))
        is_begun = (directory / RUN_PLAN_FILE).is_file()
        is_begun = ranks.share_from_rank_zero("begun", str(is_begun)) == str(True)
        options = EvalOptions(
            eval_jobs_config=self.jobs_file.path,
            output_dir=str(directory),
            resume=str(directory) if is_begun else None,
            # A training that resumed from an earlier checkpoint may have written this one again, with other numbers.
            rerun=tuple(job.name for job in self.jobs_file.jobs) if is_begun else (),
            device=self.device,
            **{"no_dataset": True, **self.options},
        )
        request = RunRequest.of(
            self._jobs(checkpoint),
            self.jobs_file.config_hash,
            source_file=self.jobs_file.path,
            command_line=(PROGRAM, "--eval_jobs_config", self.jobs_file.path, "--no_dataset"),
            options=options,
        )
        _LOG.info("evaluating %s", checkpoint)
        with generators_put_back(), put_back():
            torch.set_num_threads(self.torch_threads or torch.get_num_threads())
            exit_code = run(request, RankHost(ranks)).exit_code
        return replace(self.results(num_steps), exit_code=exit_code)

    def results(self, num_steps: int) -> Evaluated:
        """Return the results of a finished evaluation, on rank 0; see `Evaluated`."""
        path, results = self.directory(num_steps) / RESULTS_FILE, {}
        if self.ranks.context.is_rank_zero and path.is_file():
            names = [each.name for each in fields(EvaluatedJob)]
            for job in json.loads(path.read_text(encoding="utf-8"))["jobs"]:
                results[job["name"]] = EvaluatedJob(**{name: job[name] for name in names})
        return Evaluated(exit_code=0, config_hash=self.jobs_file.config_hash, jobs=results)

    def _jobs(self, checkpoint: Path) -> tuple[Job, ...]:
        return resolve_jobs(
            self.jobs_file.jobs,
            file=self.jobs_file.path,
            overrides={self.checkpoint_option: str(checkpoint)},
            policy_batch=self.options.get("policy_batch") if self.options.get("deterministic") else None,
            device=self.device,
        )


POLICY_TYPE = "rsl_rl"


def environment_job(config: TrainingConfig) -> Job:
    """Return the job of the training environment, checked like every job; ConfigError lists every problem."""
    variations = dict(config.variations)
    try:
        file = _jobs_file(
            config, num_envs=config.num_envs, env=config.env, policy_type="zero_action", variations=variations
        )
        (job,) = resolve_jobs(file.jobs)
    except ConfigError as error:
        # The user wrote a training configuration, so problems name its keys.
        problems = []
        for problem in error.problems:
            key = problem.key or ""
            for in_job, in_training in (("arena_env_args.environment", "environment"), ("arena_env_args", "env")):
                if key == in_job or key.startswith(f"{in_job}."):
                    key = in_training + key.removeprefix(in_job)
                    break
            problems.append(Problem(problem.message, key=key or None))
        raise ConfigError(problems) from error
    return job


def with_settled_backend(
    config: TrainingConfig,
    ranks: Ranks,
    *,
    num_threads: int,
    settle: Callable[[Sequence[Job], Machinery], Mapping[str, str]] = settle_backends,
) -> TrainingConfig:
    """Return the configuration with its backend; if open, rank 0 chooses it for all ranks. ConfigError."""
    job = environment_job(config)
    if job.asked_backend != OPEN_BACKEND or not ranks.context.is_distributed:
        return config
    devices = tuple(ranks.gather("device of training", str(ranks.context.device)))
    settled = {job.config.name: ""}
    with ranks.keep_waiting():
        if ranks.context.is_rank_zero:
            settled = settle([job], Machinery(devices=devices, num_threads=num_threads))
    backend = ranks.share_from_rank_zero("backend of training", settled[job.config.name])
    return replace(config, env={**config.env, "backend": backend})


def evaluation_jobs(config: TrainingConfig) -> JobsFile:
    """Return the job that evaluates checkpoints; it lacks only the checkpoint."""
    evaluation = config.evaluation
    return _jobs_file(
        config,
        num_envs=evaluation.num_envs,
        env={**config.env, **evaluation.env},
        policy_type=POLICY_TYPE,
        num_episodes=evaluation.num_episodes,
        seed=evaluation.seed,
    )


def _jobs_file(
    config: TrainingConfig, *, num_envs: int, env: Mapping[str, Any], policy_type: str, **keys: Any
) -> JobsFile:
    """Return the file of one job on the environment under training, with other `keys` on top."""
    environment = {"environment": config.environment, "num_envs": num_envs, **env}
    job = {"name": config.task, "arena_env_args": environment, "policy_type": policy_type, "num_episodes": 1, **keys}
    return read_jobs({"jobs": [job]}, source="training task")
