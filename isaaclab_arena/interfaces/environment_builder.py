"""The contracts of what builds environments, and of what a job may let vary in their worlds."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import ConditionValue

# The contracts of what builds environments, and the description of an environment in a few words.

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
            variations: Those that are on; see `isaaclab_arena.interfaces.environment_builder`.

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


# The contract of a variation: something about an episode's world that a job may let vary, and how it is drawn.


class SamplerType(StrEnum):
    """How a value is drawn.

    ``UNIFORM``: between low and high, each component on its own. ``CHOICE``: one of the choices, all as likely.
    ``CATEGORICAL``: one of the choices, with probabilities. ``SEQUENTIAL_CHOICE``: the choices in turn, by the
    episode's index. ``BERNOULLI``: high with probability p, else low.
    """

    UNIFORM = "uniform"
    CHOICE = "choice"
    CATEGORICAL = "categorical"
    SEQUENTIAL_CHOICE = "sequential_choice"
    BERNOULLI = "bernoulli"


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How the value of a variation is drawn; checked, so that `draw` cannot fail.

    Attributes:
        type: How.
        low: Lowest value of each component, for uniform and Bernoulli.
        high: Highest value of each component.
        choices: What is chosen from; each entry has as many components as ``low``, or is a text.
        probabilities: Of each choice, summing to 1, for a categorical one.
        p: Probability of ``high``, for a Bernoulli one.
    """

    type: SamplerType = SamplerType.UNIFORM
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    choices: tuple[tuple[float, ...] | str, ...] = ()
    probabilities: tuple[float, ...] = ()
    p: float = 0.5

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that it is made of: the ends of its range, or its choices."""
        chosen = (part for choice in self.choices if not isinstance(choice, str) for part in choice)
        return (*self.low, *self.high, *chosen)

    @property
    def span(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The least and the greatest value of each component that it may draw; nothing for texts."""
        ends = [choice for choice in (self.low, self.high, *self.choices) if choice and not isinstance(choice, str)]
        return tuple(map(min, zip(*ends, strict=False))), tuple(map(max, zip(*ends, strict=False)))

    def draw(self, generator: np.random.Generator, episode_index: int) -> tuple[float, ...] | str:
        """Draw a value; the same numbers of the stream serve every range, so a wider range stretches the draws.

        Args:
            generator: The stream of this variation in this episode.
            episode_index: Position of the episode in its job, for choices in turn.
        """
        if self.type is SamplerType.UNIFORM:
            shares = generator.random(len(self.low))
            return tuple(
                float(low + (high - low) * share) for low, high, share in zip(self.low, self.high, shares, strict=True)
            )
        if self.type is SamplerType.BERNOULLI:
            return self.high if generator.random() < self.p else self.low
        if self.type is SamplerType.SEQUENTIAL_CHOICE:
            return self.choices[episode_index % len(self.choices)]
        probabilities = self.probabilities or (1 / len(self.choices),) * len(self.choices)
        passed = int(np.searchsorted(np.cumsum(probabilities), generator.random(), side="right"))
        return self.choices[min(passed, len(self.choices) - 1)]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Something that may vary from episode to episode; off unless a job enables it.

    Attributes:
        asset: What it hangs on: an object, ``light``, ``table``, a camera, ``action``, ``observation``.
        name: What of it varies.
        unit: Unit of the value, empty where it has none.
        description: What it does, in one line.
        sampler: How it is drawn.
        minimum: Least value that makes sense.
        maximum: Greatest value that makes sense.
        lowest: Least value of each component, where that is not the same for all.
        highest: Greatest value of each component, likewise.
        because: Why there is no going beyond ``lowest`` and ``highest``.
        sizes: Numbers of components that a value may have.
        nominal: The value that changes nothing, empty where the task draws the value itself.
        integer: Whether it is a whole number.
        is_direction: Whether it is a vector of which only the direction matters, so that zero is none.
        enabled: Whether it is on.
        is_drawn_anyway: Whether every episode has it among its conditions, on or off.
        companions: Further keys that an episode's conditions may have because of it.
    """

    asset: str
    name: str
    unit: str
    description: str
    sampler: Sampler
    minimum: float = float("-inf")
    maximum: float = float("inf")
    lowest: tuple[float, ...] = ()
    highest: tuple[float, ...] = ()
    because: str = ""
    sizes: tuple[int, ...] = (1,)
    nominal: tuple[float, ...] = ()
    integer: bool = False
    is_direction: bool = False
    enabled: bool = False
    is_drawn_anyway: bool = False
    companions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Arena's name of it, ``<asset>.<name>``, which is also its key among an episode's conditions."""
        return f"{self.asset}.{self.name}"

    def problem_with(self, value: ConditionValue) -> str | None:
        """Return why a value cannot be one of this variation's, None if it can.

        Args:
            value: What an episode is to have.
        """
        if isinstance(value, str):
            texts = [choice for choice in self.sampler.choices if isinstance(choice, str)]
            return None if value in texts else f"must be {' or '.join(texts) if texts else 'a number'}, got {value!r}"
        wrong = self.wrong_with(value if isinstance(value, tuple) else (value,))
        return None if wrong is None else f"{wrong}, got {value!r}"

    def wrong_with(self, parts: Sequence[float]) -> str | None:
        """Return what is wrong with the numbers of a value, None if nothing is."""
        if len(parts) not in self.sizes:
            return f"has {len(parts)} numbers; '{self.key}' has {' or '.join(map(str, self.sizes))}"
        if self.integer and any(part != math.floor(part) for part in parts):
            return "must be a whole number"
        if not all(self.minimum <= part <= self.maximum for part in parts):
            return f"must be {self.minimum:g} to {self.maximum:g}"
        for number, (part, low, high) in enumerate(zip(parts, self.lowest, self.highest, strict=False), start=1):
            if not low <= part <= high:
                return f"number {number} must be {low:g} to {high:g}, {self.because}"
        return "must not be all zeros" if self.is_direction and not any(parts) else None

    def draw(self, generator: np.random.Generator, episode_index: int) -> ConditionValue:
        """Draw the value of one episode: a number, a whole number, a text, or a tuple of several numbers."""
        if self.integer and self.sampler.type is SamplerType.UNIFORM:
            low, high = round(self.sampler.low[0]), round(self.sampler.high[0])
            return min(high, low + int((high - low + 1) * generator.random()))
        value = self.sampler.draw(generator, episode_index)
        if isinstance(value, str):
            return value
        if self.sizes != (1,):
            return value
        return round(value[0]) if self.integer else value[0]


