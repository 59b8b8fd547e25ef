"""A job that was checked, its episodes, and their supply to a rank."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count, takewhile
from typing import Any, Protocol, Self

import torch

from isaaclab_arena.config.schema import Delays, JobConfig
from isaaclab_arena.episode_ranges import EpisodeRanges, of_ranges
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.latency import JobLatency
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Variation, spelled
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import NetworkElsewhere, PolicyTraits
from isaaclab_arena.policy.catalog import LentPolicy

_LOG = logging.getLogger(__name__)

OPEN_BACKEND = "auto"
"""Value of the option ``backend`` that leaves open what simulates an environment."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One validated job, ready to run."""

    config: JobConfig  # from the jobs file
    builder: EnvironmentBuilder
    environment_config: Any  # instance of the builder's ``config_class``
    policy_class: type[PolicyBase]  # of a lent policy the base class, which says nothing
    # For ``policy_class.from_dict``: the job's options, with ``num_envs`` and the command line's if the policy has
    # such.
    policy_options: Mapping[str, Any]
    # Options for this process alone, because of its device; no part of the job.
    policy_placement: Mapping[str, Any] = field(default_factory=dict)
    variations: tuple[Variation, ...] = ()  # from episode to episode
    settled_backend: str | None = None  # of an open ``backend``; None if not settled, or not open
    saved_conditions: tuple[Conditions, ...] | None = None  # of each episode, by index; None if drawn
    latency: JobLatency | None = None  # None if the world waits for the policy
    described: Description | None = None  # by the policy's files, None without such files
    num_played: int | None = None  # number of episodes that these files determine, None if they do not
    connections: Connections | None = None  # the policy's inputs and outputs, None if unknown before the build
    doubts: tuple[str, ...] = ()  # warnings about the policy's files, one sentence each
    lent: LentPolicy | None = None  # in place of a policy that is built

    @property
    def policy_traits(self) -> PolicyTraits:
        """The promises of the job's policy, as far as they are known before the build."""
        return self.policy_class.traits if self.lent is None else self.lent.policy.traits

    @property
    def environment_key(self) -> str:
        """Key that is equal for jobs that can share an environment object."""
        config = self.config
        return json.dumps(
            [
                config.environment,
                config.environment_args,
                config.num_envs,
                config.enable_cameras,
                spelled(self.variations),
                self.settled_backend,
            ],
            sort_keys=True,
        )

    @property
    def policy_key(self) -> str:
        """Key that is equal for jobs that can share a policy object."""
        free = {"num_envs"} if self.policy_traits.serves_any_num_envs else set()
        decisive = {name: value for name, value in self.policy_options.items() if name not in free}
        server = self.config.policy_server
        return json.dumps([self.config.policy_type, decisive, server and asdict(server)], sort_keys=True)

    @property
    def network_key(self) -> str:
        """Key that is equal for jobs whose policies can share a served network, for any num_envs."""
        decisive = {name: value for name, value in self.policy_options.items() if name != "num_envs"}
        return json.dumps([self.config.policy_type, decisive], sort_keys=True)

    @property
    def asked_backend(self) -> str | None:
        """The job's backend, or ``auto``; None if the environment has no choice of backends."""
        return getattr(self.environment_config, "backend", None) if self.builder.has_backends else None

    def with_settled(self, backend: str | None, delays: Delays | None = None) -> Self:
        """Return the job with a settled backend and a measured latency; None leaves each of them unchanged."""
        job = self if self.latency is None else replace(self, latency=self.latency.measured(delays))
        # A backend that the job names itself stays.
        if backend is None or self.asked_backend != OPEN_BACKEND:
            return job
        return replace(
            job, settled_backend=backend, environment_config=replace(job.environment_config, backend=backend)
        )

    def with_num_envs(self, num_envs: int, *, policy_num_envs: int) -> Self:
        """Return the job for a group of `num_envs` of its env slots, whose policy is called for `policy_num_envs`."""
        options = dict(self.policy_options)
        if "num_envs" in options:
            options["num_envs"] = policy_num_envs
        return replace(self, config=replace(self.config, num_envs=num_envs), policy_options=options)

    def build_environment(self, *, device: torch.device, num_threads: int) -> Environment:
        """Build the environment, with observations and actions on `device` and `num_threads` physics threads."""
        config, num_envs = self.environment_config, self.config.num_envs
        builder: Any = self.builder
        if self.variations:
            return builder.build(
                config, num_envs=num_envs, device=device, num_threads=num_threads, variations=self.variations
            )
        return self.builder.build(config, num_envs=num_envs, device=device, num_threads=num_threads)

    def build_policy(self, network: NetworkElsewhere | None = None) -> PolicyBase:
        """Build the policy, on a network elsewhere if any. `ConfigError` if it rejects its options or the network."""
        if self.lent is not None:
            return self.lent.policy
        policy_class: Any = self.policy_class
        options = {**self.policy_options, **self.policy_placement}
        return policy_class.from_dict(options) if network is None else policy_class.asking(options, network)

    def tell_connections(self, policy: PolicyBase, environment: Environment) -> None:
        """Log the inputs and outputs of a policy that has accepted the environment, and the doubts on its files."""
        connections = policy.connections(environment) if "connections" in policy.offers else None
        if connections is not None:
            _LOG.info("job '%s': %s", self.config.name, connections)
        doubts = [] if connections is None else connections.doubts(environment)
        for doubt in dict.fromkeys((*self.doubts, *doubts)):
            _LOG.warning("job '%s': %s", self.config.name, doubt)

    def environment_option(self, name: str) -> str | None:
        """Return an option of the environment as text, such as ``object``; None if it has no such option."""
        value = getattr(self.environment_config, name, None)
        return None if value is None else str(value)


