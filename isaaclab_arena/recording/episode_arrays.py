"""Keeps the arrays of the episodes under way: observations, actions, rewards and simulation states."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.recordable import PartwiseRecordable, Recordable, episode_states_of
from isaaclab_arena.nested import leaves
from isaaclab_arena.recording.step_ring import StepRing
from isaaclab_arena.storage import layout

_PARTS = "parts"

HELD_STEPS = 32
"""Control steps whose tensors are copied at once where nothing else changes them: right after the physics has used all
of the processor's caches, the first of several copies costs five times as much as the others."""

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
    """Where an array lies in its pack."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


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
        self._held_parts: list[np.ndarray] = []
        self._max_held = 1
        self._initial: dict[int, dict[str, np.ndarray]] = {}
        self._terms: dict[tuple[str, ...], list[str]] = {}
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
        self._held.append(self._tensors(transition))
        if self._host_parts:
            # Parts are slices of the simulation's memory, of which NumPy makes a copy in a quarter of PyTorch's time.
            self._held_parts.append(np.concatenate(self._host_parts, axis=1))
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
            column.name: pack[:, column.start : column.stop].copy().reshape(len(pack), *column.shape)
            for columns, pack in zip(self._columns, packs, strict=True)
            for column in columns
        }
        if self._partwise is not None and self._state_parts:
            arrays |= _states_of(self._partwise, initial.pop(_PARTS), arrays.pop(_PARTS))
        arrays |= initial
        arrays[layout.DONES] = np.zeros(len(packs[0]), np.uint8)
        arrays[layout.DONES][-1:] = 1
        return arrays

    def _copy_held(self) -> None:
        if self._held:
            packs = [[tensors[number] for tensors in self._held for number in numbers] for numbers in self._packs]
            if self._held_parts:
                packs.append([torch.from_numpy(np.concatenate(self._held_parts, axis=1))])
            self._ring.append(packs, len(self._held))
            self._held.clear()
            self._held_parts.clear()

    def _initial_states(self, env_ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the state of env slots, or what it can be made of later, in one copy where its parts allow."""
        if self._host_parts:
            return {_PARTS: np.concatenate([part[env_ids] for part in self._host_parts], axis=1)}
        if self._state_parts:
            started = torch.tensor(env_ids).to(self._state_parts[0].device, non_blocking=True)
            return {_PARTS: torch.cat([part[started] for part in self._state_parts], dim=1).cpu().numpy()}
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
            tensors += [terms[name] for name in names]
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

    def _names(self) -> list[str]:
        terms = []
        for path, names in self._terms.items():
            for group, *keys in ((*path, name) for name in names):
                terms.append("/".join((observation_path(group), *keys)))
        return [layout.ACTIONS, layout.REWARDS, *terms, *self._states_of_step()]

    def _lay_out(self, transition: Transition) -> None:
        """Decide which arrays lie side by side: vectors of one type; images are large enough to stand alone."""
        for path, name in _recorded_terms(transition.observation, self._observations):
            self._terms.setdefault(path, []).append(name)
        tensors = self._tensors(transition)
        groups: dict[object, dict[int, _Column]] = {}
        for number, (name, tensor) in enumerate(zip(self._names(), tensors, strict=True)):
            group = groups.setdefault(tensor.dtype if tensor.ndim <= 2 else name, {})
            start = max((column.stop for column in group.values()), default=0)
            shape = tuple(tensor.shape[1:])
            group[number] = _Column(name=name, start=start, stop=start + math.prod(shape), shape=shape)
        self._packs = [tuple(group) for group in groups.values()]
        self._columns = [list(group.values()) for group in groups.values()]
        if self._host_parts:
            width = sum(part.shape[1] for part in self._host_parts)
            self._columns.append([_Column(name=_PARTS, start=0, stop=width, shape=(width,))])
        if self._environment.returns_own_tensors and all(tensor.ndim <= 2 for tensor in tensors):
            step_bytes = sum(tensor.nbytes for tensor in tensors) + sum(part.nbytes for part in self._host_parts)
            self._max_held = max(1, min(HELD_STEPS, HELD_OBJECTS // (len(tensors) + 1), HELD_BYTES // step_bytes))


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
