"""From a file per episode, which survives any crash, to one dataset per job, which people want to have."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import flush_to_disk, storage_errors, written_in_place
from isaaclab_arena.storage.hdf5.dataset_assembly import make_dataset
from isaaclab_arena.storage.hdf5.episodes import list_episodes, read_checksums, verify_episodes
from isaaclab_arena.storage.layout import demo_name, episode_index_of_file

_REMOVED_AT_ONCE = 8
_MANY = 100


@dataclass(frozen=True, kw_only=True)
class Consolidation:
    """What became of the episode files of a job.

    Attributes:
        episode_indices: Episodes that the dataset holds now, ascending.
        damaged: Episode files that are damaged or gone, with the reason; those that are there stay where they are.
    """

    episode_indices: tuple[int, ...]
    damaged: tuple[tuple[Path, str], ...]

    @property
    def loss(self) -> str | None:
        """What is lost, and the way out; None where nothing is."""
        if not self.damaged:
            return None
        episodes = "an episode" if len(self.damaged) == 1 else f"{len(self.damaged)} episodes"
        first = self.damaged[0][1]
        return f"recordings of {episodes} are damaged or gone since they finished ({first}); --resume runs them again"


def consolidate(parts: Sequence[Path], dataset: Path) -> Consolidation:
    """Copy episode files into one dataset file, verify every episode there, then remove the episode files.

    A dataset that is there already keeps its episodes and gains those of the parts, so consolidating again after a
    crash at any moment ends in the same file. Compressed chunks are copied as they are.

    Args:
        parts: Files of `write_episode`.
        dataset: The file to make.

    Raises:
        StorageError: If writing fails, the system cannot read a part, or a part holds other content than the same
            episode of the dataset.
    """
    sources = {index: part for part in parts if (index := episode_index_of_file(part.name)) is not None}
    strangers = [part for part in parts if episode_index_of_file(part.name) is None]
    damaged = [(part, f"{part} is not named like an episode file") for part in strangers]
    try:
        indices = _consolidate(sources, dataset)
    except StorageError:
        reasons = _damage(sources, dataset)
        if not reasons:
            raise
        damaged += [(sources.pop(index), reason) for index, reason in reasons.items()]
        indices = _consolidate(sources, dataset)
    return Consolidation(episode_indices=indices, damaged=tuple(damaged))


def _consolidate(sources: Mapping[int, Path], dataset: Path) -> tuple[int, ...]:
    kept = list_episodes(dataset) if dataset.exists() else []
    # While this process was stopped, another one may have taken it for dead and have done this for it.
    sources = {index: part for index, part in sources.items() if part.exists() or index not in kept}
    _refuse_different(dataset, {index: sources[index] for index in kept if index in sources})
    everything = {**sources, **dict.fromkeys(kept, dataset)}
    indices = tuple(sorted(everything))
    if sources:
        with written_in_place(dataset, overwrite=True) as temporary:
            make_dataset(sorted(everything.items()), temporary)
            # The parts are removed next, so the dataset must survive a power failure.
            flush_to_disk(temporary)
    _remove(list(sources.values()), dataset)
    return indices


def _remove(parts: Sequence[Path], dataset: Path) -> None:
    """Remove files that a dataset has taken in, many of them several at a time.

    Some file systems take milliseconds for each, over a network or because they hand the blocks back to the disk, and
    do several in the same time.
    """
    if len(parts) < _MANY:
        for part in parts:
            _remove_one(part)
        return
    with ThreadPoolExecutor(_REMOVED_AT_ONCE) as pool:
        removals = [pool.submit(_remove_one, part) for part in parts]
        for removal in told(removals, "tidying up", dataset.name):
            wait([removal])
    # One that cannot be removed keeps no other from being.
    for removal in removals:
        removal.result()


def _remove_one(part: Path) -> None:
    with storage_errors("remove", part):
        part.unlink(missing_ok=True)


def _damage(sources: Mapping[int, Path], dataset: Path) -> dict[int, str]:
    """Return why, for each episode whose file does not verify, or is gone and has not been brought in."""
    reasons = {}
    kept = list_episodes(dataset) if dataset.exists() else []
    for index, part in sources.items():
        if not os.path.lexists(part):
            reasons |= {} if index in kept else {index: f"{part} is gone"}
            continue
        try:
            verify_episodes(part, [index])
        except DamagedFileError as error:
            reasons[index] = str(error)
    return reasons


def _refuse_different(dataset: Path, parts: Mapping[int, Path]) -> None:
    """Refuse parts that hold other content than the same episodes of a dataset."""
    if not parts:
        return
    kept = read_checksums(dataset, parts)
    comparing = told(parts.items(), "comparing", dataset.name)
    for (index, part), checksum in zip(comparing, kept, strict=True):
        if read_checksums(part, [index]) != [checksum]:
            raise StorageError(f"{dataset} and {part} both hold {demo_name(index)}, with different content")