@runtime_checkable
class VariableEnvironmentBuilder(Protocol):
    """An `EnvironmentBuilder` whose environments have variations."""

    def variations(self, config: Any) -> tuple[Variation, ...]:
        """Return everything that may vary in the environment, switched off, with its default range.

        Args:
            config: An instance of the builder's ``config_class`` that `check` has accepted.
        """
        ...

    def build(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: tuple[Variation, ...] = (),
    ) -> Environment:
        """Build the environment; see `EnvironmentBuilder.build`.

        Args:
            config: An instance of ``config_class``.
            num_envs: Number of env slots.
            device: Where observations live and actions are expected.
            num_threads: Threads that the physics may use.
            variations: Those that are on.
        """
        ...


def spelled(variations: tuple[Variation, ...]) -> Mapping[str, Any]:
    """Return variations that are on as a job would spell them out, flat: ``cube.mass.sampler_cfg.low`` and so on."""
    flat: dict[str, Any] = {}
    for variation in variations:
        sampler = variation.sampler
        flat[f"{variation.key}.enabled"] = variation.enabled
        flat[f"{variation.key}.sampler_cfg.type"] = str(sampler.type)
        if sampler.type in (SamplerType.UNIFORM, SamplerType.BERNOULLI):
            flat[f"{variation.key}.sampler_cfg.low"] = _brief(sampler.low)
            flat[f"{variation.key}.sampler_cfg.high"] = _brief(sampler.high)
        else:
            flat[f"{variation.key}.sampler_cfg.choices"] = [
                choice if isinstance(choice, str) else _brief(choice) for choice in sampler.choices
            ]
        if sampler.type is SamplerType.CATEGORICAL:
            flat[f"{variation.key}.sampler_cfg.probabilities"] = list(sampler.probabilities)
        if sampler.type is SamplerType.BERNOULLI:
            flat[f"{variation.key}.sampler_cfg.p"] = sampler.p
    return flat


def _brief(values: tuple[float, ...]) -> Any:
    return values[0] if len(values) == 1 else list(values)
