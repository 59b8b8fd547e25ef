"""Describes the task under training as a job of the evaluation runner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobsFile
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.job import OPEN_BACKEND, Job
from isaaclab_arena.evaluation.settled import Machinery, settle_backends
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation
from isaaclab_arena.training.settings.config import TrainingConfig

POLICY_TYPE = "rsl_rl"


def environment_job(config: TrainingConfig) -> Job:
    """Return the job whose environment is the one to train in, checked as every job is.

    Raises:
        ConfigError: With every problem of the environment's options and variations.
    """
    block = _block(config, num_envs=config.num_envs, policy_type="zero_action")
    block["variations"] = dict(config.variations)
    try:
        (job,) = resolve_jobs(_read(block).jobs)
    except ConfigError as error:
        raise ConfigError([_in_words_of_training(problem) for problem in error.problems]) from error
    return job


def with_settled_backend(
    config: TrainingConfig,
    ranks: Ranks,
    *,
    num_threads: int,
    settle: Callable[[Sequence[Job], Machinery], Mapping[str, str]] = settle_backends,
) -> TrainingConfig:
    """Return the configuration with its backend; where that was left open, rank 0 chooses it for all ranks.

    Args:
        config: What is asked for.
        ranks: All ranks of the run; each calls this.
        num_threads: Threads that the physics may use.
        settle: Chooses a backend for each job on rank 0.

    Raises:
        ConfigError: With every problem of the environment's options and variations.
        DistributedError: If a rank does not answer.
    """
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
    """Return the job that checkpoints are evaluated with; it lacks only the checkpoint."""
    evaluation = config.evaluation
    block = _block(config, num_envs=evaluation.num_envs, policy_type=POLICY_TYPE)
    block["arena_env_args"] |= evaluation.env
    return _read(block | {"num_episodes": evaluation.num_episodes, "seed": evaluation.seed})


def task_evaluation(
    config: TrainingConfig, *, output_directory: Path, ranks: Ranks, device: str | None
) -> ClosedLoopEvaluation:
    """Return what evaluates checkpoints on a fixed list of episodes of the task, without variations.

    Ranks share the episodes, and the policy is always asked on the same number of env slots, so the result is the
    same for any number of ranks.
    """
    evaluation = config.evaluation
    films = evaluation.video_episodes > 0
    return ClosedLoopEvaluation(
        evaluation_jobs(config),
        checkpoint_option="checkpoint_path",
        policy_type=POLICY_TYPE,
        output_directory=output_directory,
        ranks=ranks,
        device=device,
        torch_threads=1,
        options={
            "split_jobs": True,
            "deterministic": True,
            "policy_batch": evaluation.num_envs,
            "record_viewport_video": films,
            "video_episodes": str(evaluation.video_episodes) if films else "all",
        },
    )


def _block(config: TrainingConfig, *, num_envs: int, policy_type: str) -> dict[str, Any]:
    return {
        "name": config.task,
        "arena_env_args": {"environment": config.environment, "num_envs": num_envs, **config.env},
        "policy_type": policy_type,
        "num_episodes": 1,
    }


def _read(block: dict[str, Any]) -> JobsFile:
    return read_jobs({"jobs": [block]}, source="training task")


def _in_words_of_training(problem: Problem) -> Problem:
    key = problem.key or ""
    for in_job, in_training in (("arena_env_args.environment", "environment"), ("arena_env_args", "env")):
        if key == in_job or key.startswith(f"{in_job}."):
            key = in_training + key.removeprefix(in_job)
            break
    return Problem(problem.message, key=key or None)
