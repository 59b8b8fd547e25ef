"""One Gymnasium environment as plain arrays, its own random generators, and the pictures that it is to draw."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import typing

import numpy as np

if typing.TYPE_CHECKING:
    import gymnasium


# The process-wide random generators, of which each environment of a process has a state of its own.

_PYTHON: typing.Any = random.seed.__self__
"""The object behind the functions of `random`."""

_PUT_BEHIND_NUMPY = getattr(np.random, "set_bit_generator", None)
_BEHIND_NUMPY = getattr(np.random, "get_bit_generator", lambda: None)
"""Puts another generator behind the functions of `numpy.random`, and returns it; NumPy 1.24 has both."""


def _behind_torch() -> typing.Any:
    """Return torch's global generator of the CPU, None where torch is not imported."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


class OwnGenerators:
    """What Python's, NumPy's and torch's global generators are while one environment acts, in a ``with`` block.

    So what an environment draws from them follows from the seed of its episode, whatever else draws in this process;
    `others_kept` around the block brings back everybody else's. NumPy older than 1.24 has one state for a whole
    process, which is enough for one environment in each.
    """

    def __init__(self) -> None:
        self._numpy: typing.Any = np.random.MT19937(0)
        self._python = random.Random(0).getstate()
        self._next = 0
        self._torch: typing.Any = None

    def __enter__(self) -> OwnGenerators:
        random.setstate(self._python)
        if _PUT_BEHIND_NUMPY is not None:
            _PUT_BEHIND_NUMPY(self._numpy)
        torch = _behind_torch()
        if torch is not None:
            torch.manual_seed(0) if self._torch is None else torch.set_state(self._torch)
        return self

    def __exit__(self, *raised: object) -> None:
        self._numpy = _BEHIND_NUMPY()
        # To copy Python's state takes longer than a step of a small environment, and hardly any draws from it: what
        # comes next tells, and is not given to anybody.
        if random.getrandbits(64) != self._next or _PYTHON.gauss_next != self._python[2]:
            self._python = random.getstate()
            self._next = random.getrandbits(64)
        torch = _behind_torch()
        if torch is not None:
            self._torch = torch.get_state()

    def seed(self, seed: int) -> None:
        """Begin an episode; to be called inside the ``with`` block."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: TID251  for environments that draw from nothing else
        torch = _behind_torch()
        if torch is not None:
            torch.manual_seed(seed)


_OTHERS = [OwnGenerators()]
_TURN = threading.RLock()


@contextlib.contextmanager
def others_kept() -> typing.Iterator[None]:
    """Keep what the generators are outside of environments, which take their turns in a ``with`` block.

    One thread's environments at a time are inside, because there is one set of generators.
    """
    with _TURN:
        # An environment may be made of others.
        others = _OTHERS.pop() if _OTHERS else OwnGenerators()
        others.__exit__()
        try:
            yield
        finally:
            others.__enter__()
            _OTHERS.append(others)


# One Gymnasium environment as plain arrays: a flat float32 action in, named arrays out.

_SPACES = frozenset({"Box", "Dict", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Tuple"})
_CONTAINERS = frozenset({"Dict", "Tuple"})
_NUMBER_KINDS = frozenset("biuf")
_MISSING = object()
_NOTHING_TOLD = contextlib.nullcontext()

_OVERSHOOT = 0.1
"""How far numbers may lie beyond the declared bounds, as a share of the declared range."""

_LAST_EXACT = 1 << 24
"""Up to here float32 holds every whole number."""

RATES = ("control_hz", "control_freq", "control_timestep", "dt")
"""Attributes by which environments say how long a control step takes: two in steps per second, two in seconds."""


class SlotStart(typing.NamedTuple):
    """What the reset of one environment gave.

    ``observation`` lacks pictures that were not wanted. ``instruction`` is None where no key for it was given. ``info``
    holds the numbers that are asked for in steps, as far as they are there already. ``error`` says what in the
    observation is not as its space declares; the observation is NaN and black pictures then.
    """

    observation: dict[str, np.ndarray]
    instruction: str | None
    info: dict[str, float]
    error: str | None = None


class SlotStep(typing.NamedTuple):
    """What one step of one environment gave.

    ``observation`` lacks pictures that were not wanted. ``info`` holds the numbers that were asked for, as far as they
    are there; if one of them is not, ``info_names`` is all there is.
    """

    observation: dict[str, np.ndarray]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, float]
    info_names: tuple[str, ...]


class EnvSlot:
    """One environment, which draws from the process-wide random generators as its episode's seed says.

    It may have attributes that Gymnasium does not know: ``metric_keys``, entries of ``info`` that are wanted whoever
    asks; ``hold_action``, which keeps a robot where it is; ``stated_conditions``, plain values that every episode has.

    Attributes:
        environment: What is stepped.

    Args:
        environment: What is stepped.
        info_keys: Which entries of ``info`` are wanted; ``episode.success`` is entry ``success`` of entry ``episode``,
            unless there is one of that whole name.
        drawing: Tells the environment whether its pictures are wanted, None if it always draws them.
        instruction_key: Entry of the ``info`` of a reset, or else text that it observes, or else attribute of the
            environment, that holds the instruction of the episode.
        generators: Those that it was made with.
        checks_ranges: Whether numbers beyond the bounds of their space are errors.

    Raises:
        TypeError: If its actions or observations are of a kind that is not supported.
    """

    def __init__(
        self,
        environment: gymnasium.Env,
        info_keys: typing.Sequence[str],
        drawing: typing.Callable[[bool], contextlib.AbstractContextManager[None]] | None = None,
        instruction_key: str | None = None,
        generators: OwnGenerators | None = None,
        *,
        checks_ranges: bool = True,
    ) -> None:
        self.environment = environment
        self._generators = generators or OwnGenerators()
        self._instruction_key = instruction_key
        self._drawing = drawing
        self._metric_keys = tuple(getattr(environment, "metric_keys", ()))
        self._info_keys = tuple(dict.fromkeys((*info_keys, *self._metric_keys)))
        self._action_space = environment.action_space
        self._native_action = native_action(environment.action_space)
        leaves = [*_leaves(environment.observation_space)]
        self._texts = {".".join(path) or "obs": path for path, space in leaves if kind_of(space) == "Text"}
        if self._texts and instruction_key is None:
            text = next(iter(self._texts))
            raise TypeError(f"observation '{text}' is text; with instruction_key: {text} policies are told it")
        shown = (leaf for leaf in leaves if kind_of(leaf[1]) != "Text")
        self._entries = [_Entry(*leaf, checks_range=checks_ranges) for leaf in shown]
        action_bounds(self._action_space)

    def description(self) -> dict[str, typing.Any]:
        """Return what the environment looks like, as JSON."""
        environment, spec = self.environment, self.environment.spec
        low, high = action_bounds(self._action_space)
        return {
            "observation": {
                entry.name: {"shape": list(entry.shape), "image": entry.is_picture} for entry in self._entries
            },
            "action_low": low.tolist(),
            "action_high": high.tolist(),
            "action_names": action_names(self._action_space),
            "max_episode_length": spec.max_episode_steps if spec is not None else None,
            "nondeterministic": spec is not None and spec.nondeterministic,
            "rates": _rates(environment),
            "renders": environment.render_mode == "rgb_array",
            "draws_on_demand": self._drawing is not None,
            "metric_keys": list(self._metric_keys),
            "info_keys": list(self._info_keys),
            "hold_action": getattr(environment, "hold_action", None),
            "conditions": getattr(environment, "stated_conditions", {}),
        }

    def reset(self, seed: int, *, pictures: bool, options: dict | None = None) -> SlotStart:
        """Start an episode, and observe with or without pictures.

        Raises:
            ValueError: If the instruction of the episode is missing, or no text.
        """
        with self._told(pictures), self._generators:
            self._generators.seed(seed)
            answer = self.environment.reset(seed=seed, options=options)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValueError("reset must return an observation and an info, as Gymnasium has it since 0.26")
        observation, info = answer
        numbers = {key: _plain_number(_entry(info, key)) for key in self._info_keys}
        entries = {key: number for key, number in numbers.items() if number is not None}
        instruction = self._instruction(info, observation)
        try:
            return SlotStart(self._arrays(observation, pictures=pictures), instruction, entries)
        except ValueError as misfit:
            return SlotStart({entry.name: entry.nothing for entry in self._entries}, instruction, entries, str(misfit))

    def step(self, action: np.ndarray, *, pictures: bool) -> SlotStep:
        """Make one step, and observe with or without pictures. Shape of ``action``: (action_dim,), float32.

        Raises:
            ValueError: If what it gives is not what its space or Gymnasium's interface says.
        """
        with self._told(pictures), self._generators:
            answer = self.environment.step(self._native_action(action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError("step must return observation, reward, terminated, truncated and info, as in Gymnasium")
        observation, reward, terminated, truncated, info = answer
        found = {key: _entry(info, key) for key in self._info_keys}
        entries = {key: _number(value, f"info['{key}']") for key, value in found.items() if value is not _MISSING}
        return SlotStep(
            observation=self._arrays(observation, pictures=pictures),
            reward=_number(reward, "the reward"),
            terminated=_truth(terminated, "terminated"),
            truncated=_truth(truncated, "truncated"),
            info=entries,
            info_names=() if len(entries) == len(self._info_keys) else tuple(sorted(_names(info))),
        )

    def render(self) -> np.ndarray:
        """Return what the environment renders of itself. Shape: (height, width, 3), or as it renders, uint8.

        Raises:
            ValueError: If that is no array of whole numbers from 0 to 255.
        """
        with self._generators:
            picture = np.asarray(self.environment.render())
        if picture.dtype.kind not in "iu" or not picture.size or picture.min() < 0 or picture.max() > 255:
            raise ValueError(f"render returned {picture.dtype} of shape {picture.shape}, not whole numbers up to 255")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _instruction(self, info: dict, observation: typing.Any) -> str | None:
        key = self._instruction_key
        if key is None:
            return None
        words = _entry(info, key)
        if words is _MISSING and key in self._texts:
            words = _part(observation, self._texts[key])
        if words is _MISSING:
            try:
                words = self.environment.get_wrapper_attr(key)
            except AttributeError as error:
                raise ValueError(f"instruction_key: neither reset's info nor the environment has '{key}'") from error
        if not isinstance(words, str) or not words:
            raise ValueError(f"instruction_key: '{key}' is {words!r}, not an instruction in words")
        return words

    def _told(self, pictures: bool) -> contextlib.AbstractContextManager[None]:  # noqa: FBT001  passed on
        return _NOTHING_TOLD if self._drawing is None else self._drawing(pictures)

    def _arrays(self, observation: typing.Any, *, pictures: bool) -> dict[str, np.ndarray]:
        arrays = {}
        # An environment may have told numpy to raise what a cast between floats may do.
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            for entry in self._entries:
                if pictures or not entry.is_picture:
                    arrays[entry.name] = entry.read(observation)
                elif self._drawing is None:
                    # It is there, so whether it fits must not depend on who looks.
                    entry.read(observation)
        return arrays


class _Entry:
    """One entry of an observation: where it is, and what its space declares of it.

    Attributes:
        name: What it is called.
        shape: Its shape.
        is_picture: Whether it is a picture, and shown as uint8; everything else is shown as float32.

    Args:
        path: The keys that lead to it.
        space: Its space.
        checks_range: Whether numbers beyond its bounds are errors; what a cast would change is one in any case.
    """

    def __init__(self, path: tuple[str, ...], space: typing.Any, *, checks_range: bool) -> None:
        self.name, self._path = ".".join(path) or "obs", path
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.is_picture = is_image(space)
        self._type = np.dtype(space.dtype)
        bounds = (space.low, space.high) if kind_of(space) == "Box" else _whole_bounds(space)
        low, high = self._declared = [np.asarray(each, np.float64).reshape(self.shape) for each in bounds]
        self._is_any_byte = self.is_picture and not low.any() and bool((high == 255).all())
        self._is_whole = self._type.kind in "iub"
        with np.errstate(all="ignore"):
            if self._is_whole and not self.is_picture:
                least, most = (low, high) if checks_range else (-np.inf, np.inf)
                low, high = np.maximum(least, -_LAST_EXACT), np.minimum(most, _LAST_EXACT)
            elif not self._is_whole:
                # Simulators overshoot what their spaces say by a little.
                slack = np.where(np.isfinite(high - low), _OVERSHOOT * (high - low), 0.0)
                low, high = (low - slack).astype(np.float32), (high + slack).astype(np.float32)
        self._low, self._high = low, high
        is_open = not self._is_whole and bool(np.isinf(low).all() and np.isinf(high).all())
        self._has_range = not is_open and (checks_range or self._is_whole)

    @property
    def nothing(self) -> np.ndarray:
        """What is shown where the entry cannot be read: a black picture, or NaN."""
        return np.zeros(self.shape, np.uint8) if self.is_picture else np.full(self.shape, np.nan, np.float32)

    def read(self, observation: typing.Any) -> np.ndarray:
        """Return what an observation holds here, as it is shown.

        Raises:
            ValueError: If it is missing, or of another shape or type than declared, or outside the declared range.
        """
        try:
            value = _part(observation, self._path)
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the observation lacks '{self.name}', which its space has") from None
        try:
            array = np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"observation '{self.name}' is no array: {error}") from None
        kind = array.dtype.kind
        if kind not in _NUMBER_KINDS:
            raise ValueError(f"observation '{self.name}' holds {array.dtype}, its space says {self._type}")
        if array.shape != self.shape:
            raise ValueError(f"observation '{self.name}' has shape {array.shape}, its space says {self.shape}")
        if self._is_any_byte and array.dtype == np.uint8:
            return array
        if self.is_picture and kind not in "iu":
            raise self._misfit(array, np.ones(self.shape, bool))
        if self._is_whole and kind == "f" and (array != np.rint(array)).any():
            raise self._misfit(array, array != np.rint(array))
        try:
            shown = array if self._is_whole else array.astype(np.float32, copy=False)
        except FloatingPointError:
            raise self._misfit(array, np.abs(array) > np.finfo(np.float32).max) from None
        # NaN is in every range: it is looked for in all env slots at once.
        if self._has_range and ((shown < self._low) | (shown > self._high)).any():
            raise self._misfit(array, (shown < self._low) | (shown > self._high))
        return shown.astype(np.uint8 if self.is_picture else np.float32, copy=False)

    def _misfit(self, array: np.ndarray, outside: np.ndarray) -> ValueError:
        """Return the error that names the first value that does not fit."""
        place = tuple(np.argwhere(outside)[0].tolist())
        value, low, high = array[place], *(each[place] for each in self._declared)
        if self.is_picture or (self._is_whole and array.dtype.kind == "f"):
            hint = ""
        elif self._is_whole and abs(value) > _LAST_EXACT:
            hint = f"; beyond {_LAST_EXACT} whole numbers are not exact in float32, as which observations are shown"
        elif not self._is_whole and abs(value) > np.finfo(np.float32).max:
            hint = "; that is beyond float32, as which observations are shown"
        else:
            hint = "; out_of_range: keep shows such numbers as they are"
        element = list(place) if place else ""
        return ValueError(
            f"observation '{self.name}'{element} is {value!s} as {array.dtype}, its space says {self._type} from "
            f"{low:g} to {high:g}{hint}"
        )


def kind_of(space: typing.Any) -> str | None:
    """Return the name of the supported space that this is, such as ``Box``; None if it is none of them.

    It is known by its name: Gymnasium's spaces, gym's and those of `plain` are made alike.
    """
    return next((each.__name__ for each in type(space).__mro__ if each.__name__ in _SPACES), None)


def is_image(space: typing.Any) -> bool:
    """Whether a space holds pictures: bytes in two dimensions or more."""
    return kind_of(space) == "Box" and space.dtype == np.uint8 and len(space.shape) >= 2


def action_bounds(space: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    """Return lowest and highest value of each element of the flat action, float64; infinite where float32 has none.

    Whole numbers get half a step more on either side, so that a uniform draw takes each of them equally often.

    Raises:
        TypeError: If actions of this kind are not supported, or their bounds are no range that float32 can say.
    """
    if kind_of(space) in _CONTAINERS:
        bounds = [action_bounds(part) for _, part in _parts(space)]
        return np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds])
    is_box = kind_of(space) == "Box"
    bounds = (space.low, space.high) if is_box else _whole_bounds(space)
    low, high = (each.astype(np.float64).reshape(-1) for each in bounds)
    wrong = ~(low <= high)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise TypeError(f"number {place} of actions goes from {low[place]} to {high[place]}, which is no range")
    if not is_box:
        if np.abs([low, high]).max(initial=0) > _LAST_EXACT:
            raise TypeError(f"actions in {space} lie beyond {_LAST_EXACT}, where float32 skips whole numbers")
        return low - 0.5, high + 0.5
    most = float(np.finfo(np.float32).max)
    return np.where(low < -most, -np.inf, low), np.where(high > most, np.inf, high)


def action_names(space: typing.Any, name: str = "") -> list[str] | None:
    """Return the names of the elements of the flat action, None for a space whose parts have none.

    A dict's parts follow each other in the space's own order, which Gymnasium makes the alphabetical one of their keys:
    ``arm.0``, ``arm.1``, ``gripper``. The parts of a tuple are called by their numbers.
    """
    if kind_of(space) in _CONTAINERS:
        parts = [action_names(part, f"{name}.{key}" if name else str(key)) for key, part in _parts(space)]
        return [each for part in parts for each in part or ()]
    size = len(action_bounds(space)[0])
    if not name:
        return None
    return [name] if size == 1 else [f"{name}.{number}" for number in range(size)]


def native_action(space: typing.Any) -> typing.Callable[[np.ndarray], typing.Any]:
    """Return what turns a flat float32 action into one of a space: clipped to the bounds, whole numbers rounded."""
    if kind_of(space) in _CONTAINERS:
        parts = [(key, native_action(part), len(action_bounds(part)[0])) for key, part in _parts(space)]
        is_dict = kind_of(space) == "Dict"

        def put_together(action: np.ndarray) -> typing.Any:
            values, start = {}, 0
            for key, native, size in parts:
                values[key] = native(action[start : start + size])
                start += size
            return values if is_dict else tuple(values.values())

        return put_together
    if kind_of(space) == "Box":
        is_whole, dtype = np.issubdtype(space.dtype, np.integer), space.dtype
        low, high = (each.astype(np.float64 if is_whole else dtype) for each in (space.low, space.high))

        def boxed(action: np.ndarray) -> np.ndarray:
            # Three times as fast as numpy's clip.
            values = np.minimum(np.maximum(action.reshape(low.shape), low), high)
            return (np.rint(values) if is_whole else values).astype(dtype, copy=False)

        return boxed
    low, high = _whole_bounds(space)

    def rounded(action: np.ndarray) -> typing.Any:
        values = np.clip(np.rint(action.astype(np.float64)), low, high)
        return int(values[0]) if kind_of(space) == "Discrete" else values.reshape(space.shape).astype(space.dtype)

    return rounded


def _whole_bounds(space: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    if kind_of(space) == "Discrete":
        start = np.array([space.start], np.float64)
        return start, start + float(space.n) - 1
    if kind_of(space) == "MultiDiscrete":
        start = np.asarray(space.start, np.float64)
        return start.reshape(-1), (start + space.nvec - 1).reshape(-1)
    if kind_of(space) == "MultiBinary":
        size = int(np.prod(space.shape))
        return np.zeros(size), np.ones(size)
    known = "Box, Discrete, MultiDiscrete and MultiBinary are, and dicts and tuples of them"
    raise TypeError(f"actions in {space} are not supported; {known}")


def _parts(space: typing.Any) -> typing.Iterator[tuple[typing.Any, typing.Any]]:
    """Yield the parts of a dict by their keys, those of a tuple by their numbers."""
    return iter(space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces))


def _leaves(space: typing.Any, path: tuple[str, ...] = ()) -> typing.Iterator[tuple[tuple[str, ...], typing.Any]]:
    if kind_of(space) == "Dict":
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif kind_of(space) not in (None, "Tuple"):
        yield path, space
    else:
        raise TypeError(f"observations in {space} are not supported; numbers, arrays and dicts of them are")


def _part(observation: typing.Any, path: tuple[str, ...]) -> typing.Any:
    for key in path:
        observation = observation[key]
    return observation


def _entry(info: dict, key: str) -> typing.Any:
    """Return an entry of ``info`` by its name, or by the names on the way to it, joined with dots."""
    if key in info or "." not in key:
        return info.get(key, _MISSING)
    found: typing.Any = info
    for name in key.split("."):
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    return found


def _names(info: dict, prefix: str = "") -> typing.Iterator[str]:
    """Yield the names by which entries of ``info`` are asked for."""
    for key, value in info.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")


def _plain_number(value: typing.Any) -> float | None:
    """Return a number, None for whatever is none, which a reset may well have to say."""
    try:
        return _number(value, "")
    except (TypeError, ValueError):
        return None


def _number(value: typing.Any, what: str) -> float:
    if isinstance(value, (float, bool)):
        return float(value)
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in _NUMBER_KINDS:
        raise ValueError(f"{what} is {value!r}, not a number")
    return float(number.reshape(()))


def _truth(value: typing.Any, what: str) -> bool:
    """Return whether something is true. None is not: wrappers say so of what they do not know."""
    if value is None or isinstance(value, bool):
        return bool(value)
    number = _number(value, what)
    if number not in (0.0, 1.0):
        raise ValueError(f"{what} is {value!r}, neither true nor false")
    return number == 1.0


def _rates(environment: gymnasium.Env) -> dict[str, float]:
    """Return what an environment says of the time between its steps, under the names by which it says it.

    The outermost wrapper that says something is believed. Of Gymnasium's own environments it is known that ``dt`` is
    the time of a step, and that ``render_fps`` may be another one, as in Pendulum.
    """
    inner = environment.unwrapped
    layers: list[typing.Any] = [environment]
    while layers[-1] is not inner:
        layers.append(getattr(layers[-1], "env", inner))
    said = {name: next(filter(_is_rate, (getattr(each, name, None) for each in layers)), None) for name in RATES}
    said["render_fps"] = (environment.metadata or {}).get("render_fps")
    rates = {name: float(np.asarray(value).reshape(())) for name, value in said.items() if _is_rate(value)}
    if "dt" in rates and type(inner).__module__.startswith("gymnasium.envs."):
        return {"control_timestep": rates["dt"]}
    return rates


def _is_rate(value: typing.Any) -> bool:
    array = np.asarray(value)
    return array.size == 1 and array.dtype.kind in "iuf" and bool(0.0 < array.reshape(()) < np.inf)


# Tells an environment before each reset and step whether its pictures are wanted, where it can leave them out.

HOOK = "draw_pictures"
"""The method, of an environment or a wrapper, that is told whether the pictures of what comes next are wanted."""

ROBOSUITE_HOOK = "robosuite_cameras"
"""The method of an environment around one of robosuite that returns it, and which observables it shows as pictures.

