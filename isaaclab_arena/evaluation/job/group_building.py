"""Builds the environments and policies of a job, one of each for every group of its env slots."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from isaaclab_arena.config.schema import PolicyServerConfig
from isaaclab_arena.evaluation.batching.environment_probe import unlike_itself
from isaaclab_arena.evaluation.batching.policy_probe import ProbeResult, probe_policy
from isaaclab_arena.evaluation.batching.settling import Settling, asked_policies
from isaaclab_arena.evaluation.job.build_cache import BuildCache
from isaaclab_arena.evaluation.job.rank_settings import RankSettings
from isaaclab_arena.evaluation.job.served_model import settle_served_model
from isaaclab_arena.evaluation.job.start_up_clock import StartUpClock, StartUpPart
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.policy_server.client import ServedNetwork
from isaaclab_arena.evaluation.process.left_alone import Settings
from isaaclab_arena.evaluation.provenance.source_files import modules_of_object
from isaaclab_arena.evaluation.rollout.pipelined import EnvGroup, group_sizes
from isaaclab_arena.evaluation.startup.contents import refuse_changed
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.interfaces.content import LoadsCode
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.pictures import LoadsRenderer
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures
from isaaclab_arena.interfaces.policy_traits import SharesNetwork
from isaaclab_arena.workers.kept_workers import spare_workers_kept


@dataclass(frozen=True, kw_only=True)
class BuiltGroups:
    """The groups of a job's env slots.

    Attributes:
        groups: The groups, in order of their env slots.
        policy_batch: Env slots that each policy is asked for together, None where that makes no difference.
        plan_because: Why episodes do not follow, to the last bit, from their conditions, observations and streams; None
            if they do.
        served_model: What the policy's server states of its model, None for a policy that asks no server.
        network: What the policies ask in the run's policy server, None where they have a network of their own.
    """

    groups: Sequence[EnvGroup]
    policy_batch: int | None
    plan_because: str | None
    served_model: str | None = None
    network: ServedNetwork | None = None


class GroupBuilder:
    """Builds what one job after the other needs, and keeps it for the next job that asks for the same.

    Args:
        settings: Into how many groups env slots are divided, and where they are simulated.

    Attributes:
        set_by_code: What the code of policies and environments sets for the whole process.
    """

    def __init__(self, settings: RankSettings) -> None:
        self._settings = settings
        self.set_by_code = Settings()
        self._taking_turns: tuple[str, ...] = ()
        self._environments: defaultdict[str, BuildCache[Environment]] = defaultdict(BuildCache)
        self._policies: defaultdict[str, BuildCache[PolicyBase]] = defaultdict(BuildCache)
        self._probed: dict[tuple[str, str, int, bool], ProbeResult] = {}
        self._probed_environments: dict[tuple[str, bool], str | None] = {}
        self._networks: dict[tuple[str, PolicyServerConfig], ServedNetwork] = {}
        self._has_built = False
        self._has_new_environment = self._has_new_policy = False

    def build(self, job: Job, directory: Path, start_up: StartUpClock) -> BuiltGroups:
        """Return the groups of a job's env slots.

        Args:
            job: The job.
            directory: Directory of the job, which remembers for how many env slots its policy is asked.
            start_up: Is told what has been built.
        """
        # The first build imports what jobs need, which stays. A later one may need the memory of what was built before.
        with nullcontext() if self._has_built else without_collecting():
            self._has_built = True
            return self._build(job, directory, start_up)

    def _build(self, job: Job, directory: Path, start_up: StartUpClock) -> BuiltGroups:
        settings, num_envs = self._settings, job.config.num_envs
        self._begin_turn(job)
        self._has_new_environment = self._has_new_policy = False
        sizes = group_sizes(num_envs, min(settings.num_groups, num_envs))
        jobs = [job.with_num_envs(size, policy_num_envs=size) for size in sizes]
        # Workers of the environment before may serve this one.
        with spare_workers_kept(), self.set_by_code.of(f"environment '{job.config.environment}'", job.environment_key):
            environments = self._environments[job.environment_key if self._taking_turns else ""].get(
                [each.environment_key for each in jobs],
                lambda built: self._new_environment(jobs[len(built)]),
            )
        start_up.finish(StartUpPart.ENVIRONMENT)
        settling = Settling(
            directory=directory,
            policy_class=job.policy_class,
            environments=environments,
            fixed_batch=settings.policy_batch,
            planned=settings.planned_batches.get(job.config.name),
            make=partial(self._make_policies, job, environments, []),
            probe=partial(self._probe, job, environments[0]),
            probe_environment=partial(self._probe_environment, job, environments[0]),
        )
        with self.set_by_code.of(f"policy '{job.config.policy_type}'", job.policy_key):
            asked = asked_policies(settling, simulated_on=settings.device.type)
        start_up.finish(StartUpPart.POLICY)
        begun = settings.contents.get(job.config.name)
        if begun is not None and (self._has_new_environment or self._has_new_policy):
            refuse_changed(job, begun, environment=self._has_new_environment, policy=self._has_new_policy)
        for environment, policy in zip(environments, asked.policies, strict=True):
            _load_renderer(environment, policy)
        return BuiltGroups(
            groups=[
                EnvGroup(environment=environment, policy=policy)
                for environment, policy in zip(environments, asked.policies, strict=True)
            ],
            policy_batch=asked.batch,
            plan_because=asked.plan_because,
            served_model=settle_served_model(directory, job.config.name, asked.policies),
            network=self._network_of(job),
        )

    def clear(self) -> None:
        """Close everything that was built."""
        for cache in (*self._policies.values(), *self._environments.values()):
            cache.clear()
        self._policies.clear()
        self._environments.clear()

    def _begin_turn(self, job: Job) -> None:
        """Keep what was built for the jobs that take turns with this one, and nothing of other such jobs."""
        taking_turns = self._settings.turns.get(job.config.name, ())
        if taking_turns != self._taking_turns:
            self.clear()
            self._taking_turns = taking_turns

    def _make_policies(
        self, job: Job, environments: Sequence[Environment], begun: list[PolicyBase], policy_batch: int | None
    ) -> Sequence[PolicyBase]:
        """Return the policy of each group; see `Settling.make`. Those in ``begun`` have seen their environment."""
        sizes = [environment.num_envs for environment in environments]
        # A policy whose env slots never influence each other is asked as it is.
        fixed = None if job.policy_class.traits.batch_invariant else policy_batch
        jobs = [job.with_num_envs(size, policy_num_envs=fixed or size) for size in sizes]
        policies = self._policies[job.config.name if self._taking_turns else ""].get(
            [each.policy_key for each in jobs],
            lambda built: self._new_policy(jobs[len(built)], built),
            are_lent=job.policy_class.traits.is_lent,
        )
        for policy, environment in zip(policies, environments, strict=True):
            if not any(policy is each for each in begun):
                policy.reset()
                policy.check_environment(environment)
                if not begun:
                    job.tell_connections(policy, environment)
                begun.append(policy)
        return policies

    def _new_environment(self, job: Job) -> Environment:
        self._has_new_environment = True
        return job.build_environment(device=self._settings.device, num_threads=self._settings.num_threads)

    def _new_policy(self, job: Job, others: Sequence[PolicyBase]) -> PolicyBase:
        """Return a policy that shares the network of the first group's policy if it can, or that of other ranks."""
        self._has_new_policy = True
        first = others[0] if others else None
        sharing = first.with_own_memory() if isinstance(first, SharesNetwork) else None
        if sharing is not None:
            return sharing
        network = self._network_of(job)
        return job.build_policy() if network is None else job.build_policy_asking(network)

    def _network_of(self, job: Job) -> ServedNetwork | None:
        """Return what a job's policies ask, all groups and the jobs that follow over one connection."""
        server = job.config.policy_server
        if server is None:
            return None
        key = job.network_key, server
        if key not in self._networks:
            self._networks[key] = ServedNetwork(self._settings.policy_servers[server], job.network_key)
        return self._networks[key]

    def _probe(self, job: Job, environment: Environment, policy: PolicyBase, batch: int) -> ProbeResult:
        """Probe the first group's policy; see `Settling.probe`. The answer is kept for the jobs that follow."""
        continues = job.latency is not None and job.latency.continues
        key = (job.policy_key, job.environment_key, batch, continues)
        if key not in self._probed:
            self._probed[key] = probe_policy(policy, environment, batch=batch, continues=continues)
        return self._probed[key]

    def _probe_environment(self, job: Job, environment: Environment) -> str | None:
        """Probe the first group's environment; see `Settling.probe_environment`. The answer is kept, too.

        Those made of nothing but this package's code are not probed: its own tests play them again.
        """
        if not isinstance(job.builder, LoadsCode) and not modules_of_object(job.builder):
            return None
        key = job.environment_key, job.policy_class.traits.sees_pictures
        if key not in self._probed_environments:
            with self.set_by_code.of(f"environment '{job.config.environment}'", job.environment_key):
                self._probed_environments[key] = unlike_itself(environment, sees_pictures=key[1])
        return self._probed_environments[key]


def _load_renderer(environment: Environment, policy: PolicyBase) -> None:
    """Load what draws pictures, if the policy looks at any, during the build: kernels may take long to compile."""
    if isinstance(environment, LoadsRenderer):
        looked_at = announced_pictures(policy, environment, range(environment.num_envs))
        if looked_at is None or len(looked_at):
            environment.load_renderer()
