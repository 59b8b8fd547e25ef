"""Datasets made of many episodes: one per job, and files of demonstrations for robomimic."""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.interfaces.specs import in_colours
from isaaclab_arena.logs import told
from isaaclab_arena.storage import episode_file, episodes, layout
from isaaclab_arena.storage.atomic import flush_to_disk, json_line, storage_errors, written_in_place


def make_dataset(sources: Sequence[tuple[int, Path]], dataset: Path, *, overwrite: bool = False) -> None:
    """Make a dataset of verified episodes of other files. `sources` are indices and files."""
    with written_in_place(dataset, overwrite=overwrite) as temporary:
        # Fast path first: byte copies without HDF5's library. Copies by the library are verified afterwards.
        if not sources or not assemble_dataset(sources, temporary, name=dataset.name):
            temporary.unlink(missing_ok=True)
            copy_episodes(sources, temporary, name=dataset.name)
            episodes.verify_episodes(temporary, told([index for index, _ in sources], "verifying", dataset.name))
        # It takes the place of the dataset and of parts that are removed next, so it must survive a power failure.
        if overwrite:
            flush_to_disk(temporary)


def copy_episodes(sources: Sequence[tuple[int, Path]], target: Path, *, name: str = "") -> None:
    """Make a new file with episodes of other files through HDF5's library; compressed chunks are copied unchanged."""
    # `name` is the file's final name, for messages.
    with episodes.hdf5_errors("write", target), h5py.File(target, "x", locking=False) as file:
        data = file.create_group(layout.DATA_GROUP)
        total, env_args = 0, "{}"
        counted = told(sources, "consolidating", name or target.name)
        for path, group_of_sources in groupby(counted, key=lambda source: source[1]):
            with episodes.opened(path) as source:
                env_args = str(source.attributes(source.data).get("env_args", env_args))
                for index, _ in group_of_sources:
                    group = source.group(index)
                    h5o.copy(group, b".", data.id, layout.demo_name(index).encode())
                    total += episode_file.num_samples_of(source.attributes(group))
        data.attrs["total"] = total
        data.attrs["env_args"] = env_args


def assemble_dataset(sources: Sequence[tuple[int, Path]], target: Path, *, name: str = "") -> bool:
    """Make a new file of uncompressed files of `write_episode`, without HDF5's library. False if impossible."""
    # Each episode is read once and compared with its own checksum. On False the target is not a valid recording, and
    # `copy_episodes` can replace it.
    total, env_args = 0, "{}"
    with episodes.hdf5_errors("write", target):
        with target.open("xb", buffering=1 << 20) as file:
            members: dict[str, int] = {}
            # The superblock's place is kept free, and the file is valid HDF5 only once it is written.
            position = file.write(bytes(episode_file.SUPERBLOCK_BYTES))
            for index, path in told(sources, "consolidating", name or target.name):
                block = None
                if layout.episode_index_of_file(path.name) is not None:
                    with storage_errors("read", path):
                        block = episode_file.block_of(path.read_bytes())
                if block is None or block.episode_index != index:
                    return False
                members[layout.demo_name(index)] = position + block.group_offset
                position += sum(map(file.write, block.pieces_at(position)))
                total += block.num_samples
                env_args = block.env_args

            # The groups above the episodes follow them.
            above, root_address = episode_file.groups_above(
                members, env_args.encode(), struct.pack("<q", total), position
            )
            file.write(above)
            file.seek(0)
            file.write(episode_file.superblock(root_address=root_address, end_address=position + len(above)))

        # HDF5 can read the file now that it is closed. It reads the table of contents and one episode; the bytes of all
        # episodes were checked before.
        indices = [index for index, _ in sources]
        with episodes.opened(target) as recording:
            is_whole = sorted(recording.names) == sorted(indices)
            if not is_whole or layout.ACTIONS.encode() not in recording.group(indices[-1]):
                raise StorageError(f"{target} does not hold the episodes that were written to it")
    return True


@dataclass(frozen=True, kw_only=True)
class Consolidation:
    """The result of `consolidate`."""

    episode_indices: tuple[int, ...]  # episodes of the dataset, ascending
    # Damaged or missing episode files with the reason; existing ones stay in place.
    damaged: tuple[tuple[Path, str], ...]
    loss: str | None = None  # the lost recordings and the remedy; None if none is lost


