"""Read recorded episodes as training data: every control step with the actions that followed it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.storage.hdf5.episodes import list_episodes, locate_arrays, read_attributes
from isaaclab_arena.storage.layout import ACTIONS, OBSERVATIONS, demo_name
from isaaclab_arena.storage.recordings import RecordedArray, RecordedSteps
from isaaclab_arena_gr00t.joints import to_groups
from isaaclab_arena_gr00t.observations import CAMERA_GROUP, STATE_GROUP, Wiring, model_observation, shown_now

_ACTIONS_DIMENSIONS = 2


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One recorded episode."""

    file: Path  # the recording
    episode_index: int  # in the recording
    num_steps: int
    instruction: str
    job: str  # the job that recorded it
    checksum: object = None  # of its arrays, as recorded; None if the recording has none


@dataclass(frozen=True, kw_only=True)
class RecordedSpaces:
    """The observations and actions of a recording's environment; joint names are not recorded."""

    # Group, then term, then `ArraySpec`.
    observation_spec: Mapping[str, Mapping[str, ArraySpec]]
    action_spec: ArraySpec


@dataclass(frozen=True, kw_only=True)
class DemonstrationBatch:
    """Some control steps of demonstrations."""

    observation: Mapping[str, Any]  # the model's input, as in an evaluation
    action: Mapping[str, np.ndarray]  # the following actions, by key; shape of each: (batch, horizon, size), float32
    is_padding: np.ndarray  # steps after the end of the episode; shape: (batch, horizon), bool


def find_demonstrations(files: Iterable[Path], *, only_successes: bool = True) -> list[Demonstration]:
    """Return the episodes of recordings by file and index; StorageError if unreadable, ConfigError if there is none."""
    found = []
    left_out = 0
    for file in files:
        for index in list_episodes(file):
            attributes = read_attributes(file, index)
            success = attributes.get("success")
            # Foreign recordings may hold any value; only a true boolean or integer counts as success.
            if only_successes and not (isinstance(success, bool | int) and success):
                left_out += 1
                continue
            demonstration = Demonstration(
                file=file,
                episode_index=index,
                num_steps=_num_steps(file, index, attributes.get("num_samples")),
                instruction=str(attributes.get("language_instruction", "")),
                job=str(attributes.get("job", "")),
                checksum=attributes.get("checksum"),
            )
            if demonstration.num_steps > 0:
                found.append(demonstration)
    if not found:
        why = f"; {left_out} did not succeed" if left_out else ""
        raise ConfigError(Problem(f"there is no demonstration in these recordings{why}", key="--dataset"))
    return found


def _num_steps(file: Path, index: int, said: object) -> int:
    """Return the number of control steps of an episode, checked against its actions."""
    actions = locate_arrays(file, index).get(ACTIONS)
    has = 0 if actions is None or len(actions.shape) != _ACTIONS_DIMENSIONS else actions.shape[0]
    if not isinstance(said, int) or said != has:
        raise StorageError(
            f"{file}: {demo_name(index)}: num_samples: must be {has}, the number of its actions, got {said!r:.80}"
        )
    return has


def recorded_spaces(demonstration: Demonstration, steps: RecordedSteps) -> RecordedSpaces:
    """Return the observations and actions of a demonstration's environment; ConfigError if it has no pictures."""
    groups: dict[str, dict[str, ArraySpec]] = {CAMERA_GROUP: {}, STATE_GROUP: {}}
    prefixes = {f"{CAMERA_GROUP}/": CAMERA_GROUP, f"{OBSERVATIONS}/": STATE_GROUP}
    for name in steps.names(demonstration.file, demonstration.episode_index):
        for prefix, group in prefixes.items():
            if name.startswith(prefix):
                array = steps.array(_place(demonstration, name))
                dtype = torch.uint8 if array.dtype == np.uint8 else torch.float32
                groups[group][name.removeprefix(prefix)] = ArraySpec(shape=tuple(array.shape[1:]), dtype=dtype)
    if not groups[CAMERA_GROUP]:
        message = f"{demonstration.file} holds no pictures; record with isaaclab-arena collect"
        raise ConfigError(Problem(message, key="--dataset"))
    action = steps.array(_place(demonstration, ACTIONS))
    return RecordedSpaces(observation_spec=groups, action_spec=ArraySpec(shape=tuple(action.shape[1:])))