# Hand out a rank's episodes of a job, one at a time as env slots become free.


class EpisodeSupply(Protocol):
    """The episodes of one job that this rank is to run; by default no other rank can run them."""

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield this rank's episodes among `candidates` (ascending, maybe endless). Each is claimed as it is taken."""
        ...

    def max_envs(self, num_envs: int) -> int:
        """Return the number of the ``num_envs`` env slots to use at once; the others rest."""
        return num_envs

    def begin(self, episode_index: int) -> None:
        """Announce an episode whose env slot is reset next."""

    def still_holds(self, episode_index: int) -> bool:
        """Whether this rank may still commit an episode that it took."""
        del episode_index
        return True

    def ends_early(self) -> bool:
        """Whether the job needs no further episode; `take` checks it before each."""
        return False


@dataclass(frozen=True, kw_only=True)
class FixedShare(EpisodeSupply):
    """A fixed set of episodes: all that are neither finished nor another rank's."""

    finished: EpisodeRanges = ()  # not to be run again
    share: EpisodeRanges | None = None  # of this rank, None for all
    is_over: Callable[[], bool] = lambda: False  # the job needs no further episode; those that have begun are finished

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield the candidates that are this rank's and not finished, until the job is over."""
        finished = of_ranges(self.finished)
        share = None if self.share is None else of_ranges(self.share)
        end = None if share is None else max(share, default=-1)
        for index in candidates:
            if end is not None and index > end:
                return
            if index in finished or (share is not None and index not in share):
                continue
            if self.is_over():
                return
            yield index

    def ends_early(self) -> bool:
        """Whether the job is over."""
        return self.is_over()


EVERYTHING = FixedShare()
"""All episodes of a job that no rank has begun."""


# Plan a job's episodes and their length, from the job or else from its policy.


def with_length(config: JobConfig, policy: PolicyBase) -> JobConfig:
    """Return a job with its own length or the policy's. `ConfigError` without one, or if an episode is not playable."""
    num_steps, num_episodes = config.num_steps, config.num_episodes
    # The job's own length comes first, then the policy's episodes, then its steps.
    if num_steps is None and num_episodes is None:
        num_episodes = policy.num_episodes()
        if num_episodes is not None and config.max_episodes is not None:
            num_episodes = min(num_episodes, config.max_episodes)
    if num_steps is None and num_episodes is None and policy.has_length():
        num_steps = policy.length()
    if num_steps is None and num_episodes is None:
        raise ConfigError(
            f"job '{config.name}' gives neither num_episodes nor num_steps, "
            f"and policy '{config.policy_type}' has no length of its own"
        )
    # Check every episode now, so that the job fails before it plays any.
    beyond = next((index for index in range(num_episodes or 0) if not policy.can_play(index)), None)
    if beyond is not None:
        raise ConfigError(
            f"job '{config.name}' asks for {num_episodes} episodes, "
            f"but policy '{config.policy_type}' has nothing to play in episode {beyond}"
        )
    return replace(config, num_episodes=num_episodes, num_steps=num_steps)


def indices_that_start(job: Job, policy: PolicyBase, *, started: int, supply: EpisodeSupply) -> Iterator[int]:
    """Return the episodes of a rebuild of a job limited by steps; `started` in earlier rebuilds. May be endless."""
    ends = [] if job.saved_conditions is None else [len(job.saved_conditions)]
    if job.config.max_episodes is not None:
        ends.append(job.config.max_episodes)
    indices = range(started, min(ends)) if ends else count(started)
    return takewhile(lambda index: not supply.ends_early() and policy.can_play(index), indices)


def beginning(job: Job, indices: Iterable[int], supply: EpisodeSupply) -> Iterator[Episode]:
    """Yield the episodes by their indices, each as it begins, after the announcement to the supply."""
    for index in indices:
        supply.begin(index)
        yield episode_of(job, index)


def episode_of(job: Job, episode_index: int) -> Episode:
    """Return an episode of a job by its index."""
    config, saved = job.config, job.saved_conditions
    return Episode(
        job=config.name,
        episode_index=episode_index,
        seed=config.seed,
        conditions_seed=config.placement_seed,
        saved_conditions=None if saved is None else saved[episode_index],
    )
