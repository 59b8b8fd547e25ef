"""What makes and changes environments: builders, variations of their worlds, wrappers, and work in other processes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.errors import Problem
from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, draw_uniform
from isaaclab_arena.interfaces.specs import Observation

# Describe an environment in a few words, for lists and documents, without simulating anything.


@dataclass(frozen=True, kw_only=True)
class EnvironmentSummary:
    """The facts that a person needs to choose an environment."""

    instruction: str  # for policies, with its default options
    success: str  # the conditions of success and of failure
    episode_length: int  # control steps until an episode is cut
    episode_s: float  # the same as time [s]
    embodiments: tuple[str, ...]  # registered robots that it accepts
    objects: tuple[str, ...] = ()  # registered objects that it accepts, empty without that option


# The contract of builders of environments.

_SAYS = {"has_backends": "faster_backend", "counts_episodes": "num_episodes", "loads_code": "foreign_code"}
"""The attributes of a builder that say if it has a method of its own."""


class EnvironmentBuilder:
    """The object behind a registered environment name: it checks options and builds environments.

    Any object with ``config_class``, `check` and `build` serves; whatever else it has of the methods below is used too.
    Every ``config`` but that of `check` is an instance of ``config_class`` that `check` has accepted.

    Attributes:
        config_class: Frozen dataclass of the options, which are the keys of ``arena_env_args`` other than those of
            every environment (``environment``, ``num_envs``, ``env_spacing``, ``placement_seed``). It has a field
            ``enable_cameras`` if the environment can show policies the pictures of its cameras.
        has_backends: Whether the option ``backend`` chooses the way of simulation, as it does if there is a
            `faster_backend`: that replaces ``auto``, so that all ranks build the same.
        counts_episodes: Whether there is a `num_episodes`.
        loads_code: Whether there is a `foreign_code`: options may name a module to import or a program to run.
        variations_take_time: Whether `variations` makes an environment, so that it is called only for one of them.

    A builder may also have a method ``summary()`` without arguments, whose `EnvironmentSummary` is what
    `isaaclab-arena list environments` shows.
    """

    config_class: Any
    has_backends: bool = False
    counts_episodes: bool = False
    loads_code: bool = False
    variations_take_time: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A method that is set to None gets the default back: it is not offered.
        defaults = {name: each for name, each in vars(EnvironmentBuilder).items() if not name.startswith("_")}
        for name in [name for name, value in vars(cls).items() if value is None and callable(defaults.get(name))]:
            setattr(cls, name, defaults[name])
        for name, method in _SAYS.items():
            setattr(cls, name, getattr(cls, method) is not getattr(EnvironmentBuilder, method))

    @property
    def own(self) -> object:
        """The object that was registered: this one, or the one that `completed` added the defaults to."""
        return vars(self).get("completes", self)

    def check(self, config: Any) -> None:
        """Refuse options that cannot work together, before any simulation.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> Environment:
        """Build the environment. A builder with variations also takes ``variations``, a tuple of those that are on.

        Args:
            config: The options.
            num_envs: Number of env slots.
            device: Device of observations and actions.
            num_threads: Threads that the physics may use.
        """
        raise NotImplementedError

    def sample(self, config: Any) -> Environment | None:
        """Return one env slot on the CPU, made in milliseconds, for its specs; it is never reset, but closed.

        Its ``observation_spec`` has the pictures that the options ask for, though nothing is ready to render them.
        """

    def task_name(self, config: Any) -> str | None:
        """Return the task in the words for policies, unless conditions or the job give others."""

    def robot_name(self, config: Any) -> str | None:
        """Return the name of the robot in results, whatever name a job gives it."""

    def num_episodes(self, config: Any) -> int | None:
        """Return the number of episodes of a benchmark: a job that gives none plays all, and none may play more."""

    def paying_num_envs(self, config: Any, *, num_threads: int) -> int:
        """Return the number of env slots beyond which more of them save little time, on so many threads."""
        return 1

    def variations(self, config: Any) -> "tuple[Variation, ...]":
        """Return all variations of the environment, switched off, with their default ranges."""
        return ()

    def content_sources(self, config: Any) -> ContentSources | None:
        """Return the sources that determine the environment's behaviour, if `sources_in_options` misses any."""

    def foreign_code(self, config: Any) -> Sequence[Problem]:
        """Return a problem per option that names code which no package has announced; imports and runs nothing."""
        return ()

    def faster_backend(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: "tuple[Variation, ...]" = (),
    ) -> str:
        """Return the value of ``backend`` that is the fastest on this machine; see `build`.

        Raises:
            EnvironmentBuildError: If it cannot be built.
        """
        raise TypeError(f"{type(self).__name__} has no backends to choose from")


