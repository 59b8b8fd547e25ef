"""One Gymnasium environment as plain arrays, its own random generators, and the pictures that it is to draw."""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import sys
import threading
import typing

import numpy as np

from . import model_changes  # noqa: TID252  beside this file, whatever package imports it

if typing.TYPE_CHECKING:
    import gymnasium


# Give each environment of a process its own state of the process-wide random generators.

_PYTHON: typing.Any = random.seed.__self__  # the object behind the functions of `random`

_PUT_BEHIND_NUMPY = getattr(np.random, "set_bit_generator", None)
_BEHIND_NUMPY = getattr(np.random, "get_bit_generator", lambda: None)
"""Puts another generator behind the functions of `numpy.random`, and returns it; NumPy 1.24 has both."""


def _behind_torch() -> typing.Any:
    """Return torch's global CPU generator, None if torch is not imported."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


class OwnGenerators:
    """Python's, NumPy's and torch's global generators while one environment acts, in a ``with`` block."""

    def __init__(self) -> None:
        # An environment's draws depend on its episode's seed alone, not on other draws in this process. `others_kept`
        # around the block restores the other states. NumPy older than 1.24 has one state per process, which is enough
        # for one environment in each.
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
        # A copy of Python's state takes longer than a step of a small environment, and few draw from it. So the next
        # draw, which no environment sees, shows if the state changed.
        if random.getrandbits(64) != self._next or _PYTHON.gauss_next != self._python[2]:
            self._python = random.getstate()
            self._next = random.getrandbits(64)
        torch = _behind_torch()
        if torch is not None:
            self._torch = torch.get_state()


_OTHERS = [OwnGenerators()]
_TURN = threading.RLock()


@contextlib.contextmanager
def others_kept() -> typing.Iterator[None]:
    """Restore the generators' outer states after the ``with`` block, in which environments take turns."""
    # One thread at a time, because there is one set of generators.
    with _TURN:
        # Nested, because an environment may be made of others.
        others = _OTHERS.pop() if _OTHERS else OwnGenerators()
        others.__exit__()
        try:
            yield
        finally:
            others.__enter__()
            _OTHERS.append(others)


# Present one Gymnasium environment as plain arrays: a flat float32 action in, named arrays out.

