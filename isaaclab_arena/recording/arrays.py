"""The arrays of the episodes under way, in a ring of memory."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.specs import SideBySide, StateTree
from isaaclab_arena.nested import leaves, value_at
from isaaclab_arena.storage import layout


def first_slots(environments: Sequence[Environment]) -> dict[Environment, int]:
    """Number the env slots of several environments consecutively: the number of the first one of each."""
    sizes = accumulate((environment.num_envs for environment in environments), initial=0)
    return dict(zip(environments, sizes, strict=False))


class StepRing:
    """Ring buffer of the control steps of all env slots, back to the start of the oldest running episode."""

    def __init__(self, num_envs: int, capacity: int) -> None:
        # A step is stored as a few packs: values of one dtype side by side. One copy per tensor would cost more than
        # the physics. The episode of an env slot is every step from its start until `take`. Steps arrive as tensors (on
        # a GPU many at once), or the caller writes them in place, one copy per pack while the data is in the CPU's
        # caches.
        self._num_envs = num_envs
        # Expected length of the longest episode [control steps]. The buffer grows if an episode is longer.
        self.capacity = max(1, capacity)
        self._packs: list[torch.Tensor] = []
        self._arrays: list[np.ndarray] = []  # the same memory. Shape of each: (capacity, num_envs, width)
        self._next = 0
        self._origin = 0
        self._first: dict[int, int] = {}
        self._room_until = 0
        self._each_step: list[tuple[np.ndarray, ...]] = []

    def start(self, env_ids: Iterable[int]) -> None:
        """Begin an episode in the env slots with the next step."""
        self._first.update(dict.fromkeys(env_ids, self._next))

    def next_places(self, packs: Sequence[tuple[int, np.dtype]]) -> Sequence[np.ndarray]:
        """Begin a control step, and return the places of its packs to write now. Shape of each: (num_envs, width)."""
        # `packs` is the width and dtype of each pack, the same at every call.
        if not self._packs:
            self._packs = [_untouched((self.capacity, self._num_envs, width), dtype) for width, dtype in packs]
            self._arrays = [values.numpy() for values in self._packs]
            self._each_step = list(zip(*self._arrays, strict=True))
        if self._next >= self._room_until:
            self._make_room(1)
        position = (self._next - self._origin) % self.capacity
        self._next += 1
        return self._each_step[position]

    def fill(self, pack: int, columns: slice, steps: np.ndarray) -> None:
        """Write columns of the most recent steps of a pack. Shape of `steps`: (num_steps, num_envs, width)."""
        array, position = self._arrays[pack], (self._next - len(steps) - self._origin) % self.capacity
        # The steps may wrap around the end of the buffer.
        before_the_end = array[position : position + len(steps), :, columns]
        before_the_end[:] = steps[: len(before_the_end)]
        if len(before_the_end) < len(steps):
            array[: len(steps) - len(before_the_end), :, columns] = steps[len(before_the_end) :]

    def append(self, packs: Sequence[Sequence[torch.Tensor]], num_steps: int = 1) -> None:
        """Append control steps: for each pack, the tensors of one step after the other, each (num_envs, ...)."""
        # The number of packs, of tensors per step and their dtypes are fixed by the first call. Steps may be joined
        # already along dimension 1, so widths are per `num_steps`.
        if not self._packs:
            for tensors in packs:
                width = sum(tensor[0].numel() for tensor in tensors) // num_steps
                dtype = torch.empty(0, dtype=tensors[0].dtype).numpy().dtype
                self._packs.append(_untouched((self.capacity, self._num_envs, width), dtype))
            self._arrays = [values.numpy() for values in self._packs]
        if self._next + num_steps > self._room_until:
            self._make_room(num_steps)
        self._next += num_steps

        # Flattened and side by side, (num_envs, num_steps * width) per pack.
        flat = [[each if each.ndim == 2 else each.reshape(len(each), -1) for each in tensors] for tensors in packs]
        joined = on_cpu([each[0] if len(each) == 1 else torch.cat(each, dim=1) for each in flat])
        for pack, tensor in enumerate(joined):
            steps = tensor.reshape(len(tensor), num_steps, self._arrays[pack].shape[2]).transpose(0, 1)
            self.fill(pack, slice(None), steps.numpy())

    def take(self, env_id: int) -> list[np.ndarray]:
        """End an env slot's episode and return one array per pack, (length, width). Later steps may overwrite it."""
        first = self._first.pop(env_id)
        position, length = (first - self._origin) % self.capacity, self._next - first
        taken = []
        for array in self._arrays:
            steps = array[position : position + length, env_id]
            # The steps may wrap around the end of the buffer.
            if len(steps) < length:
                steps = np.concatenate((steps, array[: length - len(steps), env_id]))
            taken.append(steps)
        return taken

    def _make_room(self, num_steps: int) -> None:
        """Double the buffer until the next steps overwrite no step of a running episode."""
        oldest = min(self._first.values(), default=self._next)
        while self._next + num_steps - oldest > self.capacity:
            turn = (self._next - self._origin) % self.capacity
            for number, before in enumerate(self._packs):
                doubled = _untouched((2 * len(before), *before.shape[1:]), self._arrays[number].dtype)
                doubled[: len(before) - turn] = before[turn:]
                doubled[len(before) - turn : len(before)] = before[:turn]
                self._packs[number], self._arrays[number] = doubled, doubled.numpy()
            self._origin = self._next - self.capacity
            self.capacity *= 2
            self._each_step = list(zip(*self._arrays, strict=True)) if self._each_step else []
        self._room_until = oldest + self.capacity


