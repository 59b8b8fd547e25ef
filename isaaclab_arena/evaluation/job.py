"""A job that was checked, its episodes, and their supply to a rank."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count, takewhile
from typing import Any, Protocol, Self

import torch

from isaaclab_arena.config.schema import Delays, JobConfig
from isaaclab_arena.episode_ranges import EpisodeRanges, of_ranges, split_evenly
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.latency import JobLatency
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.content import LoadsCode
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import (
    EnvironmentBuilder,
    RobotBuilder,
    SimulatedBuilder,
    TaskBuilder,
)
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.policy import PolicyBase, connections_of
from isaaclab_arena.interfaces.policy_traits import NetworkElsewhere
from isaaclab_arena.interfaces.variation import VariableEnvironmentBuilder, Variation, spelled

# A job that was checked: what it asks for, and the classes that do it.

_LOG = logging.getLogger(__name__)

OPEN_BACKEND = "auto"
"""Value of the option ``backend`` that leaves open what simulates an environment."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job, ready to run.

    Attributes:
        config: What the job file says.
        builder: Builds the environment.
        environment_config: Instance of the builder's ``config_class``.
        policy_class: Class of the policy.
        policy_options: What ``policy_class.from_dict`` takes: the job's options, with ``num_envs`` and what the
            command line gives where the policy has such options.
        policy_placement: What is added to that in this process alone, because of where it runs; no part of the job.
        variations: What varies from episode to episode.
        settled_backend: What simulates it where the job leaves that open, None as long as nobody has settled it, and
            where there is nothing to settle.
        saved_conditions: What each episode starts from, by index, where the job takes that from a file.
        latency: How late the policy's answers are, None where the world waits for them.
        described: What the files of its policy say of themselves, None for one without such files.
        num_played: How many episodes they decide that it has, None where they decide nothing.
        connections: What the policy is shown and sets, None where that is known only when it is built.
        doubts: What files that it uses say against what it does with them, one sentence each.
    """

    config: JobConfig
    builder: EnvironmentBuilder
    environment_config: Any
    policy_class: type[PolicyBase]
    policy_options: Mapping[str, Any]
    policy_placement: Mapping[str, Any] = field(default_factory=dict)
    variations: tuple[Variation, ...] = ()
    settled_backend: str | None = None
    saved_conditions: tuple[Conditions, ...] | None = None
    latency: JobLatency | None = None
    described: Description | None = None
    num_played: int | None = None
    connections: Connections | None = None
    doubts: tuple[str, ...] = ()

    @property
    def environment_key(self) -> str:
        """Equal for two jobs that can use the same environment object."""
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
        """Equal for two jobs that can use the same policy object."""
        free = {"num_envs"} if self.policy_class.traits.serves_any_num_envs else set()
        decisive = {name: value for name, value in self.policy_options.items() if name not in free}
        server = self.config.policy_server
        return json.dumps([self.config.policy_type, decisive, server and asdict(server)], sort_keys=True)

    @property
    def network_key(self) -> str:
        """Equal for two jobs whose policies can ask the same network, for any number of env slots."""
        decisive = {name: value for name, value in self.policy_options.items() if name != "num_envs"}
        return json.dumps([self.config.policy_type, decisive], sort_keys=True)

    @property
    def foreign_parts(self) -> tuple[str, ...]:
        """What of the job runs code that is not this package's, in words; both parts if none is known to."""
        environment, policy = f"environment '{self.config.environment}'", f"policy '{self.config.policy_type}'"
        is_foreign = {
            policy: not _is_own(self.policy_class),
            environment: isinstance(self.builder, LoadsCode) or not _is_own(type(self.builder)),
        }
        return tuple(part for part, foreign in is_foreign.items() if foreign) or tuple(is_foreign)

    @property
    def asked_backend(self) -> str | None:
        """What the job says of its simulation: ``auto`` or a backend; None where there is nothing to choose."""
        return getattr(self.environment_config, "backend", None) if isinstance(self.builder, SimulatedBuilder) else None

    def with_backend(self, backend: str | None) -> Self:
        """Return the job as it is once it is settled what simulates it; what the job itself says stands.

        Args:
            backend: What was settled, None for nothing.
        """
        if backend is None or self.asked_backend != OPEN_BACKEND:
            return self
        return replace(
            self, settled_backend=backend, environment_config=replace(self.environment_config, backend=backend)
        )

    def with_delays(self, delays: Delays | None) -> Self:
        """Return the job with the latency that was measured for it, None where nothing was."""
        return self if self.latency is None else replace(self, latency=self.latency.measured(delays))

    def with_num_envs(self, num_envs: int, *, policy_num_envs: int) -> Self:
        """Return the job as it is for a group of its env slots.

        Args:
            num_envs: Env slots of the group.
            policy_num_envs: Env slots that its policy is asked for.
        """
        options = dict(self.policy_options)
        if "num_envs" in options:
            options["num_envs"] = policy_num_envs
        return replace(self, config=replace(self.config, num_envs=num_envs), policy_options=options)

    def build_environment(self, *, device: torch.device, num_threads: int) -> Environment:
        """Build the environment.

        Args:
            device: Where observations live and actions are expected.
            num_threads: Threads that its physics may use.
        """
        config, num_envs = self.environment_config, self.config.num_envs
        builder: Any = self.builder
        if self.variations and isinstance(builder, VariableEnvironmentBuilder):
            return builder.build(
                config, num_envs=num_envs, device=device, num_threads=num_threads, variations=self.variations
            )
        return self.builder.build(config, num_envs=num_envs, device=device, num_threads=num_threads)

    def build_policy(self) -> PolicyBase:
        """Build the policy.

        Raises:
            ConfigError: If the policy refuses its options.
        """
        return self.policy_class.from_dict({**self.policy_options, **self.policy_placement})

    def build_policy_asking(self, network: NetworkElsewhere) -> PolicyBase:
        """Build the policy without its network, which is elsewhere.

        Raises:
            ConfigError: If the policy refuses its options, or to be asked elsewhere.
        """
        policy_class: Any = self.policy_class
        return policy_class.asking({**self.policy_options, **self.policy_placement}, network)

    def tell_connections(self, policy: PolicyBase, environment: Environment) -> None:
        """Log what the job's policy is shown and sets, and what the files that it uses say against that.

        Args:
            policy: The policy, which has accepted the environment.
            environment: The environment.
        """
        connections = connections_of(policy, environment)
        if connections is not None:
            _LOG.info("job '%s': %s", self.config.name, connections)
        doubts = [] if connections is None else connections.doubts(environment)
        for doubt in dict.fromkeys((*self.doubts, *doubts)):
            _LOG.warning("job '%s': %s", self.config.name, doubt)

    @property
    def task_name(self) -> str:
        """What results call the task: the job's label, else what its environment says, else the environment's name."""
        label = self.config.labels.get("task")
        if label is None and isinstance(self.builder, TaskBuilder):
            return self.builder.task_name(self.environment_config)
        return label or self.config.environment

    @property
    def robot_name(self) -> str | None:
        """What results call the robot, None where the environment has no choice of robots."""
        if isinstance(self.builder, RobotBuilder):
            return self.builder.robot_name(self.environment_config)
        return self.environment_option("embodiment")

    def environment_option(self, name: str) -> str | None:
        """Return an option of the environment as text, such as ``object``, None where it has no such option."""
        value = getattr(self.environment_config, name, None)
        return None if value is None else str(value)