_SPACES = frozenset({"Box", "Dict", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Tuple"})
_CONTAINERS = frozenset({"Dict", "Tuple"})
_NUMBER_KINDS = frozenset("biuf")
_MISSING = object()

_OVERSHOOT = 0.1  # how far numbers may lie beyond the declared bounds, as a share of the declared range

_LAST_EXACT = 1 << 24  # up to here float32 holds every whole number

RATES = ("control_hz", "control_freq", "control_timestep", "dt")
"""Attributes by which environments state the time of a control step: two in steps per second, two in seconds."""


class EnvSlot:
    """One environment, which draws from the process-wide random generators by its episode's seed."""

    def __init__(
        self,
        environment: gymnasium.Env,
        info_keys: typing.Sequence[str],
        instruction_key: str | None = None,
        generators: OwnGenerators | None = None,
        *,
        checks_ranges: bool = True,
    ) -> None:
        # The environment may have attributes that Gymnasium does not define. ``metric_keys``: entries of ``info`` that
        # are always wanted. ``hold_action``: the action that holds a robot still. ``stated_conditions``: plain values
        # that every episode has.
        self.environment = environment
        self._changes = model_changes.ModelChanges(environment)
        self._generators = generators or OwnGenerators()
        # The instruction is an entry of the reset's ``info``, else an observed text, else an attribute.
        self._instruction_key = instruction_key
        self._draw_pictures = draw_pictures_of(environment)
        self._metric_keys = tuple(getattr(environment, "metric_keys", ()))
        # A key such as ``episode.success`` is entry ``success`` of entry ``episode``, unless an entry has that whole
        # name.
        self._info_keys = tuple(dict.fromkeys((*info_keys, *self._metric_keys)))
        self._actions = flat_actions(environment.action_space)
        leaves = [*_leaves(environment.observation_space)]
        self._texts = {".".join(path) or "obs": path for path, space in leaves if kind_of(space) == "Text"}
        if self._texts and instruction_key is None:
            text = next(iter(self._texts))
            raise TypeError(f"observation '{text}' is text; instruction_key: {text} makes it the instruction")
        shown = (leaf for leaf in leaves if kind_of(leaf[1]) != "Text")
        self._entries = [_Entry(*leaf, checks_range=checks_ranges) for leaf in shown]

    def description(self) -> dict[str, typing.Any]:
        """Return the properties of the environment, as JSON."""
        environment, spec = self.environment, self.environment.spec

        def is_rate(value: typing.Any) -> bool:
            array = np.asarray(value)
            return array.size == 1 and array.dtype.kind in "iuf" and bool(0.0 < array.reshape(()) < np.inf)

        # The environment's own statements of its step rate or duration. The outermost wrapper that states one wins.
        inner = environment.unwrapped
        layers: list[typing.Any] = [environment]
        while layers[-1] is not inner:
            layers.append(getattr(layers[-1], "env", inner))
        said = {name: next(filter(is_rate, (getattr(each, name, None) for each in layers)), None) for name in RATES}
        said["render_fps"] = (environment.metadata or {}).get("render_fps")
        rates = {name: float(np.asarray(value).reshape(())) for name, value in said.items() if is_rate(value)}
        # In Gymnasium's own environments ``dt`` is the time of a step, and ``render_fps`` may differ, as in Pendulum.
        if "dt" in rates and type(inner).__module__.startswith("gymnasium.envs."):
            rates = {"control_timestep": rates["dt"]}
        return {
            "observation": {
                entry.name: {"shape": list(entry.shape), "image": entry.is_picture} for entry in self._entries
            },
            "action_low": self._actions.low.tolist(),
            "action_high": self._actions.high.tolist(),
            "action_names": self._actions.names,
            "action_choices": self._actions.choices,
            "max_episode_length": spec.max_episode_steps if spec is not None else None,
            "nondeterministic": spec is not None and spec.nondeterministic,
            "rates": rates,
            "renders": environment.render_mode == "rgb_array",
            "draws_on_demand": self._draw_pictures is not None,
            "metric_keys": list(self._metric_keys),
            "info_keys": list(self._info_keys),
            "hold_action": getattr(environment, "hold_action", None),
            "conditions": getattr(environment, "stated_conditions", {}),
        }

    def _started(self, seed: int, options: dict | None, changes: dict | None) -> tuple[typing.Any, typing.Any]:
        """Reset the environment, in its own state of the random generators, and change its model for this episode."""
        self._changes.undo()
        # LIBERO's arm waits before its first observation, in the changed world.
        inner: typing.Any = self.environment.unwrapped
        waits = hasattr(inner, "before_waiting")
        if waits:
            inner.before_waiting = None if changes is None else functools.partial(self._changes.apply, changes)
        with self._generators:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: TID251  for environments that draw from nothing else
            torch = _behind_torch()
            if torch is not None:
                torch.manual_seed(seed)
            answer = self.environment.reset(seed=seed, options=options)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise ValueError("reset must return an observation and an info, as Gymnasium has it since 0.26")
            if changes is None or waits:
                return answer
            self._changes.apply(changes)
            return model_changes.observed_again(self.environment), answer[1]

    def reset(
        self, seed: int, *, pictures: bool, options: dict | None = None, changes: dict | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, typing.Any]]:
        """Start an episode, and return its observation and words; ValueError if the instruction is no text."""
        # The words: the ``instruction``, None without an instruction_key; the wanted numbers that are already in
        # ``info``; and the ``error`` if the observation does not fit its space, which is then NaN and black pictures.
        # ``changes`` of the model hold for this episode, whose start is then observed again; {} does that alone.
        if self._draw_pictures is not None:
            self._draw_pictures(pictures)
        observation, info = self._started(seed, options, changes)
        entries = {}
        for key in self._info_keys:
            value = _entry(info, key)
            # The info of a reset may hold any value; only numbers are kept.
            with contextlib.suppress(TypeError, ValueError):
                entries[key] = _number(value, "")

        instruction, key = None, self._instruction_key
        if key is not None:
            instruction = _entry(info, key)
            if instruction is _MISSING and key in self._texts:
                instruction = functools.reduce(operator.getitem, self._texts[key], observation)
            if instruction is _MISSING:
                try:
                    instruction = self.environment.get_wrapper_attr(key)
                except AttributeError as error:
                    message = f"instruction_key: neither reset's info nor the environment has '{key}'"
                    raise ValueError(message) from error
            if not isinstance(instruction, str) or not instruction:
                raise ValueError(f"instruction_key: '{key}' is {instruction!r}, not an instruction in words")
        words = {"instruction": instruction, "info": entries, "error": None}
        try:
            return self._arrays(observation, pictures=pictures), words
        except ValueError as misfit:
            # The misfit is reported with the start, so that only this episode is an error.
            nothing = {
                each.name: np.zeros(each.shape, np.uint8)
                if each.is_picture
                else np.full(each.shape, np.nan, np.float32)
                for each in self._entries
            }
            return nothing, {**words, "error": str(misfit)}

    def step(
        self, action: np.ndarray, *, pictures: bool
    ) -> tuple[dict[str, np.ndarray], list[float], list[str] | None]:
        """Make a step of ``action`` (action_dim,), float32; ValueError if the result violates its space."""
        # Returned are the observation, without unwanted pictures; the results, as `SharedArrays.results` has them; and
        # all names in ``info`` if a wanted entry is missing at an episode's last step, else None.
        if self._draw_pictures is not None:
            self._draw_pictures(pictures)
        with self._generators:
            answer = self.environment.step(self._actions.native(action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError("step must return observation, reward, terminated, truncated and info, as in Gymnasium")
        observation, reward, terminated, truncated, info = answer
        # A missing entry is no error here: success needs it at an episode's last step only.
        found = {key: _entry(info, key) for key in self._info_keys}
        entries: list[float] = []
        for key, value in found.items():
            entries += (0.0, 0.0) if value is _MISSING else (1.0, _number(value, f"info['{key}']"))
        arrays, reward = self._arrays(observation, pictures=pictures), _number(reward, "the reward")
        over = []
        for what, value in (("terminated", terminated), ("truncated", truncated)):
            # None is False, because wrappers use it for an unknown value.
            number = float(bool(value)) if value is None or isinstance(value, bool) else _number(value, what)
            if number not in (0.0, 1.0):
                raise ValueError(f"{what} is {value!r}, neither true nor false")
            over.append(number)
        is_missing = any(over) and any(value is _MISSING for value in found.values())
        return arrays, [reward, *over, *entries], sorted(_names(info)) if is_missing else None

    def render(self) -> np.ndarray:
        """Return the environment's own picture, uint8, usually (height, width, 3); ValueError if it is none."""
        with self._generators:
            picture = np.asarray(self.environment.render())
        if picture.dtype.kind not in "iu" or not picture.size or picture.min() < 0 or picture.max() > 255:
            raise ValueError(f"render returned {picture.dtype} of shape {picture.shape}, not whole numbers up to 255")
        return picture.astype(np.uint8, copy=False)

    def _arrays(self, observation: typing.Any, *, pictures: bool) -> dict[str, np.ndarray]:
        arrays = {}
        # An environment may have changed NumPy's error state, on which the casts depend.
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            for entry in self._entries:
                if pictures or not entry.is_picture:
                    arrays[entry.name] = entry.read(observation)
                elif self._draw_pictures is None:
                    # The picture exists, so its check must not depend on who looks.
                    entry.read(observation)
        return arrays


class _Entry:
    """One entry of an observation: its path, and the declaration of its space."""

    def __init__(self, path: tuple[str, ...], space: typing.Any, *, checks_range: bool) -> None:
        self.name, self._path = ".".join(path) or "obs", path
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        # Bytes in two dimensions or more are a picture. Pictures are shown as uint8, everything else as float32.
        self.is_picture = kind_of(space) == "Box" and space.dtype == np.uint8 and len(space.shape) >= 2
        self._type = np.dtype(space.dtype)
        low, high = self._declared = [np.asarray(each, np.float64).reshape(self.shape) for each in _bounds(space)]
        self._is_any_byte = self.is_picture and not low.any() and bool((high == 255).all())
        self._is_whole = self._type.kind in "iub"
        with np.errstate(all="ignore"):
            # A number that a cast would change is an error even without ``checks_range``.
            if self._is_whole and not self.is_picture:
                least, most = (low, high) if checks_range else (-np.inf, np.inf)
                low, high = np.maximum(least, -_LAST_EXACT), np.minimum(most, _LAST_EXACT)
            elif not self._is_whole:
                # Simulators overshoot their declared bounds by a little.
                slack = np.where(np.isfinite(high - low), _OVERSHOOT * (high - low), 0.0)
                low, high = (low - slack).astype(np.float32), (high + slack).astype(np.float32)
        self._low, self._high = low, high
        is_open = not self._is_whole and bool(np.isinf(low).all() and np.isinf(high).all())
        self._has_range = not is_open and (checks_range or self._is_whole)

    def read(self, observation: typing.Any) -> np.ndarray:
        """Return the entry of an observation; ValueError if it is missing or not as its space declares."""
        try:
            value = functools.reduce(operator.getitem, self._path, observation)
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
        # NaN passes every range check; it is searched later, in all env slots at once.
        if self._has_range and ((shown < self._low) | (shown > self._high)).any():
            raise self._misfit(array, (shown < self._low) | (shown > self._high))
        return shown.astype(np.uint8 if self.is_picture else np.float32, copy=False)

    def _misfit(self, array: np.ndarray, outside: np.ndarray) -> ValueError:
        """Return an error that names the first value that does not fit."""
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
    """Return the name of a supported space, such as ``Box``, None for any other."""
    # By name, because the spaces of Gymnasium, gym and `plain` look alike but share no class.
    return next((each.__name__ for each in type(space).__mro__ if each.__name__ in _SPACES), None)


class FlatActions(typing.NamedTuple):
    """The actions of a space as flat arrays."""

    low: np.ndarray  # (action_dim,), float64; infinite beyond float32
    high: np.ndarray  # the same
    names: list[str] | None  # of the elements, such as ``arm.0``; None for a space without named parts
    # From a flat float32 action to one of the space: clipped, whole numbers rounded.
    native: typing.Callable[[np.ndarray], typing.Any]
    choices: list[int]  # how many whole numbers each element may be, 0 for any number


def flat_actions(space: typing.Any, name: str = "") -> FlatActions:
    """Return the flat form of a space's actions; TypeError if they have none."""
    kind = kind_of(space)
    if kind in _CONTAINERS:
        # A dict's parts are in the space's order, which Gymnasium sorts by key. A tuple's parts are named by number.
        spaces = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        parts = {key: flat_actions(part, f"{name}.{key}" if name else str(key)) for key, part in spaces}

        def put_together(action: np.ndarray) -> typing.Any:
            values, start = {}, 0
            for key, part in parts.items():
                values[key] = part.native(action[start : start + len(part.low)])
                start += len(part.low)
            return values if kind == "Dict" else tuple(values.values())

        low = np.concatenate([part.low for part in parts.values()])
        high = np.concatenate([part.high for part in parts.values()])
        names = [each for part in parts.values() for each in part.names or ()]
        return FlatActions(low, high, names, put_together, [each for part in parts.values() for each in part.choices])

    bounds, dtype = _bounds(space), space.dtype
    low, high = (each.astype(np.float64).reshape(-1) for each in bounds)
    wrong = ~(low <= high)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise TypeError(f"number {place} of actions goes from {low[place]} to {high[place]}, which is no range")
    if kind == "Box":
        most = float(np.finfo(np.float32).max)
        low, high = np.where(low < -most, -np.inf, low), np.where(high > most, np.inf, high)
    elif np.abs([low, high]).max(initial=0) > _LAST_EXACT:
        raise TypeError(f"actions in {space} lie beyond {_LAST_EXACT}, where float32 skips whole numbers")
    else:
        # Half a step on either side, so that a uniform draw takes each whole number equally often.
        low, high = low - 0.5, high + 0.5
    choices = [0] * len(low) if kind == "Box" else (high - low).astype(int).tolist()
    names = None
    if name:
        names = [name] if len(low) == 1 else [f"{name}.{number}" for number in range(len(low))]

    is_whole = kind != "Box" or np.issubdtype(dtype, np.integer)
    least, most = (each.astype(np.float64 if is_whole else dtype).reshape(space.shape) for each in bounds)

    def clipped(action: np.ndarray) -> typing.Any:
        # Three times as fast as np.clip.
        values = np.minimum(np.maximum(action.reshape(least.shape), least), most)
        if kind == "Discrete":
            return int(np.rint(values))
        return (np.rint(values) if is_whole else values).astype(dtype, copy=False)

    return FlatActions(low, high, names, clipped, choices)


def _bounds(space: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    if kind_of(space) == "Box":
        return space.low, space.high
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


def _leaves(space: typing.Any, path: tuple[str, ...] = ()) -> typing.Iterator[tuple[tuple[str, ...], typing.Any]]:
    if kind_of(space) == "Dict":
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif kind_of(space) not in (None, "Tuple"):
        yield path, space
    else:
        raise TypeError(f"observations in {space} are not supported; numbers, arrays and dicts of them are")


def _entry(info: dict, key: str) -> typing.Any:
    """Return an entry of ``info`` by its whole name, else by a path of names joined with dots."""
    if key in info or "." not in key:
        return info.get(key, _MISSING)
    found: typing.Any = info
    for name in key.split("."):
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    return found


def _names(info: dict, prefix: str = "") -> typing.Iterator[str]:
    """Yield the names of all entries of ``info``, nested ones joined with dots."""
    for key, value in info.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")


def _number(value: typing.Any, what: str) -> float:
    if isinstance(value, (float, bool)):
        return float(value)
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in _NUMBER_KINDS:
        raise ValueError(f"{what} is {value!r}, not a number")
    return float(number.reshape(()))


# Wrappers that `gymnasium.make` adds. Other wrappers may store pictures and show them later.
_TRANSPARENT = frozenset({"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"})


def draw_pictures_of(environment: gymnasium.Env) -> typing.Callable[[bool], None] | None:
    """Return the hook that tells an environment if the next pictures are wanted; None if it draws all of them."""
    layer: typing.Any = environment
    while type(layer).__name__ in _TRANSPARENT and type(layer).__module__.startswith("gymnasium.wrappers."):
        layer = layer.env
    # A method of the environment or of a wrapper, and no attribute that older wrappers pass on.
    return layer.draw_pictures if callable(getattr(type(layer), "draw_pictures", None)) else None
