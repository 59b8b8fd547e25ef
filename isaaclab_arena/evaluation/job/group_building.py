"""What a job's rows are made of: for each group an environment and a policy, built or left by the job before."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.evaluation.batching.policy_probe import ProbeResult, probe_rows
from isaaclab_arena.evaluation.batching.settling import Settling, asked_policies
from isaaclab_arena.evaluation.job.build_cache import Bench, Workbench
from isaaclab_arena.evaluation.job.rank_settings import RankSettings
from isaaclab_arena.evaluation.job.served_model import settle_served_model
from isaaclab_arena.evaluation.job.start_up_clock import StartUpClock, StartUpPart
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.rollout.pipelined import EnvGroup, group_sizes
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import SharesNetwork


@dataclass(frozen=True, kw_only=True)
class BuiltGroups:
    """The groups of a job's rows.

    Attributes:
        groups: The groups, in order of their rows.
        policy_batch: Rows that each policy is asked on together, None where that makes no difference.
        plan_because: Why episodes do not follow, to the last bit, from their conditions, observations and streams; None
            if they do.
        served_model: What the policy's server states of its model, None for a policy that asks no server.
    """

    groups: Sequence[EnvGroup]
    policy_batch: int | None
    plan_because: str | None
    served_model: str | None = None


def build_groups(
    job: Job, settings: RankSettings, workbench: Workbench, start_up: StartUpClock, directory: Path
) -> BuiltGroups:
    """Return the groups of a job's rows, with what the job before left of what this one asks for.

    Args:
        job: The job.
        settings: Into how many groups rows are divided, and where they are simulated.
        workbench: Keeps what is built.
        start_up: Is told what has been built.
        directory: Folder of the job, where it is kept on how many rows its policy is asked.
    """
    shares = group_sizes(job.config.num_envs, min(settings.num_groups, job.config.num_envs))
    benches = workbench.benches(len(shares))
    jobs = [job.with_rows(share, policy_rows=share) for share in shares]
    environments = [_environment(bench, each, settings) for bench, each in zip(benches, jobs, strict=True)]
    start_up.finish(StartUpPart.ENVIRONMENT)
    workshop = _PolicyWorkshop(job, benches, environments, workbench)
    settling = Settling(
        directory=directory,
        policy_class=job.policy_class,
        environments=environments,
        fixed_batch=settings.policy_batch,
        planned=settings.planned_batches.get(job.config.name),
        make=workshop.make,
        probe=workshop.probe,
    )
    asked = asked_policies(settling, simulated_on=settings.device.type)
    start_up.finish(StartUpPart.POLICY)
    groups = [
        EnvGroup(environment=environment, policy=policy)
        for environment, policy in zip(environments, asked.policies, strict=True)
    ]
    served_model = settle_served_model(directory, job.config.name, asked.policies)
    return BuiltGroups(
        groups=groups, policy_batch=asked.batch, plan_because=asked.plan_because, served_model=served_model
    )


class _PolicyWorkshop:
    """Builds the policies of a job's groups, and asks them; what was built and found before is used again."""

    def __init__(
        self, job: Job, benches: Sequence[Bench], environments: Sequence[Environment], workbench: Workbench
    ) -> None:
        self._job = job
        self._benches = benches
        self._environments = environments
        self._workbench = workbench
        self._begun: list[PolicyBase] = []

    def make(self, num_rows: int | None) -> Sequence[PolicyBase]:
        """Return the policy of each group; see `Settling.make`."""
        policies: list[PolicyBase] = []
        for bench, environment in zip(self._benches, self._environments, strict=True):
            rows = environment.num_envs
            # A policy whose rows never influence each other is asked as it is.
            asked_on = rows if num_rows is None or self._job.policy_class.traits.batch_invariant else num_rows
            job = self._job.with_rows(rows, policy_rows=asked_on)
            policies.append(_policy(bench, job, policies[0] if policies else None))
            self._begin(policies[-1], environment)
        return policies

    def _begin(self, policy: PolicyBase, environment: Environment) -> None:
        """Have a policy forget the job before and look at the environment of this one, once."""
        if not any(policy is each for each in self._begun):
            policy.reset()
            policy.check_environment(environment)
            self._begun.append(policy)

    def probe(self, policy: PolicyBase, batch: int) -> ProbeResult:
        """Ask the first group's policy; see `Settling.probe`. Jobs that follow each other need not ask again."""
        found = self._workbench.probed
        key = (self._job.policy_key, self._job.environment_key, batch)
        if key not in found:
            found[key] = probe_rows(policy, self._environments[0], num_rows=batch)
        return found[key]


def _environment(bench: Bench, job: Job, settings: RankSettings) -> Environment:
    return bench.environment.get(
        job.environment_key,
        lambda: job.build_environment(device=settings.device, num_threads=settings.num_threads),
    )


def _policy(bench: Bench, job: Job, like: PolicyBase | None) -> PolicyBase:
    """Return a group's policy, which shares the network of the policy ``like`` if it can."""

    def build() -> PolicyBase:
        sharing = like.with_own_memory() if isinstance(like, SharesNetwork) else None
        return job.build_policy() if sharing is None else sharing

    return bench.policy.get(job.policy_key, build)