It may return a third thing: packages beside robosuite whose observables do not depend on pictures.
"""

Drawing = typing.Callable[[bool], "contextlib.AbstractContextManager[None]"]
"""Around a reset or a step: whether the pictures that it returns are wanted."""

# What `gymnasium.make` puts around an environment. Other wrappers may keep pictures, and show them later.
_TRANSPARENT = frozenset({"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"})

_CLOCK_TOLERANCE_S = 1e-9


def drawing_of(environment: gymnasium.Env) -> Drawing | None:
    """Return what tells an environment whether its pictures are wanted, None if it always draws them."""
    layer: typing.Any = environment
    while type(layer).__name__ in _TRANSPARENT and type(layer).__module__.startswith("gymnasium.wrappers."):
        layer = layer.env
    if callable(getattr(type(layer), HOOK, None)):
        return functools.partial(_telling, layer)
    if callable(getattr(type(layer), ROBOSUITE_HOOK, None)):
        return _on_demand(*getattr(layer, ROBOSUITE_HOOK)())
    if not _is_robosuite(layer) or kind_of(layer.observation_space) != "Dict":
        return None
    names = [name for name, space in layer.observation_space.spaces.items() if space.dtype == np.uint8]
    return _on_demand(layer.unwrapped, names)


def _on_demand(
    environment: typing.Any, names: typing.Sequence[str], trusted: typing.Sequence[str] = ()
) -> Drawing | None:
    cameras = RobosuiteCameras(environment, names, trusted)
    return cameras.drawing if cameras.names else None


class RobosuiteCameras:
    """The cameras of a robosuite environment, whose sensors draw only where a picture is wanted.

    robosuite reads a camera at one of the physics steps inside a control step, so a picture cannot be drawn afterwards.
    Switching an observable off resets its clock, and later pictures are others. So observables stay on, and only their
    sensors return the last picture again.

    Args:
        environment: The innermost environment, without wrappers.
        names: Observables that are observed as pictures.
        trusted: Packages beside robosuite whose observables do not depend on pictures.
    """

    def __init__(
        self, environment: typing.Any, names: typing.Sequence[str], trusted: typing.Sequence[str] = ()
    ) -> None:
        self._trusted = {"robosuite", *trusted}
        self._environment = environment
        self._wanted = True
        self._sensors: dict[str, typing.Any] = {}
        self._is_drawn: dict[str, bool] = {}
        self.names = [name for name in names if self._can_wait(name)]

    @contextlib.contextmanager
    def drawing(self, wanted: bool) -> typing.Iterator[None]:  # noqa: FBT001  the one thing that is told
        """Say whether the pictures of the reset or step inside the ``with`` block are wanted.

        Raises:
            RuntimeError: If they are, and robosuite read a camera too early for it.
        """
        # A new sensor is tried once; that needs no picture.
        self._wanted = False
        for name in self.names:
            self._replace_sensor(name)
        self._wanted = wanted
        yield
        for name in self.names if wanted else ():
            is_ours = self._environment._observables[name]._sensor is self._sensors[name]
            if is_ours and not self._is_drawn[name]:
                raise RuntimeError(
                    f"robosuite did not read '{name}' in this step; --eager_pictures draws every picture"
                )

    def _can_wait(self, name: str) -> bool:
        """Return whether nothing but the picture depends on a sensor, and each control step reads it."""
        observables = self._environment._observables
        if name not in observables or name.replace("_image", "_depth") in observables.keys() - {name}:
            return False
        if not all(_package(each._sensor) in self._trusted for each in observables.values()):
            return False
        off_s = observables[name]._sampling_timestep - self._environment.control_timestep
        return abs(off_s) < _CLOCK_TOLERANCE_S

    def _replace_sensor(self, name: str) -> None:
        """Put a sensor that draws only if it is wanted where there is none: a reset may bring new ones."""
        observable = self._environment._observables[name]
        if observable._sensor is self._sensors.get(name):
            return
        sensor, last = observable._sensor, observable.obs

        @functools.wraps(sensor)
        def draw_if_wanted(cache: dict) -> typing.Any:
            nonlocal last
            if self._wanted:
                last = sensor(cache)
            self._is_drawn[name] = self._wanted
            return last

        self._sensors[name] = draw_if_wanted
        self._environment.modify_observable(name, "sensor", draw_if_wanted)
        self._is_drawn[name] = True


@contextlib.contextmanager
def _telling(layer: typing.Any, wanted: bool) -> typing.Iterator[None]:  # noqa: FBT001  as the hook has it
    getattr(layer, HOOK)(wanted)
    yield


def _is_robosuite(layer: typing.Any) -> bool:
    """Return whether this is an environment of robosuite, around which each layer takes steps as robosuite wrote it."""
    inner = layer.unwrapped
    while _steps_as_robosuite(layer) and layer is not inner:
        layer = layer.env
    return layer is inner and _steps_as_robosuite(inner) and isinstance(getattr(inner, "_observables", None), dict)


def _steps_as_robosuite(layer: typing.Any) -> bool:
    methods = [getattr(type(layer), name, None) for name in ("step", "_flatten_obs")]
    return methods[0] is not None and all(_package(each) == "robosuite" for each in methods if each is not None)


def _package(thing: typing.Any) -> str:
    return thing.__module__.partition(".")[0]