def consolidate(parts: Sequence[Path], dataset: Path) -> Consolidation:
    """Copy episode files into one dataset, verify every episode there, then remove the episode files."""
    # An existing dataset keeps its episodes and gains those of the parts, so a repeat after a crash at any moment gives
    # the same file. A part that differs from the same episode of the dataset is a StorageError.
    sources = {index: part for part in parts if (index := layout.episode_index_of_file(part.name)) is not None}
    strangers = [part for part in parts if layout.episode_index_of_file(part.name) is None]
    damaged = [(part, f"{part} is not named like an episode file") for part in strangers]
    try:
        indices = _consolidate(sources, dataset)
    except StorageError:
        # Verification of each part is slow, so it follows only a failure, and excludes the damaged parts.
        reasons: dict[int, str] = {}
        kept = episodes.list_episodes(dataset) if dataset.exists() else []
        for index, part in sources.items():
            if os.path.lexists(part):
                try:
                    episodes.verify_episodes(part, [index])
                except DamagedFileError as error:
                    reasons[index] = str(error)
            elif index not in kept:
                reasons[index] = f"{part} is gone"
        if not reasons:
            raise
        damaged += [(sources.pop(index), reason) for index, reason in reasons.items()]
        indices = _consolidate(sources, dataset)
    loss = None
    if damaged:
        number = "an episode" if len(damaged) == 1 else f"{len(damaged)} episodes"
        first = damaged[0][1]
        loss = f"recordings of {number} are damaged or gone since they finished ({first}); resume to run them again"
    return Consolidation(episode_indices=indices, damaged=tuple(damaged), loss=loss)


def _consolidate(sources: Mapping[int, Path], dataset: Path) -> tuple[int, ...]:
    kept = episodes.list_episodes(dataset) if dataset.exists() else []
    # While this process was paused, another one may have presumed it dead and have consolidated the parts.
    sources = {index: part for index, part in sources.items() if part.exists() or index not in kept}
    # An episode that the dataset and a part both hold must be the same in both.
    if twice := {index: sources[index] for index in kept if index in sources}:
        checksums = episodes.read_checksums(dataset, twice)
        comparing = told(twice.items(), "comparing", dataset.name)
        for (index, part), checksum in zip(comparing, checksums, strict=True):
            if episodes.read_checksums(part, [index]) != [checksum]:
                raise StorageError(f"{dataset} and {part} both hold {layout.demo_name(index)}, with different content")
    everything = {**sources, **dict.fromkeys(kept, dataset)}
    if sources:
        make_dataset(sorted(everything.items()), dataset, overwrite=True)

    def remove(part: Path) -> None:
        with storage_errors("remove", part):
            part.unlink(missing_ok=True)

    # Some file systems take milliseconds per file, over a network or because they return the blocks to the disk, but
    # handle several in parallel. A file that cannot be removed does not keep the others.
    with ThreadPoolExecutor(8) as pool:
        removals = [pool.submit(remove, part) for part in sources.values()]
        for removal in told(removals, "tidying up", dataset.name):
            wait([removal])
    for removal in removals:
        removal.result()
    return tuple(sorted(everything))


# Write recorded episodes as a file of demonstrations for robomimic's ``SequenceDataset``.

FLAT = "flat"  # the terms of group ``policy`` side by side, as robomimic sees an environment behind Gym's interface
NEXT_OBSERVATIONS = "next_obs"
MASKS = "mask"

_KEPT_ATTRIBUTES = (
    *("job", "episode_index", "seed", "episode_seed", "success", "outcome", "episode_return"),
    *("control_dt", "language_instruction"),
)