def _untouched(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return uninitialized CPU memory."""
    # The system backs only touched pages, so a large capacity costs nothing for short episodes. PyTorch fills new
    # tensors with NaN in deterministic mode, and so touches all pages; NumPy does not.
    return torch.from_numpy(np.empty(shape, dtype))


_PARTS = "parts"

HELD_STEPS = 32
"""Control steps whose tensors are copied at once if no other code changes them. Each copy from a GPU waits for it, and
on a CPU the view of a tensor in NumPy takes more time than its copy."""

HELD_OBJECTS = 350
"""Most objects of the steps that are copied at once: Python looks for garbage after 700 new ones, and now and then
looks through all objects."""

HELD_BYTES = 1 << 26  # most memory of the steps that are copied at once [bytes]
EXPECTED_STEPS = 1000  # control steps that the buffer holds at first; it grows for longer episodes


class RecordedObservations(StrEnum):
    """The recorded observations: none, group ``policy``, or every group including images."""

    NONE = "none"
    STATE = "state"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class _Column:
    """The position of an array in its pack, and its dtype."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype


class EpisodeArrays:
    """Keep the arrays of an environment's running episodes until they are taken."""

    def __init__(self, environment: Environment, observations: RecordedObservations) -> None:
        self._environment, self._observations = environment, observations
        self._ring = StepRing(environment.num_envs, min(environment.max_episode_length, EXPECTED_STEPS))
        # Parts of the simulation state. In host memory they are copied each step, on a GPU they are batched.
        self._state_parts = tuple(environment.state_parts())
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
        """Begin an episode in the env slots, which were just reset."""
        self._copy_held()
        # The initial states, or their parts in a single copy if the environment has parts.
        if self._host_parts:
            states = {_PARTS: np.concatenate([part[env_ids] for part in self._host_parts], axis=1)}
        elif self._state_parts:
            started = torch.tensor(env_ids).to(self._state_parts[0].device, non_blocking=True)
            [parts] = on_cpu([torch.cat([part[started] for part in self._state_parts], dim=1)])
            states = {_PARTS: parts.numpy()}
        else:
            whole = self._state(layout.INITIAL_STATE)
            read = on_cpu([tensor[list(env_ids)] for tensor in whole.values()])
            states = {path: values.numpy() for path, values in zip(whole, read, strict=True)}
        simulator_states = self._environment.episode_states(env_ids)
        for number, (env_id, own) in enumerate(zip(env_ids, simulator_states, strict=True)):
            initial = {name: values[number : number + 1].copy() for name, values in states.items()}
            for name, array in own.items():
                initial[f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/{name}"] = np.asarray(array)
            self._initial[env_id] = initial
        self._ring.start(env_ids)

    def append(self, transition: Transition) -> None:
        """Keep one control step; its action must not change afterwards."""
        if not self._columns:
            self._lay_out(transition)
        tensors = self._tensors(transition)
        if self._written_at_once and self._max_held == 1:
            # Write the step while its data is in the CPU's caches. NumPy copies in half of PyTorch's time here.
            flat = list(map(torch.Tensor.numpy, tensors))
            for number in self._not_flat:
                flat[number] = flat[number].reshape(len(flat[number]), -1)
            flat += self._host_parts
            for numbers, place in zip(self._packs, self._ring.next_places(self._widths), strict=True):
                np.concatenate([flat[number] for number in numbers], axis=1, out=place)
            return
        if self._written_at_once:
            # The environment overwrites only the parts of its state in place, so the other tensors may wait.
            place = self._ring.next_places(self._widths)[self._parts_pack]
            np.concatenate(self._host_parts, axis=1, out=place[:, self._parts_columns])
        self._held.append(tensors)
        if len(self._held) >= self._max_held:
            self._copy_held()

    def take(self, env_id: int) -> dict[str, np.ndarray]:
        """End an env slot's episode and return its arrays by path, with ``dones``. Shape of each: (num_steps, ...)."""
        # The initial state is below ``initial_state``, with shape (1, ...).
        initial = self._initial.pop(env_id)
        self._copy_held()
        packs = self._ring.take(env_id)
        arrays = {
            column.name: pack[:, column.start : column.stop].astype(column.dtype).reshape(len(pack), *column.shape)
            for columns, pack in zip(self._columns, packs, strict=True)
            for column in columns
        }
        # The states of an episode follow from their parts at its start and after each step.
        if self._state_parts:
            parts = np.concatenate((initial.pop(_PARTS), arrays.pop(_PARTS)))
            for path, values in flatten(self._environment.state_of(parts), ""):
                whole = np.ascontiguousarray(values)
                arrays[layout.INITIAL_STATE + path] = whole[:1]
                arrays[layout.STATES + path] = whole[1:]
        arrays |= initial
        arrays[layout.DONES] = np.zeros(len(packs[0]), np.uint8)
        arrays[layout.DONES][-1:] = 1
        return arrays

    def forget(self, env_id: int) -> None:
        """End an env slot's episode without steps, and drop it."""
        del self._initial[env_id]
        self._copy_held()
        self._ring.take(env_id)

    def _copy_held(self) -> None:
        """Copy the held tensors of the last steps; the parts of their states were written at once."""
        num_steps, num_envs = len(self._held), self._environment.num_envs
        if not num_steps:
            return
        if self._written_at_once:
            # The staging buffers are reused: an allocation of a kilobyte makes the C library consolidate all freed
            # memory.
            for number, ((pack, columns), steps) in enumerate(zip(self._places, self._staging, strict=True)):
                together = steps[: num_steps * num_envs]
                torch.cat([tensors[number] for tensors in self._held], out=together)
                self._ring.fill(pack, columns, together.numpy().reshape(num_steps, num_envs, -1))
        else:
            packs = [[tensors[number] for tensors in self._held for number in numbers] for numbers in self._packs]
            self._ring.append(packs, num_steps)
        self._held.clear()

    def _state(self, prefix: str) -> dict[str, torch.Tensor]:
        return dict(flatten(self._environment.state() or {}, prefix))

    def _tensors(self, transition: Transition) -> list[torch.Tensor]:
        """Return the tensors to keep of a step, always in the same order; see `_arrays_in`."""
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
        # The parts of a state in host memory are written apart.
        if not self._host_parts and self._state_parts:
            tensors.append(torch.cat(self._state_parts, dim=1))
        elif not self._host_parts:
            tensors += self._state(layout.STATES).values()
        return tensors

    def _arrays_in(self, transition: Transition) -> list[dict[str, torch.Tensor]]:
        """Return the named arrays in each tensor of `_tensors`."""
        arrays = [{layout.ACTIONS: transition.action}, {layout.REWARDS: transition.step.reward}]
        for path, names in self._terms.items():
            group, *keys = path
            terms = value_at(transition.observation, path)
            named = {"/".join((observation_path(group), *keys, name)): terms[name] for name in names}
            arrays += [named] if path in self._together else [{name: term} for name, term in named.items()]
        if not self._host_parts:
            parts = {_PARTS: torch.cat(self._state_parts, dim=1)} if self._state_parts else self._state(layout.STATES)
            arrays += [{name: state} for name, state in parts.items()]
        return arrays

    def _lay_out(self, transition: Transition) -> None:
        """Decide the layout: vectors of one dtype share a pack; images are large enough for a pack of their own."""
        for group, terms in transition.observation.items():
            is_state = self._observations is RecordedObservations.STATE and group == "policy"
            if is_state or self._observations is RecordedObservations.ALL:
                for keys, _ in leaves(terms):
                    *path, name = (group, *keys)
                    self._terms.setdefault(tuple(path), []).append(name)

        seen = transition.observation
        self._together = {path for path in self._terms if isinstance(value_at(seen, path), SideBySide)}
        # Direct writes need every tensor, and any parts of the state, on the CPU.
        are_here = all(tensor.is_cpu for tensor in self._tensors(transition))
        self._written_at_once = are_here and (bool(self._host_parts) or not self._state_parts)
        if not self._written_at_once:
            self._host_parts = []

        tensors = self._tensors(transition)
        state = self._host_parts[0].dtype if self._host_parts else None
        packs: dict[object, _TensorPack] = {}

        def add(
            key: object, numbers: Iterable[int], shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype
        ) -> tuple[int, slice]:
            """Append arrays to a pack, and return the number of the pack and their columns."""
            pack = packs.setdefault(key, _TensorPack(dtype=key if isinstance(key, np.dtype) else dtype))
            begin = stop = pack.columns[-1].stop if pack.columns else 0
            pack.numbers += numbers
            for name, shape in shapes.items():
                start, stop = stop, stop + math.prod(shape)
                pack.columns.append(_Column(name=name, start=start, stop=stop, shape=shape, dtype=dtype))
            return list(packs).index(key), slice(begin, stop)

        for number, (tensor, arrays) in enumerate(zip(tensors, self._arrays_in(transition), strict=True)):
            dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
            # Vectors are stored in the dtype of the state if it represents the same values exactly.
            is_exact = state is not None and dtype.kind == state.kind == "f" and np.can_cast(dtype, state)
            key = (state if is_exact else dtype) if tensor.ndim <= 2 else number
            shapes = {name: tuple(array.shape[1:]) for name, array in arrays.items()}
            self._places.append(add(key, [number], shapes, dtype))

        # The parts of the state are written after the tensors, into the pack of their dtype.
        if self._host_parts:
            own, width = self._host_parts[0].dtype, sum(part.shape[1] for part in self._host_parts)
            numbers = range(len(tensors), len(tensors) + len(self._host_parts))
            self._parts_pack, self._parts_columns = add(own, numbers, {_PARTS: (width,)}, own)
        self._not_flat = [number for number, tensor in enumerate(tensors) if tensor.ndim != 2]
        self._packs = [tuple(pack.numbers) for pack in packs.values()]
        self._columns = [pack.columns for pack in packs.values()]
        self._widths = [(pack.columns[-1].stop, pack.dtype) for pack in packs.values()]

        # Tensors may wait only if the environment never reuses their memory.
        can_hold = self._environment.returns_own_tensors and all(tensor.ndim <= 2 for tensor in tensors)
        if can_hold and (self._host_parts or not self._written_at_once):
            step_bytes = sum(tensor.nbytes for tensor in tensors)
            self._max_held = max(1, min(HELD_STEPS, HELD_OBJECTS // (len(tensors) + 1), HELD_BYTES // step_bytes))
        if self._written_at_once and self._max_held > 1:
            self._staging = [
                torch.empty((self._max_held * len(each), *each.shape[1:]), dtype=each.dtype) for each in tensors
            ]


@dataclass(kw_only=True)
class _TensorPack:
    """The tensors of a step with dtype ``dtype`` side by side: their numbers, and their arrays."""

    dtype: np.dtype
    numbers: list[int] = field(default_factory=list)
    columns: list[_Column] = field(default_factory=list)


def flatten(tree: Observation | StateTree, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict: ``states/rigid_object/cube/root_pose``."""
    for keys, value in leaves(tree):
        yield "/".join((prefix, *keys)), value


def observation_path(group: str) -> str:
    """Return the path of an observation group: ``policy`` in ``obs``, as in Isaac Lab, others beside it."""
    if group == "policy":
        return layout.OBSERVATIONS
    return group if group == layout.CAMERA_OBSERVATIONS else f"{layout.OBSERVATIONS}_{group}"
