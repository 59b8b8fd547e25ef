"""The arrays of the episodes under way: what the policy saw and did, what it got, and the state that came of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.recording.step_ring import StepRing
from isaaclab_arena.storage import layout

_PARTS = "parts"

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
        self._ring = StepRing(environment.num_envs, min(environment.max_episode_length, EXPECTED_STEPS))
        self._state_parts = environment.state_parts()
        self._initial: dict[int, dict[str, np.ndarray]] = {}
        self._terms: list[tuple[str, tuple[str, ...]]] = []
        self._packs: list[list[str]] = []
        self._columns: list[list[_Column]] = []

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin an episode in the named rows, which were just reset."""
        states = self._states()
        for row in env_ids:
            initial = {name: values[row : row + 1].copy() for name, values in states.items()}
            for name, array in self._environment.episode_state(row).items():
                initial[f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/{name}"] = np.asarray(array)
            self._initial[row] = initial
        self._ring.start(env_ids)

    def append(self, transition: Transition) -> None:
        """Keep one control step."""
        if not self._columns:
            self._lay_out(transition)
        arrays = self._arrays(transition)
        packs: list[Sequence[torch.Tensor]] = [[arrays[name] for name in names] for names in self._packs]
        if self._state_parts:
            packs.append(self._state_parts)
        self._ring.append(packs)

    def take(self, env_id: int) -> dict[str, np.ndarray]:
        """End a row's episode and return its arrays by path, ``dones`` too. Shape of each: (num_steps, ...).

        The state that it starts from is below ``initial_state``, in the shape (1, ...).
        """
        initial = self._initial.pop(env_id)
        packs = self._ring.take(env_id)
        arrays = {
            column.name: np.ascontiguousarray(pack[:, column.start : column.stop]).reshape(len(pack), *column.shape)
            for columns, pack in zip(self._columns, packs, strict=False)
            for column in columns
        }
        if self._state_parts:
            arrays |= self._states_of(initial.pop(_PARTS), packs[-1])
        arrays |= initial
        arrays[layout.DONES] = np.zeros(len(packs[0]), np.uint8)
        arrays[layout.DONES][-1:] = 1
        return arrays

    def _states(self) -> dict[str, np.ndarray]:
        """Return the state of all rows, or what it can be made of later."""
        if self._state_parts:
            return {_PARTS: torch.cat(tuple(self._state_parts), dim=1).cpu().numpy()}
        state = flatten(self._environment.state(), layout.INITIAL_STATE)
        return {path: tensor.cpu().numpy() for path, tensor in state}

    def _states_of(self, initial: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
        states = self._environment.state_of(np.concatenate((initial, steps)))
        arrays = {}
        for path, values in flatten(states, ""):
            arrays[layout.INITIAL_STATE + path] = np.ascontiguousarray(values[:1])
            arrays[layout.STATES + path] = np.ascontiguousarray(values[1:])
        return arrays

    def _arrays(self, transition: Transition) -> dict[str, torch.Tensor]:
        action = transition.action
        if action.dtype is not torch.float32:
            action = action.to(torch.float32)
        arrays = {layout.ACTIONS: action, layout.REWARDS: transition.step.reward}
        if not self._state_parts:
            arrays |= flatten(self._environment.state(), layout.STATES)
        for path, keys in self._terms:
            value: Any = transition.observation
            for key in keys:
                value = value[key]
            arrays[path] = value
        return arrays

    def _lay_out(self, transition: Transition) -> None:
        """Decide which arrays lie side by side: vectors of one type; images are large enough to stand alone."""
        self._terms = list(_recorded_terms(transition.observation, self._observations))
        groups: dict[object, dict[str, torch.Tensor]] = {}
        for name, tensor in self._arrays(transition).items():
            groups.setdefault(tensor.dtype if tensor.ndim <= 2 else name, {})[name] = tensor
        self._packs = [list(group) for group in groups.values()]
        self._columns = [_columns(group) for group in groups.values()]


def flatten(tree: Observation | StateTree, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict: ``states/rigid_object/cube/root_pose``."""
    for name, value in tree.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            yield from flatten(dict(value), path)
        else:
            yield path, value


def observation_path(group: str) -> str:
    """Return where a group of observations lies: ``policy`` in ``obs``, as Isaac Lab has it, others beside it."""
    if group == "policy":
        return layout.OBSERVATIONS
    return group if group == layout.CAMERA_OBSERVATIONS else f"{layout.OBSERVATIONS}_{group}"


def _recorded_terms(observation: Observation, wanted: RecordedObservations) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield, for each term that is recorded, its path and the keys that lead to it in an observation."""
    for group, terms in observation.items():
        if wanted is RecordedObservations.ALL or (wanted is RecordedObservations.STATE and group == "policy"):
            for keys in _leaf_keys(terms):
                yield "/".join((observation_path(group), *keys)), (group, *keys)


def _leaf_keys(tree: Observation) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            for keys in _leaf_keys(dict(value)):
                yield (name, *keys)
        else:
            yield (name,)


def _columns(tensors: Mapping[str, torch.Tensor]) -> list[_Column]:
    columns, start = [], 0
    for name, tensor in tensors.items():
        stop = start + tensor[0].numel()
        columns.append(_Column(name=name, start=start, stop=stop, shape=tuple(tensor.shape[1:])))
        start = stop
    return columns