def _is_own(found: type) -> bool:
    return found.__module__.partition(".")[0] in {"isaaclab_arena", "isaaclab_arena_gr00t"}


# Hand out a rank's episodes of a job, one at a time as env slots become free.


class EpisodeSupply(Protocol):
    """The episodes of one job that this rank is to run."""

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield those of the candidates that this rank is to run, claimed, if need be, when they are asked for.

        Args:
            candidates: Episode indices, ascending; they may have no end.
        """
        ...

    def max_envs(self, num_envs: int) -> int:
        """Return how many of the ``num_envs`` env slots to use at once; the others rest."""
        ...

    def begin(self, episode_index: int) -> None:
        """Take note that an episode that was handed out is about to begin: its env slot is reset next."""
        ...

    def still_holds(self, episode_index: int) -> bool:
        """Whether an episode that was handed out is still this rank's, and may be committed."""
        ...

    def ends_early(self) -> bool:
        """Whether no further episode of the job is needed; `take` asks it before each."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedShare:
    """A share that was settled before the start: what is neither finished nor another rank's.

    Attributes:
        finished: Episodes that must not run again.
        share: This rank's episodes; None for all of them.
    """

    finished: EpisodeRanges = ()
    share: EpisodeRanges | None = None

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield the candidates that are this rank's and not finished."""
        finished = of_ranges(self.finished)
        share = None if self.share is None else of_ranges(self.share)
        if share is not None:
            end = max(share, default=-1)
            candidates = takewhile(lambda index: index <= end, candidates)
        return (index for index in candidates if index not in finished and (share is None or index in share))

    def max_envs(self, num_envs: int) -> int:
        """Return ``num_envs``."""
        return num_envs

    def begin(self, episode_index: int) -> None:
        """Do nothing: nobody else runs this share."""

    def still_holds(self, episode_index: int) -> bool:
        """Return True: nobody takes a fixed share away."""
        del episode_index
        return True

    def ends_early(self) -> bool:
        """Return False: all episodes are needed."""
        return False


