"""Write recorded episodes as a file of demonstrations for robomimic's ``SequenceDataset``."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.pictures import in_colours
from isaaclab_arena.storage.atomic import written_in_place
from isaaclab_arena.storage.hdf5.episodes import hdf5_errors
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import (
    ACTIONS,
    CAMERA_OBSERVATIONS,
    DATA_GROUP,
    DONES,
    OBSERVATIONS,
    REWARDS,
    demo_name,
)
from isaaclab_arena.storage.recorded_episode import Arrays, RecordedEpisode

FLAT = "flat"
"""All that group ``policy`` observes, side by side: what robomimic sees of an environment behind Gym's interface."""

NEXT_OBSERVATIONS = "next_obs"
MASKS = "mask"
_VALIDATED_ONE_IN = 10
_KEPT_ATTRIBUTES = (
    "job",
    "episode_index",
    "seed",
    "episode_seed",
    "success",
    "outcome",
    "episode_return",
    "control_dt",
    "language_instruction",
)


@dataclass(kw_only=True)
class _Written:
    """The content of the file so far: success per demonstration (None if not measured), and control steps."""

    success: dict[int, bool | None] = field(default_factory=dict)
    num_steps: int = 0


def write_robomimic_file(
    path: Path,
    episodes: Iterable[RecordedEpisode],
    env_args: Mapping[str, Any],
    *,
    scaled: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> dict[str, list[int]]:
    """Write demonstrations into a new file atomically, and return the episodes of each mask."""
    with (
        written_in_place(path) as temporary,
        hdf5_errors("write", path),
        h5py.File(temporary, "w", locking=False) as file,
    ):
        # One episode at a time is held in memory. `scaled` maps recorded actions to learned ones, (num_samples,
        # action_dim).
        data = file.create_group(DATA_GROUP)
        written = _Written()
        for episode in episodes:
            _write_demonstration(data.create_group(demo_name(episode.episode_index)), episode, scaled)
            success = episode.attributes.get("success")
            written.success[episode.episode_index] = None if success is None else bool(success)
            written.num_steps += len(episode.arrays[ACTIONS])
        data.attrs["total"] = written.num_steps
        data.attrs["env_args"] = json_line(env_args)
        masks = masks_of(written.success)
        for name, indices in masks.items():
            file[f"{MASKS}/{name}"] = np.array([demo_name(index).encode() for index in indices])
    return masks


def masks_of(success: Mapping[int, bool | None]) -> dict[str, list[int]]:
    """Return the episodes of each robomimic filter key, without empty keys. `success` None is not measured."""
    # Every tenth index is for validation. The split depends on the index alone, so a growing recording moves no
    # episode. A single episode is for training.
    every = sorted(success)
    valid = [index for index in every if index % _VALIDATED_ONE_IN == 0] if len(every) > 1 else []
    splits = {"train": [index for index in every if index not in set(valid)], "valid": valid}
    solved = {index for index in every if success[index]}
    masks = {
        **splits,
        "successful": sorted(solved),
        **{f"successful_{name}": [index for index in split if index in solved] for name, split in splits.items()},
    }
    return {name: indices for name, indices in masks.items() if indices}


def observations_of(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the observations of an episode's policy under names without ``/``."""
    # Terms of group ``policy`` and cameras keep their names; other groups prefix theirs. A scalar per step becomes a
    # vector of size one. Images become RGB if their layout is certain. `FLAT` is added if group ``policy`` was
    # recorded.
    seen: dict[str, np.ndarray] = {}
    for path, array in sorted(arrays.items(), key=lambda item: item[0].partition("/")[0] != OBSERVATIONS):
        group, _, term = path.partition("/")
        if array.size == 0 or not (group in {OBSERVATIONS, CAMERA_OBSERVATIONS} or group.startswith("obs_")):
            continue
        name = term.replace("/", "_")
        if group not in {OBSERVATIONS, CAMERA_OBSERVATIONS} or name in seen:
            name = f"{group.removeprefix('obs_')}_{name}"
        shown = array
        if group == CAMERA_OBSERVATIONS:
            # Depth, segmentation and image stacks stay unchanged.
            with suppress(ValueError):
                shown = in_colours(array)
        seen[name] = shown[:, None] if shown.ndim == 1 else shown
    terms = {
        path.removeprefix(f"{OBSERVATIONS}/"): array
        for path, array in arrays.items()
        if path.startswith(f"{OBSERVATIONS}/")
    }
    return {**seen, FLAT: flat_array(terms, batch_dims=1)} if terms else seen


def _write_demonstration(
    group: h5py.Group, episode: RecordedEpisode, scaled: Callable[[np.ndarray], np.ndarray]
) -> None:
    actions = episode.arrays[ACTIONS]
    observations = observations_of(episode.arrays)
    if not observations:
        raise StorageError(
            f"{demo_name(episode.episode_index)} was recorded without observations, and there is nothing to learn "
            "from; record with --record_observations state, or all"
        )
    group.attrs["num_samples"] = len(actions)
    for name in _KEPT_ATTRIBUTES:
        if name in episode.attributes:
            group.attrs[name] = episode.attributes[name]
    group[ACTIONS] = scaled(actions)
    dones = np.zeros(len(actions), np.uint8)
    dones[-1:] = 1
    group[DONES] = episode.arrays.get(DONES, dones)
    group[REWARDS] = episode.arrays.get(REWARDS, np.zeros(len(actions), np.float32))
    for name, array in observations.items():
        group[f"{OBSERVATIONS}/{name}"] = array
        # The observation after the last action is not recorded. `dones` is 1 there, so no learner uses it.
        group[f"{NEXT_OBSERVATIONS}/{name}"] = np.concatenate([array[1:], array[-1:]])


def flat_array(terms: Mapping[str, np.ndarray], *, batch_dims: int = 0) -> np.ndarray:
    """Concatenate terms in alphabetical order, as files keep them. (*batch, ...) -> (*batch, size), float32."""
    parts = [terms[name].reshape(*terms[name].shape[:batch_dims], -1).astype(np.float32) for name in sorted(terms)]
    return np.concatenate(parts, axis=-1)
