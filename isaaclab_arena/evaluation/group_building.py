"""What a job's rows are made of: for each group an environment and a policy, built or left by the job before."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from isaaclab_arena.evaluation.fixed_batch import on_fixed_batch, rows_asked_on
from isaaclab_arena.evaluation.group_rows import RowGroup
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.rank_settings import RankSettings
from isaaclab_arena.evaluation.rollout import row_shares
from isaaclab_arena.evaluation.start_up_clock import StartUpClock, StartUpPart
from isaaclab_arena.evaluation.workbench import Bench, Workbench
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.policy.policy_base import PolicyBase


@dataclass(frozen=True, kw_only=True)
class BuiltGroups:
    """The groups of a job's rows.

    Attributes:
        groups: The groups, in order of their rows.
        is_reproducible: Whether episodes follow, to the last bit, from their conditions, observations and streams.
    """

    groups: Sequence[RowGroup]
    is_reproducible: bool


def build_groups(job: Job, settings: RankSettings, workbench: Workbench, start_up: StartUpClock) -> BuiltGroups:
    """Return the groups of a job's rows, with what the job before left of what this one asks for.

    Args:
        job: The job.
        settings: Into how many groups rows are divided, and where they are simulated.
        workbench: Keeps what is built.
        start_up: Is told what has been built.
    """
    jobs = _jobs_of_groups(job, settings)
    benches = workbench.benches(len(jobs))
    environments = [_environment(bench, each, settings) for bench, each in zip(benches, jobs, strict=True)]
    start_up.finish(StartUpPart.ENVIRONMENT)
    policies: list[PolicyBase] = []
    for bench, each, environment in zip(benches, jobs, environments, strict=True):
        policies.append(_policy(bench, each, policies[0] if policies else None))
        policies[-1].reset()
        policies[-1].check_environment(environment)
    start_up.finish(StartUpPart.POLICY)
    first_rows = accumulate((each.config.num_envs for each in jobs[:-1]), initial=0)
    groups = [
        RowGroup(environment=environment, policy=on_fixed_batch(policy, settings.policy_batch), first_row=first_row)
        for environment, policy, first_row in zip(environments, policies, first_rows, strict=True)
    ]
    is_reproducible = all(
        environment.reproducible and policy.reproducible and not policy.is_remote
        for environment, policy in zip(environments, policies, strict=True)
    )
    return BuiltGroups(groups=groups, is_reproducible=is_reproducible)


def _jobs_of_groups(job: Job, settings: RankSettings) -> list[Job]:
    """Return the job as it is for each group of its rows."""
    num_envs = job.config.num_envs
    shares = row_shares(num_envs, min(settings.num_groups, num_envs))
    asked_on = [rows_asked_on(job.policy_class, settings.policy_batch, num_envs=share) for share in shares]
    return [job.with_rows(share, policy_rows=rows) for share, rows in zip(shares, asked_on, strict=True)]


def _environment(bench: Bench, job: Job, settings: RankSettings) -> Environment:
    return bench.environment.get(
        job.environment_key,
        lambda: job.build_environment(device=settings.device, num_threads=settings.num_threads),
    )


def _policy(bench: Bench, job: Job, like: PolicyBase | None) -> PolicyBase:
    """Return a group's policy, which shares the network of the policy ``like`` if it can."""

    def build() -> PolicyBase:
        sharing = None if like is None else like.with_own_memory()
        return job.build_policy() if sharing is None else sharing

    return bench.policy.get(job.policy_key, build)