@dataclass(frozen=True, kw_only=True)
class UntilOver:
    """Hands out the episodes of another supply as long as they are needed. What has begun is finished all the same.

    Attributes:
        supply: The other one.
        is_over: Whether no further episode of the job is needed.
    """

    supply: EpisodeSupply
    is_over: Callable[[], bool]

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield what the other supply yields, until nothing more is needed."""
        taken = self.supply.take(candidates)
        # Asked before an episode is taken, because taking one may claim it.
        while not self.ends_early() and (index := next(taken, None)) is not None:
            yield index

    def max_envs(self, num_envs: int) -> int:
        """Return what the other supply returns."""
        return self.supply.max_envs(num_envs)

    def begin(self, episode_index: int) -> None:
        """Tell the other supply."""
        self.supply.begin(episode_index)

    def still_holds(self, episode_index: int) -> bool:
        """Return what the other supply returns."""
        return self.supply.still_holds(episode_index)

    def ends_early(self) -> bool:
        """Whether the job is over."""
        return self.is_over()


EVERYTHING = FixedShare()
"""All episodes of a job that nobody has begun."""


# Plan a job's episodes and their length, from the job or else from its policy.


def with_length(config: JobConfig, policy: PolicyBase) -> JobConfig:
    """Return a job with its ``num_episodes`` or ``num_steps``: its own, else what its policy says.

    Raises:
        ConfigError: If neither says it, or the policy has nothing to play in one of the episodes.
    """
    num_steps, num_episodes = config.num_steps, config.num_episodes
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
    beyond = next((index for index in range(num_episodes or 0) if not policy.can_play(index)), None)
    if beyond is not None:
        raise ConfigError(
            f"job '{config.name}' asks for {num_episodes} episodes, "
            f"but policy '{config.policy_type}' has nothing to play in episode {beyond}"
        )
    return replace(config, num_episodes=num_episodes, num_steps=num_steps)


def indices_of_rebuild(config: JobConfig, num_episodes: int, *, rebuild: int, supply: EpisodeSupply) -> Iterator[int]:
    """Return the episodes of one rebuild that this rank is to run, in order.

    Args:
        config: The job.
        num_episodes: Episodes over all rebuilds and ranks.
        rebuild: Which rebuild, from 0.
        supply: Which episodes this rank is to run.
    """
    return supply.take(split_evenly(num_episodes, config.num_rebuilds)[rebuild])


def indices_that_start(job: Job, policy: PolicyBase, *, started: int, supply: EpisodeSupply) -> Iterator[int]:
    """Return the episodes of one rebuild of a job that is limited by steps; without end if nothing else ends them.

    Args:
        job: The job.
        policy: Says which episodes it can play.
        started: Episodes that earlier rebuilds have started.
        supply: Says when no further one is needed.
    """
    ends = [] if job.saved_conditions is None else [len(job.saved_conditions)]
    if job.config.max_episodes is not None:
        ends.append(job.config.max_episodes)
    indices = range(started, min(ends)) if ends else count(started)
    return takewhile(lambda index: not supply.ends_early() and policy.can_play(index), indices)


def beginning(job: Job, indices: Iterable[int], supply: EpisodeSupply) -> Iterator[Episode]:
    """Yield the episodes of a job by their indices, each when it is about to begin, which the supply is told."""
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
