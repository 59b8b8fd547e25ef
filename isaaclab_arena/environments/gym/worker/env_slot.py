"""One Gymnasium environment as plain arrays: a flat float32 action in, named arrays out."""

from __future__ import annotations

import contextlib
import typing

import numpy as np

from .own_generators import OwnGenerators  # noqa: TID252  beside this file, whatever package imports it

if typing.TYPE_CHECKING:
    import gymnasium

_SPACES = frozenset({"Box", "Dict", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Tuple"})
_CONTAINERS = frozenset({"Dict", "Tuple"})
_NUMBER_KINDS = frozenset("biuf")
_MISSING = object()
_NOTHING_TOLD = contextlib.nullcontext()

RATES = ("control_hz", "control_freq", "control_timestep", "dt")
"""Attributes by which environments say how long a control step takes: two in steps per second, two in seconds."""


class SlotStart(typing.NamedTuple):
    """What the reset of one environment gave.

    ``observation`` lacks pictures that were not wanted. ``instruction`` is None where no key for it was given. ``info``
    holds the numbers that are asked for in steps, as far as they are there already.
    """

    observation: dict[str, np.ndarray]
    instruction: str | None
    info: dict[str, float]


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
    ) -> None:
        self.environment = environment
        self._generators = generators or OwnGenerators()
        self._instruction_key = instruction_key
        self._drawing = drawing
        self._metric_keys = tuple(getattr(environment, "metric_keys", ()))
        self._info_keys = tuple(dict.fromkeys((*info_keys, *self._metric_keys)))
        self._action_space = environment.action_space
        self._native_action = native_action(environment.action_space)
        leaves = {".".join(path) or "obs": (path, space) for path, space in _leaves(environment.observation_space)}
        self._terms = {name: leaf for name, leaf in leaves.items() if kind_of(leaf[1]) != "Text"}
        self._texts = {name: path for name, (path, _) in leaves.items() if name not in self._terms}
        if self._texts and instruction_key is None:
            text = next(iter(self._texts))
            raise TypeError(f"observation '{text}' is text; with instruction_key: {text} policies are told it")
        self._pictures = {name for name, (_, space) in self._terms.items() if is_image(space)}
        self._read = [
            (name, path, space.shape or (), name in self._pictures) for name, (path, space) in self._terms.items()
        ]
        action_bounds(self._action_space)

    def description(self) -> dict[str, typing.Any]:
        """Return what the environment looks like, as JSON."""
        environment, spec = self.environment, self.environment.spec
        low, high = action_bounds(self._action_space)
        return {
            "observation": {
                name: {"shape": list(space.shape or ()), "image": name in self._pictures}
                for name, (_, space) in self._terms.items()
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
            observation, info = self.environment.reset(seed=seed, options=options)
        numbers = {key: _plain_number(_entry(info, key)) for key in self._info_keys}
        return SlotStart(
            observation=self._arrays(observation, pictures=pictures),
            instruction=self._instruction(info, observation),
            info={key: number for key, number in numbers.items() if number is not None},
        )

    def step(self, action: np.ndarray, *, pictures: bool) -> SlotStep:
        """Make one step, and observe with or without pictures. Shape of ``action``: (action_dim,), float32."""
        with self._told(pictures), self._generators:
            answer = self.environment.step(self._native_action(action))
        observation, reward, terminated, truncated, info = answer
        found = {key: _entry(info, key) for key in self._info_keys}
        entries = {key: _number(value, f"info['{key}']") for key, value in found.items() if value is not _MISSING}
        return SlotStep(
            observation=self._arrays(observation, pictures=pictures),
            reward=_number(reward, "the reward"),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=entries,
            info_names=() if len(entries) == len(self._info_keys) else tuple(sorted(_names(info))),
        )

    def render(self) -> np.ndarray:
        """Return what the environment renders of itself. Shape: (height, width, 3), uint8."""
        with self._generators:
            return np.asarray(self.environment.render(), np.uint8)

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
        for name, path, shape, is_picture in self._read:
            if is_picture and not pictures:
                continue
            array = np.array(_part(observation, path), np.uint8 if is_picture else np.float32)
            if array.shape != shape:
                raise ValueError(f"observation '{name}' has shape {array.shape}, its space says {shape}")
            arrays[name] = array
        return arrays


def kind_of(space: typing.Any) -> str | None:
    """Return the name of the supported space that this is, such as ``Box``; None if it is none of them.

    It is known by its name: Gymnasium's spaces, gym's and those of `plain` are made alike.
    """
    return next((each.__name__ for each in type(space).__mro__ if each.__name__ in _SPACES), None)


def is_image(space: typing.Any) -> bool:
    """Whether a space holds pictures: bytes in two dimensions or more."""
    return kind_of(space) == "Box" and space.dtype == np.uint8 and len(space.shape) >= 2


def action_bounds(space: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    """Return lowest and highest value of each element of the flat action, float64.

    Whole numbers get half a step more on either side, so that a uniform draw takes each of them equally often.

    Raises:
        TypeError: If actions of this kind are not supported.
    """
    if kind_of(space) in _CONTAINERS:
        bounds = [action_bounds(part) for _, part in _parts(space)]
        return np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds])
    if kind_of(space) == "Box":
        return space.low.astype(np.float64).reshape(-1), space.high.astype(np.float64).reshape(-1)
    low, high = _whole_bounds(space)
    return low - 0.5, high + 0.5


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