def write_robomimic_file(
    path: Path,
    recorded: Iterable[episode_file.RecordedEpisode],
    env_args: Mapping[str, Any],
    *,
    scaled: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> dict[str, list[int]]:
    """Write demonstrations into a new file atomically, and return the episodes of each mask."""
    # `scaled` maps recorded actions to learned ones, (num_samples, action_dim).
    successes: dict[int, bool | None] = {}
    num_steps = 0
    with (
        written_in_place(path) as temporary,
        episodes.hdf5_errors("write", path),
        h5py.File(temporary, "w", locking=False) as file,
    ):
        data = file.create_group(layout.DATA_GROUP)
        # One episode at a time is held in memory.
        for episode in recorded:
            group_name = layout.demo_name(episode.episode_index)
            group = data.create_group(group_name)
            actions = episode.arrays[layout.ACTIONS]
            observations = observations_of(episode.arrays)
            if not observations:
                way_out = "there is nothing to learn from; record with --record_observations state, or all"
                raise StorageError(f"{group_name} was recorded without observations, and {way_out}")
            group.attrs["num_samples"] = len(actions)
            for name in _KEPT_ATTRIBUTES:
                if name in episode.attributes:
                    group.attrs[name] = episode.attributes[name]
            group[layout.ACTIONS] = scaled(actions)
            dones = np.zeros(len(actions), np.uint8)
            dones[-1:] = 1
            group[layout.DONES] = episode.arrays.get(layout.DONES, dones)
            group[layout.REWARDS] = episode.arrays.get(layout.REWARDS, np.zeros(len(actions), np.float32))
            for name, array in observations.items():
                group[f"{layout.OBSERVATIONS}/{name}"] = array
                # The observation after the last action is not recorded. `dones` is 1 there, so no learner uses it.
                group[f"{NEXT_OBSERVATIONS}/{name}"] = np.concatenate([array[1:], array[-1:]])
            success = episode.attributes.get("success")
            successes[episode.episode_index] = None if success is None else bool(success)
            num_steps += len(actions)

        data.attrs["total"] = num_steps
        data.attrs["env_args"] = json_line(env_args)
        # The episodes of each filter key. Every tenth index is for validation: the split depends on the index alone, so
        # a growing recording moves no episode. A single episode is for training.
        every = sorted(successes)
        valid = [index for index in every if index % 10 == 0] if len(every) > 1 else []
        splits = {"train": [index for index in every if index not in set(valid)], "valid": valid}
        masks = {**splits, "successful": [index for index in every if successes[index]]}
        for name, split in splits.items():
            masks[f"successful_{name}"] = [index for index in split if successes[index]]
        masks = {name: indices for name, indices in masks.items() if indices}
        for name, indices in masks.items():
            file[f"{MASKS}/{name}"] = np.array([layout.demo_name(index).encode() for index in indices])
    return masks


def observations_of(arrays: episode_file.Arrays) -> dict[str, np.ndarray]:
    """Return the observations of an episode's policy under names without ``/``."""
    # Terms of group ``policy`` and cameras keep their names; other groups prefix theirs. A scalar per step becomes a
    # vector of size one. Images become RGB if their layout is certain. `FLAT` is added if group ``policy`` was
    # recorded.
    seen: dict[str, np.ndarray] = {}
    plain = {layout.OBSERVATIONS, layout.CAMERA_OBSERVATIONS}
    for path, array in sorted(arrays.items(), key=lambda item: item[0].partition("/")[0] != layout.OBSERVATIONS):
        group, _, term = path.partition("/")
        if array.size == 0 or not (group in plain or group.startswith("obs_")):
            continue
        name = term.replace("/", "_")
        if group not in plain or name in seen:
            name = f"{group.removeprefix('obs_')}_{name}"
        shown = array
        if group == layout.CAMERA_OBSERVATIONS:
            # Depth, segmentation and image stacks stay unchanged.
            with suppress(ValueError):
                shown = in_colours(array)
        seen[name] = shown[:, None] if shown.ndim == 1 else shown
    above = f"{layout.OBSERVATIONS}/"
    terms = {path.removeprefix(above): array for path, array in arrays.items() if path.startswith(above)}
    return {**seen, FLAT: flat_array(terms, batch_dims=1)} if terms else seen


def flat_array(terms: Mapping[str, np.ndarray], *, batch_dims: int = 0) -> np.ndarray:
    """Concatenate terms in alphabetical order, as files keep them. (*batch, ...) -> (*batch, size), float32."""
    parts = [terms[name].reshape(*terms[name].shape[:batch_dims], -1).astype(np.float32) for name in sorted(terms)]
    return np.concatenate(parts, axis=-1)