class DemonstrationSteps:
    """All control steps of the demonstrations, numbered consecutively; `wiring` locates the model's data in them."""

    def __init__(
        self, demonstrations: Sequence[Demonstration], wiring: Wiring, *, horizon: int, steps: RecordedSteps
    ) -> None:
        self.demonstrations = tuple(demonstrations)
        self._wiring = wiring
        self._horizon = horizon
        self._steps = steps
        # Number of the first step of each episode, and at the end the total number of steps.
        self._starts = np.cumsum([0, *(demonstration.num_steps for demonstration in self.demonstrations)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def num_demonstrations(self) -> int:
        """Number of episodes."""
        return len(self.demonstrations)

    def batch(self, numbers: Sequence[int] | np.ndarray) -> DemonstrationBatch:
        """Return the control steps of these numbers, each in [0, len(self)); shape of ``numbers``: (batch,)."""
        places = [self._locate(int(number)) for number in numbers]
        # Use the functions of an evaluation, so that the model sees the same inputs in training.
        shown = shown_now(
            {
                CAMERA_GROUP: {
                    camera: self._gather(places, f"{CAMERA_GROUP}/{camera}") for camera in self._wiring.cameras.values()
                },
                STATE_GROUP: {
                    term: self._gather(places, f"{OBSERVATIONS}/{term}") for term in self._wiring.state_terms
                },
            },
            self._wiring,
            list(range(len(places))),
        )
        instructions = [demonstration.instruction for demonstration, _ in places]
        observation = model_observation(shown, self._wiring, instructions)
        chunks = [self._chunk(demonstration, step) for demonstration, step in places]
        actions = torch.from_numpy(np.stack([chunk for chunk, _ in chunks]))
        groups = {key: values.numpy() for key, values in to_groups(actions, self._wiring.action).items()}
        return DemonstrationBatch(
            observation=observation, action=groups, is_padding=np.stack([is_padding for _, is_padding in chunks])
        )

    def states(self) -> dict[str, np.ndarray]:
        """Return the state at every step, by key. Shape of each: (num_steps, size), float32."""
        if not self._wiring.state_terms:
            return {}
        terms = [self._all(f"{OBSERVATIONS}/{term}") for term in self._wiring.state_terms]
        return _grouped(np.concatenate(terms, axis=1), self._wiring.state)

    def actions(self) -> dict[str, np.ndarray]:
        """Return the action at every step, by key. Shape of each: (num_steps, size), float32."""
        return _grouped(self._all(ACTIONS), self._wiring.action)

    def _locate(self, number: int) -> tuple[Demonstration, int]:
        episode = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self.demonstrations[episode], number - int(self._starts[episode])

    def _gather(self, places: Sequence[tuple[Demonstration, int]], name: str) -> torch.Tensor:
        return torch.from_numpy(
            np.stack([self._steps.array(_place(demonstration, name))[step] for demonstration, step in places])
        )

    def _chunk(self, demonstration: Demonstration, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions from a step on, the last one repeated at the end, and the mask of repetitions."""
        actions = self._steps.array(_place(demonstration, ACTIONS))
        wanted = np.arange(step, step + self._horizon)
        return np.asarray(actions[np.minimum(wanted, len(actions) - 1)], np.float32), wanted >= len(actions)

    def _all(self, name: str) -> np.ndarray:
        arrays = (self._steps.array(_place(demonstration, name)) for demonstration in self.demonstrations)
        return np.concatenate([np.asarray(array, np.float32) for array in arrays])


def split(demonstrations: Sequence[Demonstration], *, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of the demonstrations to train on and to hold out, both ascending."""
    generator = np.random.default_rng(seed)
    by_job: dict[str, list[int]] = {}
    for position, demonstration in enumerate(demonstrations):
        by_job.setdefault(demonstration.job, []).append(position)
    held_out: list[int] = []
    # Take the share from every job, so that every task is validated. A job with two or more episodes holds out at least
    # one, unless the share is 0.
    for positions in by_job.values():
        number = round(share * len(positions))
        if share > 0 and len(positions) > 1:
            number = min(max(number, 1), len(positions) - 1)
        held_out += generator.permutation(positions)[:number].tolist()
    chosen = set(held_out)
    return [position for position in range(len(demonstrations)) if position not in chosen], sorted(chosen)


def _place(demonstration: Demonstration, name: str) -> RecordedArray:
    return RecordedArray(file=demonstration.file, episode_index=demonstration.episode_index, name=name)


def _grouped(values: np.ndarray, places: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    return {key: values[:, list(columns)] for key, columns in places.items()}
