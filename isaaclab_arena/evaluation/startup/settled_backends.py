"""Choose the backend of each job of a run, once, on one rank for all, before the plan is written.

Ranks that each timed the backends for themselves could end on different physics, and so could the groups of a job's
env slots.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.plan.job import OPEN_BACKEND, Job
from isaaclab_arena.evaluation.rollout.pipelined import group_sizes
from isaaclab_arena.interfaces.environment_builder import SimulatedBuilder
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry

_LOG = logging.getLogger(__name__)
_ON_CPU = "mujoco"
_ON_GPU = "warp"
_UNMEASURED = (
    "job '%s' runs on %s: which backend is faster is measured where the run is started, and no GPU is there; "
    "'backend: %s' in its arena_env_args chooses the other one"
)


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """What the ranks of a run simulate with.

    Attributes:
        devices: Device of each rank, by rank.
        num_threads: Threads that the physics of the rank that measures may use.
        num_groups: Groups that a job's env slots are divided into.
        measures: Whether the process that sets the run up can measure what ranks will do. The head of a cluster, whose
            ranks have GPUs, may have none.
    """

    devices: tuple[str, ...]
    num_threads: int
    num_groups: int = 1
    measures: bool = True

    @property
    def has_gpus_only(self) -> bool:
        """Whether every rank simulates on a GPU."""
        return all(torch.device(device).type == "cuda" for device in self.devices)


def settle_backends(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, str] | None = None,
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, str]:
    """Return what simulates each job that is to run, by its name; jobs without a choice are left out.

    A job that says it gets what it says, one that was begun what it was begun with. What is left open is MuJoCo unless
    every rank has a GPU; then the faster backend is measured, on this rank if it can, once for jobs that are alike.

    Args:
        jobs: Every job of the run.
        machinery: What the ranks simulate with.
        known: What was settled when the run began, by job.
        watch: Entered while something is measured for the named job.
    """
    measured: dict[str, str] = {}
    settled: dict[str, str] = {}
    for job in jobs:
        asked, name = job.asked_backend, job.config.name
        if asked is None or job.config.status is not JobStatus.PENDING:
            continue
        if asked != OPEN_BACKEND:
            settled[name] = asked
        elif known is not None and name in known:
            settled[name] = known[name]
        elif not machinery.has_gpus_only:
            settled[name] = _ON_CPU
        elif not machinery.measures:
            _LOG.warning(_UNMEASURED, name, _ON_CPU, _ON_GPU)
            settled[name] = _ON_CPU
        else:
            key = job.environment_key
            if key not in measured:
                with watch(name):
                    measured[key] = _faster_backend(job, machinery)
            settled[name] = measured[key]
    return settled


def refuse_slow_backends(jobs: Sequence[Job], work: Sequence[AttemptEntry], machinery: Machinery) -> None:
    """Refuse to go on without GPUs with jobs that were settled on MuJoCo-Warp because there were GPUs.

    On a CPU it is several times slower than MuJoCo, and nobody has asked for it there.

    Args:
        jobs: Every job of the run.
        work: What is left of them.
        machinery: What the ranks simulate with now.

    Raises:
        ConfigError: With one problem per job.
    """
    left_open = {job.config.name for job in jobs if job.asked_backend == OPEN_BACKEND}
    slow = [each.job for each in work if each.backend == _ON_GPU and each.job in left_open]
    if slow and not machinery.has_gpus_only:
        without = ", ".join(
            dict.fromkeys(device for device in machinery.devices if torch.device(device).type != "cuda")
        )
        message = (
            f"is simulated by MuJoCo-Warp since the run began on GPUs, and now ranks are on {without}; go on with a "
            "GPU for every rank, or start a new run"
        )
        raise ConfigError([Problem(message, job=name, key="arena_env_args.backend") for name in slow])


def with_settled_backends(jobs: Sequence[Job], attempt: Attempt) -> tuple[Job, ...]:
    """Return the jobs of a run as every rank of an attempt builds them."""
    settled = {work.job: work.backend for work in attempt.jobs}
    return tuple(job.with_backend(settled.get(job.config.name)) for job in jobs)


def with_backends(work: Sequence[AttemptEntry], settled: Mapping[str, str]) -> tuple[AttemptEntry, ...]:
    """Return what is left to do, with what simulates it."""
    return tuple(replace(each, backend=settled.get(each.job)) for each in work)


def _faster_backend(job: Job, machinery: Machinery) -> str:
    """Return the faster backend for a job's largest group of env slots."""
    builder, num_envs = job.builder, job.config.num_envs
    if not isinstance(builder, SimulatedBuilder):
        raise TypeError(f"'{job.config.environment}' has no backends to choose from")
    try:
        return builder.faster_backend(
            job.environment_config,
            num_envs=group_sizes(num_envs, min(machinery.num_groups, num_envs))[0],
            device=torch.device(machinery.devices[0]),
            num_threads=machinery.num_threads,
            variations=job.variations,
        )
    except ArenaError as error:
        # The job will fail by itself when it is built, and say so; the others need not.
        _LOG.debug("job '%s' cannot be measured: %s", job.config.name, error)
        return _ON_CPU