def completed(builder: Any) -> EnvironmentBuilder:
    """Return a builder with the defaults that it lacks; itself if it derives from `EnvironmentBuilder`."""
    if isinstance(builder, EnvironmentBuilder):
        return builder
    whole = EnvironmentBuilder()
    defaults = {"config_class": None, "summary": None, **vars(EnvironmentBuilder)}
    # A class that serves as a builder has the defaults too, unbound; and None says that something is not offered.
    found = {name: getattr(builder, name, None) for name in defaults if not name.startswith("_")}
    own = {name: each for name, each in found.items() if each is not None and each is not defaults[name]}
    vars(whole).update(own)
    for name, method in _SAYS.items():
        vars(whole)[name] = method in vars(whole) if found[name] is None else found[name]
    vars(whole).update(completes=builder)
    return whole


# The contract of a variation: a property of an episode's world that a job may vary, and its sampler.


class SamplerType(StrEnum):
    """The distribution of a value.

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
    """The distribution of a variation's value; checked, so that `draw` cannot fail.

    Attributes:
        type: Kind of the distribution.
        low: Lowest value of each component, for uniform and Bernoulli.
        high: Highest value of each component.
        choices: Possible values; each has as many components as ``low``, or is a text.
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
        """All its numbers: the ends of its range, or its choices."""
        chosen = (part for choice in self.choices if not isinstance(choice, str) for part in choice)
        return (*self.low, *self.high, *chosen)

    @property
    def span(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The least and the greatest value of each component that it may draw; nothing for texts."""
        ends = [choice for choice in (self.low, self.high, *self.choices) if choice and not isinstance(choice, str)]
        return tuple(map(min, zip(*ends, strict=False))), tuple(map(max, zip(*ends, strict=False)))

    def draw(self, generator: np.random.Generator, episode_index: int) -> tuple[float, ...] | str:
        """Draw a value from an episode's stream; ``episode_index`` is for choices in turn."""
        # The same numbers of the stream serve every range, so a wider range stretches the draws.
        if self.type is SamplerType.UNIFORM:
            return draw_uniform(generator, self.low, self.high)
        if self.type is SamplerType.BERNOULLI:
            return self.high if generator.random() < self.p else self.low
        if self.type is SamplerType.SEQUENTIAL_CHOICE:
            return self.choices[episode_index % len(self.choices)]
        probabilities = self.probabilities or (1 / len(self.choices),) * len(self.choices)
        passed = int(np.searchsorted(np.cumsum(probabilities), generator.random(), side="right"))
        return self.choices[min(passed, len(self.choices) - 1)]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A property that may vary from episode to episode; off unless a job enables it.

    Attributes:
        asset: The owner of the property: an object, ``light``, ``table``, a camera, ``action``, ``observation``.
        name: The property that varies.
        unit: Unit of the value, empty if it has none.
        description: The effect, in one line.
        sampler: The distribution of the value.
        minimum: Least value that makes sense.
        maximum: Greatest value that makes sense.
        lowest: Least value of each component, if they differ.
        highest: Greatest value of each component, likewise.
        because: The reason for ``lowest`` and ``highest``.
        sizes: Numbers of components that a value may have.
        nominal: The value that changes nothing, empty if the task draws the value itself.
        integer: Whether it is a whole number.
        is_direction: Whether only the direction of the vector matters, so that zero is no value.
        enabled: Whether it is on.
        is_drawn_anyway: Whether every episode has it among its conditions, on or off.
        companions: Further keys that an episode's conditions may have because of it.
        between: Whether it changes only what passes between the environment and its policy, and is applied there.
        changes: Returns its effect on a world's model, for the compiled `mujoco.MjModel` and the drawn value: field
            and entry to new value, see `isaaclab_arena.sim.backend.ModelChange`. None if the environment applies it.
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
    between: bool = False
    changes: Callable[[Any, Any], Mapping[tuple[str, int], Any]] | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """Arena's name of it, ``<asset>.<name>``, which is also its key among an episode's conditions."""
        return f"{self.asset}.{self.name}"

    def problem_with(self, value: ConditionValue) -> str | None:
        """Return the reason why this variation cannot have a value, None if it can."""
        if isinstance(value, str):
            texts = [choice for choice in self.sampler.choices if isinstance(choice, str)]
            return None if value in texts else f"must be {' or '.join(texts) if texts else 'a number'}, got {value!r}"
        wrong = self.wrong_with(value if isinstance(value, tuple) else (value,))
        return None if wrong is None else f"{wrong}, got {value!r}"

    def wrong_with(self, parts: Sequence[float]) -> str | None:
        """Return the fault of the numbers of a value, None if there is none."""
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


def spelled(variations: tuple[Variation, ...]) -> Mapping[str, Any]:
    """Return variations that are on as a job would spell them out, flat: ``cube.mass.sampler_cfg.low`` and so on."""
    flat: dict[str, Any] = {}
    for variation in variations:
        sampler = variation.sampler
        flat[f"{variation.key}.enabled"] = variation.enabled
        flat[f"{variation.key}.sampler_cfg.type"] = str(sampler.type)
        if sampler.type in (SamplerType.UNIFORM, SamplerType.BERNOULLI):
            for name, ends in (("low", sampler.low), ("high", sampler.high)):
                flat[f"{variation.key}.sampler_cfg.{name}"] = ends[0] if len(ends) == 1 else list(ends)
        else:
            flat[f"{variation.key}.sampler_cfg.choices"] = [
                choice if isinstance(choice, str) else choice[0] if len(choice) == 1 else list(choice)
                for choice in sampler.choices
            ]
        if sampler.type is SamplerType.CATEGORICAL:
            flat[f"{variation.key}.sampler_cfg.probabilities"] = list(sampler.probabilities)
        if sampler.type is SamplerType.BERNOULLI:
            flat[f"{variation.key}.sampler_cfg.p"] = sampler.p
    return flat


def sampler_in_words(sampler: Sampler) -> str:
    """Return a sampler in a few words: `0.05 to 0.2`, `one of 1, 2`."""

    def shown(values: tuple[float, ...]) -> str:
        numbers = ", ".join(f"{value:.4g}" for value in values)
        return numbers if len(values) < 2 else f"({numbers})"

    low, high = shown(sampler.low), shown(sampler.high)
    if sampler.type is SamplerType.UNIFORM:
        return low if low == high else f"{low} to {high}"
    if sampler.type is SamplerType.BERNOULLI:
        return f"{high} with probability {sampler.p:g}, else {low}"
    choices = ", ".join(choice if isinstance(choice, str) else shown(choice) for choice in sampler.choices)
    return f"{choices} in turn" if sampler.type is SamplerType.SEQUENTIAL_CHOICE else f"one of {choices}"


# An environment around another one, of which a subclass changes some answers.


class _OfReal:
    """An attribute of the wrapped environment, hidden by one that the wrapper sets itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.real, self._name)


class EnvironmentWrapper(Environment):
    """A wrapper of another environment; a subclass changes some of its answers.

    The wrapper has the other environment's attributes outside of the contract too: a policy may use them. The quicker
    ways ``try_step`` and ``background`` are not passed on, since they would bypass the wrapper's own ``step`` and
    ``reset``. A subclass sets other methods to None that it does not pass on. One that closes the other environment
    says so.

    Args:
        real: The wrapped environment.
    """

    draw_conditions: Any = _OfReal()
    vary_conditions: Any = _OfReal()
    instruction: Any = _OfReal()
    provenance: Any = _OfReal()
    render_s: Any = _OfReal()
    step_again: Any = _OfReal()
    solved_at_start: Any = _OfReal()
    start_errors: Any = _OfReal()
    begin_events: Any = _OfReal()
    episode_events: Any = _OfReal()
    state: Any = _OfReal()
    state_parts: Any = _OfReal()
    state_of: Any = _OfReal()
    episode_states: Any = _OfReal()
    restore: Any = _OfReal()
    snapshot: Any = _OfReal()
    restore_snapshot: Any = _OfReal()
    draw_pictures_of: Any = _OfReal()
    pictures_drawn: Any = _OfReal()
    load_renderer: Any = _OfReal()
    filmable: Any = _OfReal()
    filming_hint: Any = _OfReal()
    films_only_drawn: Any = _OfReal()
    film: Any = _OfReal()
    film_later: Any = _OfReal()

    def __init__(self, real: Environment) -> None:
        self.real = real
        self.num_envs, self.device, self.reproducible = real.num_envs, real.device, real.reproducible
        self.observation_spec, self.action_spec = real.observation_spec, real.action_spec
        self.task_description, self.max_episode_length = real.task_description, real.max_episode_length
        self.control_dt, self.hold_action, self.metrics = real.control_dt, real.hold_action, real.metrics

    def __getattr__(self, name: str) -> Any:
        if name == "real":  # which a copy has not yet while it is made
            raise AttributeError(name)
        return getattr(self.real, name)


# The work of an environment that other processes do.


class Background(ABC):
    """The work of an environment that other processes do, while this one does something else.

    Attributes:
        steps_while_starting: Control steps that other env slots make before a reset is waited for; 0 if resets are not
            begun early. Env slots whose reset was begun rest until it is finished.
    """

    steps_while_starting: int = 0

    @abstractmethod
    def begin_step(self, action: torch.Tensor) -> None:
        """Begin the step that `Environment.step` would make. Shape of ``action``: (num_envs, action_dim).

        Until `finish_step` nothing is asked of the environment.
        """

    @abstractmethod
    def finish_step(self) -> Step:
        """Wait for the step that was begun, and return it."""

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Begin the reset that `Environment.reset` would make."""
        raise NotImplementedError

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        """Wait for the resets of these env slots, ascending, and return the observation of all; others may go on."""
        raise NotImplementedError


def background_of(environment: Any) -> Background | None:
    """Return an environment's work elsewhere, None without; an environment may use the name for something else."""
    background = environment.background
    return background if isinstance(background, Background) else None
