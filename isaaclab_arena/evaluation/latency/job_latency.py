"""What a job's key ``latency`` comes to with its environment and its policy, and the policies that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.config.schema import Delays, LatencyConfig, Meanwhile
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError
from isaaclab_arena.evaluation.latency.answers import ONE_STEP
from isaaclab_arena.evaluation.latency.delays import in_steps, in_time, latencies_of
from isaaclab_arena.evaluation.latency.late_policy import LatePolicy
from isaaclab_arena.evaluation.latency.query_times import QueryTimes
from isaaclab_arena.evaluation.latency.refusals import refusals
from isaaclab_arena.evaluation.rollout.pipelined import EnvGroup
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, SampleBuilder
from isaaclab_arena.interfaces.policy import PolicyBase, declared_options
from isaaclab_arena.interfaces.policy_traits import ChunkTraits, StatesChunks


@dataclass(frozen=True, kw_only=True)
class JobLatency:
    """How late the answers in a job are.

    Attributes:
        config: What the job says.
        latencies_ms: The latencies where they are given as times [ms].
        delays: What they come to in control steps; None as long as nobody knows how long one is, or has measured.
    """

    config: LatencyConfig
    latencies_ms: tuple[float, ...] | None = None
    delays: Delays | None = None

    @property
    def continues(self) -> bool:
        """Whether new chunks go on from planned actions, as far as it is known how late answers are."""
        return self.config.meanwhile is Meanwhile.RTC and (self.delays is None or self.delays.longest > 0)

    def measured(self, delays: Delays | None) -> Self:
        """Return it with delays that were measured; what the job itself says stands."""
        return replace(self, delays=delays) if self.config.measured and delays is not None else self

    def delays_in(self, environment: Environment) -> Delays:
        """Return the delays in an environment.

        Raises:
            ConfigError: If they were to be measured, and nobody has.
        """
        if self.delays is not None:
            return self.delays
        if self.latencies_ms is None:
            raise ConfigError("its latency was to be measured when the run started, and was not")
        return in_time(self.latencies_ms, environment.control_dt)


def job_latency(
    config: LatencyConfig | None,
    directory: Path,
    environment: tuple[EnvironmentBuilder, Any],
    policy: tuple[type[PolicyBase], Mapping[str, Any]],
) -> JobLatency | None:
    """Return how late the answers in a job are, None for a job that does not say; nothing is simulated for it.

    Args:
        config: The job's key ``latency``.
        directory: What a relative path in it starts from.
        environment: What builds the environment, and its options.
        policy: Class of the policy, and its options.

    Raises:
        ConfigError: With everything that is known to be wrong before environment and policy are built.
    """
    if config is None:
        return None
    latency = JobLatency(config=config, latencies_ms=latencies_of(config, directory))
    if config.steps is not None:
        latency = replace(latency, delays=in_steps(*config.steps))
    builder, environment_config = environment
    if not isinstance(builder, SampleBuilder) or config.measured:
        return latency
    try:
        sample = builder.sample(environment_config)
    except EnvironmentBuildError:
        # Its job will tell, and fail alone.
        return latency
    try:
        delays = latency.delays_in(sample)
        problems = refusals(delays, config.meanwhile, sample, traits=_stated(*policy, config.meanwhile))
    finally:
        sample.close()
    if problems:
        raise ConfigError(problems)
    return replace(latency, delays=delays)


def _stated(policy_class: type[PolicyBase], options: Mapping[str, Any], meanwhile: Meanwhile) -> ChunkTraits | None:
    """Return what is known of a policy's chunks before it is built, None for nothing, or where it does not matter."""
    if meanwhile is Meanwhile.WAIT:
        return None
    if not hasattr(policy_class, "chunks"):
        return ONE_STEP
    config = declared_options(policy_class).read(options, owner="policy")
    return policy_class.stated_chunks(config) if isinstance(policy_class, StatesChunks) else None


def late_groups(groups: Sequence[EnvGroup], latency: JobLatency | None, times: QueryTimes) -> Sequence[EnvGroup]:
    """Return the groups of a job's env slots with policies whose answers are late; the groups themselves without.

    Args:
        groups: Environments and policies.
        latency: How late answers are, None for a job that does not say.
        times: Is told how long queries take.

    Raises:
        ConfigError: If they cannot be late there; see `refusals`.
    """
    return groups if latency is None else [_late(group, latency, times) for group in groups]


def _late(group: EnvGroup, latency: JobLatency, times: QueryTimes) -> EnvGroup:
    delays = latency.delays_in(group.environment)
    policy = LatePolicy(group.policy, delays, latency.config.meanwhile, times)
    policy.check_environment(group.environment)
    return replace(group, policy=policy)
