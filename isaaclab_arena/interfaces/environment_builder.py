"""The contracts of what builds environments, and the description of an environment in a few words."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from isaaclab_arena.interfaces.environment import Environment

# Describe an environment in a few words, for lists and documents, without simulating anything.


@dataclass(frozen=True, kw_only=True)
class EnvironmentSummary:
    """What a person wants to know before choosing an environment.

    Attributes:
        instruction: What it asks for with its default options, in the words a policy is told.
        success: When it counts as solved, and when as lost.
        episode_length: Control steps until an episode is cut.
        episode_s: The same as time [s].
        embodiments: Registered robots that it can be built with.
        objects: Registered objects that it can be built with, empty for an environment without that option.
    """

    instruction: str
    success: str
    episode_length: int
    episode_s: float
    embodiments: tuple[str, ...]
    objects: tuple[str, ...] = ()


def described_success(thing: object) -> str:
    """Return what the docstring of a thing's class says, as one line."""
    return " ".join((inspect.getdoc(type(thing)) or "").split())


# The contracts of what builds environments: what every builder does, and what a builder may offer beside it.


class EnvironmentBuilder(Protocol):
    """What a registered environment name stands for: it checks options and builds environments.

    Attributes:
        config_class: Frozen dataclass of the options, which are the keys of ``arena_env_args`` other than those of
            every environment (``environment``, ``num_envs``, ``env_spacing``, ``placement_seed``). It has a field
            ``enable_cameras`` if the environment can show policies what its cameras see.

    A builder may have a method ``summary()`` without arguments, whose result `isaaclab-arena list environments` shows;
    see `isaaclab_arena.interfaces.environment_builder.EnvironmentSummary`.
    """

    config_class: type

    def check(self, config: Any) -> None:
        """Refuse options that cannot work together, before any simulation.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> Environment:
        """Build the environment.

        Args:
            config: An instance of ``config_class``.
            num_envs: Number of env slots.
            device: Where observations live and actions are expected.
            num_threads: Threads that the physics may use.
        """
        ...


@runtime_checkable
class SimulatedBuilder(Protocol):
    """A builder whose environments can be simulated in several ways, as the option ``backend`` of its config says.

    ``auto`` leaves that open. What is then settled replaces it in the config, so that all who build it build the same.
    """

    def faster_backend(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: Sequence[Any] = (),
    ) -> str:
        """Return the value of ``backend`` that is the fastest on this machine.

        Args:
            config: An instance of the builder's ``config_class`` that `EnvironmentBuilder.check` has accepted.
            num_envs: Number of env slots.
            device: The rank's device.
            num_threads: Threads that the physics may use.
            variations: Those that are on; see `isaaclab_arena.interfaces.variation`.

        Raises:
            EnvironmentBuildError: If it cannot be built.
        """
        ...


@runtime_checkable
class SampleBuilder(Protocol):
    """A builder that makes one env slot in milliseconds, so that sizes can be compared before a run starts."""

    def sample(self, config: Any) -> Environment:
        """Return an environment of one env slot on the CPU, to be asked for its specs and closed.

        Its ``observation_spec`` has the pictures that the options ask for, though nothing is made ready to render them,
        which takes seconds. It is never reset.

        Args:
            config: An instance of the builder's ``config_class`` that `EnvironmentBuilder.check` has accepted.
        """
        ...


@runtime_checkable
class TaskBuilder(Protocol):
    """A builder that knows what is to be done in its environments."""

    def task_name(self, config: Any) -> str:
        """Return what is to be done, in the words that policies are told unless conditions or the job say others.

        Args:
            config: An instance of the builder's ``config_class`` that `EnvironmentBuilder.check` has accepted.
        """
        ...


@runtime_checkable
class RobotBuilder(Protocol):
    """A builder that knows what results call the robot of its environments, whatever a job names it by."""

    def robot_name(self, config: Any) -> str:
        """Return the name of the robot.

        Args:
            config: An instance of the builder's ``config_class`` that `EnvironmentBuilder.check` has accepted.
        """
        ...


@runtime_checkable
class CountedBuilder(Protocol):
    """A builder whose environments have a certain number of episodes, as the protocol of a benchmark says."""

    def num_episodes(self, config: Any) -> int | None:
        """Return how many there are; a job that names no number plays all of them, and none may play more.

        None where there are as many as a job asks for.

        Args:
            config: An instance of the builder's ``config_class`` that `EnvironmentBuilder.check` has accepted.
        """
        ...
