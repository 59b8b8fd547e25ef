"""Keeps the arrays of the episodes under way: observations, actions, rewards and simulation states."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.interfaces.environment import Environment, Observation, SideBySide, StateTree
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.recordable import PartwiseRecordable, Recordable, episode_states_of
from isaaclab_arena.nested import leaves, value_at
from isaaclab_arena.recording.step_ring import StepRing
from isaaclab_arena.storage import layout

_PARTS = "parts"

HELD_STEPS = 32
"""Control steps whose tensors are copied at once where nothing else changes them: each copy from a GPU waits for it,
and on a CPU NumPy takes more time to be shown a tensor than to copy it."""

HELD_OBJECTS = 350
"""Fewer steps are copied at once where they have more objects: Python looks for garbage after 700 new ones, and now and
then looks through all there is."""

HELD_BYTES = 1 << 26
"""Fewer steps are copied at once where their tensors would take more memory than this."""

EXPECTED_STEPS = 1000
"""Control steps for which there is room at first; more is made for longer episodes."""


class RecordedObservations(StrEnum):
    """Which observations a recording holds: none, group ``policy``, or every group, images too."""

    NONE = "none"
    STATE = "state"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class _Column:
    """Where an array lies in its pack, and of which type it is."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype


class EpisodeArrays:
    """Keeps the arrays of the episodes under way in an environment, until they are taken.

    Args:
        environment: The environment.
        observations: Which observations are kept.
    """

    def __init__(self, environment: Environment, observations: RecordedObservations) -> None:
        self._environment = environment
        self._observations = observations
        expected_steps = min(environment.max_episode_length, EXPECTED_STEPS)
        self._ring = StepRing(environment.num_envs, expected_steps)
        self._recordable = environment if isinstance(environment, Recordable) else None
        self._partwise = environment if isinstance(environment, PartwiseRecordable) else None
        self._state_parts = () if self._partwise is None else tuple(self._partwise.state_parts())
        self._host_parts = [part.numpy() for part in self._state_parts if part.is_cpu]
        self._held: list[list[torch.Tensor]] = []
        self._max_held = 1
        self._places: list[tuple[int, slice]] = []
        self._staging: list[torch.Tensor] = []
        self._parts_pack, self._parts_columns = 0, slice(0)
        self._written_at_once = False
        self._not_flat: list[int] = []
        self._widths: list[tuple[int, np.dtype]] = []
        self._initial: dict[int, dict[str, np.ndarray]] = {}
        self._terms: dict[tuple[str, ...], list[str]] = {}
        self._together: set[tuple[str, ...]] = set()
        self._packs: list[tuple[int, ...]] = []
        self._columns: list[list[_Column]] = []

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin an episode in the named env slots, which were just reset."""
        self._copy_held()
        states = self._initial_states(env_ids)
        simulator_states = episode_states_of(self._environment, env_ids)
        for number, (env_id, own) in enumerate(zip(env_ids, simulator_states, strict=True)):
            initial = {name: values[number : number + 1].copy() for name, values in states.items()}
            for name, array in own.items():
                initial[f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/{name}"] = np.asarray(array)
            self._initial[env_id] = initial
        self._ring.start(env_ids)

    def append(self, transition: Transition) -> None:
        """Keep one control step; its action must not change any more."""
        if not self._columns:
            self._lay_out(transition)
        tensors = self._tensors(transition)
        if self._written_at_once:
            if self._max_held == 1:
                self._write(tensors)
                return
            # The environment changes the parts of its state, and nothing else.
            place = self._ring.next_places(self._widths)[self._parts_pack]
            np.concatenate(self._host_parts, axis=1, out=place[:, self._parts_columns])
        self._held.append(tensors)
        if len(self._held) >= self._max_held:
            self._copy_held()

    def take(self, env_id: int) -> dict[str, np.ndarray]:
        """End an env slot's episode and return its arrays by path, ``dones`` too. Shape of each: (num_steps, ...).

        The state that it starts from is below ``initial_state``, in the shape (1, ...).
        """
        initial = self._initial.pop(env_id)
        self._copy_held()
        packs = self._ring.take(env_id)
        arrays = {
            column.name: pack[:, column.start : column.stop].astype(column.dtype).reshape(len(pack), *column.shape)
            for columns, pack in zip(self._columns, packs, strict=True)
            for column in columns
        }
        if self._partwise is not None and self._state_parts:
            arrays |= _states_of(self._partwise, initial.pop(_PARTS), arrays.pop(_PARTS))
        arrays |= initial
        arrays[layout.DONES] = np.zeros(len(packs[0]), np.uint8)
        arrays[layout.DONES][-1:] = 1
        return arrays

    def forget(self, env_id: int) -> None:
        """End an env slot's episode that made no step: there is nothing to keep of it."""
        del self._initial[env_id]
        self._copy_held()
        self._ring.take(env_id)

    def _copy_held(self) -> None:
        if self._held and self._written_at_once:
            self._write_held()
        elif self._held:
            packs = [[tensors[number] for tensors in self._held for number in numbers] for numbers in self._packs]
            self._ring.append(packs, len(self._held))
            self._held.clear()

    def _write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a step at once: what was just made is in the processor's caches, and later it would have to be fetched.

        NumPy copies in half of PyTorch's time here.
        """
        flat = list(map(torch.Tensor.numpy, tensors))
        for number in self._not_flat:
            flat[number] = flat[number].reshape(len(flat[number]), -1)
        flat += self._host_parts
        places = self._ring.next_places(self._widths)
        if len(places) == 1:
            np.concatenate(flat, axis=1, out=places[0])
            return
        for numbers, place in zip(self._packs, places, strict=True):
            np.concatenate([flat[number] for number in numbers], axis=1, out=place)

    def _write_held(self) -> None:
        """Write what was held of the steps beside the parts of their states.

        No memory is asked for, because a request for a kilobyte has the C library tidy up all that was freed before it.
        """
        num_steps, num_envs = len(self._held), self._environment.num_envs
        for number, ((pack, columns), steps) in enumerate(zip(self._places, self._staging, strict=True)):
            together = steps[: num_steps * num_envs]
            torch.cat([tensors[number] for tensors in self._held], out=together)
            self._ring.fill(pack, columns, together.numpy().reshape(num_steps, num_envs, -1))
        self._held.clear()

    def _initial_states(self, env_ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the state of env slots, or what it can be made of later, in one copy where its parts allow."""
        if self._host_parts:
            return {_PARTS: np.concatenate([part[env_ids] for part in self._host_parts], axis=1)}
        if self._state_parts:
            started = torch.tensor(env_ids).to(self._state_parts[0].device, non_blocking=True)
            [parts] = on_cpu([torch.cat([part[started] for part in self._state_parts], dim=1)])
            return {_PARTS: parts.numpy()}
        states = self._state(layout.INITIAL_STATE)
        read = on_cpu([tensor[list(env_ids)] for tensor in states.values()])
        return {path: values.numpy() for path, values in zip(states, read, strict=True)}

    def _state(self, prefix: str) -> dict[str, torch.Tensor]:
        return {} if self._recordable is None else dict(flatten(self._recordable.state(), prefix))

    def _tensors(self, transition: Transition) -> list[torch.Tensor]:
        """Return what is kept of a step, always in the same order; see `_names`."""
        action = transition.action
        tensors = [action if action.dtype is torch.float32 else action.to(torch.float32), transition.step.reward]
        for path, names in self._terms.items():
            terms: Any = transition.observation
            for key in path:
                terms = terms[key]
            if path not in self._together:
                tensors += [terms[name] for name in names]
            elif isinstance(terms, SideBySide):
                tensors.append(terms.together)
            else:
                tensors.append(torch.cat([terms[name] for name in names], dim=1))
        if not self._host_parts:
            tensors += self._states_of_step().values()
        return tensors

    def _states_of_step(self) -> dict[str, torch.Tensor]:
        """Return what is kept of the state after a step as tensors: nothing where its parts are in host memory."""
        if self._host_parts:
            return {}
        if self._state_parts:
            return {_PARTS: torch.cat(self._state_parts, dim=1)}
        return self._state(layout.STATES)

    def _arrays_in(self, transition: Transition) -> list[dict[str, torch.Tensor]]:
        """Return, for each of `_tensors`, what lies in it, by name."""
        arrays = [{layout.ACTIONS: transition.action}, {layout.REWARDS: transition.step.reward}]
        for path, names in self._terms.items():
            group, *keys = path
            terms = value_at(transition.observation, path)
            named = {"/".join((observation_path(group), *keys, name)): terms[name] for name in names}
            arrays += [named] if path in self._together else [{name: term} for name, term in named.items()]
        return [*arrays, *({name: state} for name, state in self._states_of_step().items())]

    def _lay_out(self, transition: Transition) -> None:
        """Decide which arrays lie side by side: vectors of one type; images are large enough to stand alone."""
        for path, name in _recorded_terms(transition.observation, self._observations):
            self._terms.setdefault(path, []).append(name)
        self._together = {
            path for path in self._terms if isinstance(value_at(transition.observation, path), SideBySide)
        }
        are_here = all(tensor.is_cpu for tensor in self._tensors(transition))
        self._written_at_once = are_here and (bool(self._host_parts) or not self._state_parts)
        if not self._written_at_once:
            self._host_parts = []
        tensors = self._tensors(transition)
        packs: dict[object, _TensorPack] = {}
        for number, (tensor, arrays) in enumerate(zip(tensors, self._arrays_in(transition), strict=True)):
            dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
            key = self._pack_of(dtype) if tensor.ndim <= 2 else number
            pack = packs.setdefault(key, _TensorPack(dtype=key if isinstance(key, np.dtype) else dtype))
            begin = pack.width
            pack.add([number], {name: tuple(array.shape[1:]) for name, array in arrays.items()}, dtype)
            self._places.append((list(packs).index(key), slice(begin, pack.width)))
        if self._host_parts:
            own, width = self._host_parts[0].dtype, sum(part.shape[1] for part in self._host_parts)
            numbers = range(len(tensors), len(tensors) + len(self._host_parts))
            pack = packs.setdefault(own, _TensorPack(dtype=own))
            begin = pack.width
            pack.add(numbers, {_PARTS: (width,)}, own)
            self._parts_pack, self._parts_columns = list(packs).index(own), slice(begin, pack.width)
        self._not_flat = [number for number, tensor in enumerate(tensors) if tensor.ndim != 2]
        self._packs = [tuple(pack.numbers) for pack in packs.values()]
        self._columns = [pack.columns for pack in packs.values()]
        self._widths = [(pack.width, pack.dtype) for pack in packs.values()]
        can_hold = self._environment.returns_own_tensors and all(tensor.ndim <= 2 for tensor in tensors)
        if can_hold and (self._host_parts or not self._written_at_once):
            step_bytes = sum(tensor.nbytes for tensor in tensors)
            self._max_held = max(1, min(HELD_STEPS, HELD_OBJECTS // (len(tensors) + 1), HELD_BYTES // step_bytes))
        if self._written_at_once and self._max_held > 1:
            self._staging = [
                torch.empty((self._max_held * len(each), *each.shape[1:]), dtype=each.dtype) for each in tensors
            ]

    def _pack_of(self, dtype: np.dtype) -> np.dtype:
        """Return the type in which vectors are kept: that of the state where it holds the same numbers."""
        state = self._host_parts[0].dtype if self._host_parts else dtype
        return state if dtype.kind == state.kind == "f" and np.can_cast(dtype, state) else dtype


@dataclass(kw_only=True)
class _TensorPack:
    """What lies side by side in the type ``dtype``: the numbers of the tensors of a step, and their arrays."""

    dtype: np.dtype
    numbers: list[int] = field(default_factory=list)
    columns: list[_Column] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.columns[-1].stop if self.columns else 0

    def add(self, numbers: Iterable[int], shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype) -> None:
        self.numbers += numbers
        for name, shape in shapes.items():
            stop = self.width + math.prod(shape)
            self.columns.append(_Column(name=name, start=self.width, stop=stop, shape=shape, dtype=dtype))


def _states_of(environment: PartwiseRecordable, initial: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Return the states of an episode, made of the parts that were kept at its start and after each step."""
    arrays = {}
    for path, values in flatten(environment.state_of(np.concatenate((initial, steps))), ""):
        whole = np.ascontiguousarray(values)
        arrays[layout.INITIAL_STATE + path] = whole[:1]
        arrays[layout.STATES + path] = whole[1:]
    return arrays


def flatten(tree: Observation | StateTree, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict: ``states/rigid_object/cube/root_pose``."""
    for keys, value in leaves(tree):
        yield "/".join((prefix, *keys)), value


def observation_path(group: str) -> str:
    """Return where a group of observations lies: ``policy`` in ``obs``, as Isaac Lab has it, others beside it."""
    if group == "policy":
        return layout.OBSERVATIONS
    return group if group == layout.CAMERA_OBSERVATIONS else f"{layout.OBSERVATIONS}_{group}"


def _recorded_terms(observation: Observation, wanted: RecordedObservations) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield, for each term that is recorded, the keys that lead to what holds it in an observation, and its own."""
    for group, terms in observation.items():
        if wanted is RecordedObservations.ALL or (wanted is RecordedObservations.STATE and group == "policy"):
            for keys, _ in leaves(terms):
                *path, name = (group, *keys)
                yield tuple(path), name
