"""The contract of a variation: something about an episode's world that a job may let vary, and how it is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import ConditionValue


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
