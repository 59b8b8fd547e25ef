"""Set files and episodes aside, which keeps their content in a directory such as ``set_aside/`` of the job.

Each function may be interrupted at any point and called again; nothing is lost, and nothing is kept twice.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from pathlib import Path

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.storage.atomic import check_plain, flush_to_disk, storage_errors, written_in_place
from isaaclab_arena.storage.hdf5.dataset_assembly import make_dataset
from isaaclab_arena.storage.hdf5.episodes import list_episodes, read_attributes
from isaaclab_arena.storage.layout import episode_file_name


def move_aside(path: Path, directory: Path) -> Path:
    """Move a file into a directory, under a new name if its name is taken, and return its new path.

    Raises:
        StorageError: If it cannot be moved.
    """
    with storage_errors("set aside", path):
        directory.mkdir(parents=True, exist_ok=True)
        target = _free_name(directory, path.name)
        path.rename(target)
    return target


def set_no_files_aside(paths: Iterable[Path], directory: Path) -> Iterator[str]:
    """Move what has a file's name and is none, such as a directory or a pipe, into a directory; yield a line for each.

    Raises:
        StorageError: If one cannot be moved, or the system cannot tell what it is.
    """
    for path in paths:
        try:
            check_plain(path)
        except DamagedFileError as error:
            yield f"set aside {path.name}: {error}"
            move_aside(path, directory)


def keep_aside(path: Path, directory: Path) -> None:
    """Keep the current content of a file in a directory, because the file is about to be replaced.

    Raises:
        StorageError: If it cannot be kept.
    """
    with storage_errors("set aside", path):
        directory.mkdir(parents=True, exist_ok=True)
        if any(kept.samefile(path) for kept in _taken_names(directory, path.name)):
            return
        target = _free_name(directory, path.name)
        try:
            os.link(path, target)
        except OSError:
            # Not every file system has hard links; if the disk is at fault, copying fails too.
            with written_in_place(target) as temporary:
                shutil.copyfile(path, temporary)


def keep_episode_aside(dataset: Path, episode_index: int, directory: Path) -> None:
    """Copy an intact episode of a dataset into a file of its own in a directory.

    Raises:
        StorageError: If it cannot be read or written.
    """
    name = episode_file_name(episode_index)
    checksum = read_attributes(dataset, episode_index).get("checksum")
    if any(_holds(kept, episode_index, checksum) for kept in _taken_names(directory, name)):
        return
    with written_in_place(_free_name(directory, name)) as temporary:
        make_dataset([(episode_index, dataset)], temporary)


def drop_episodes(dataset: Path, episode_indices: Collection[int]) -> None:
    """Rewrite a dataset without some of its episodes, or remove it if none is left.

    The others must be intact. Chunks are copied as they are.

    Raises:
        StorageError: If the dataset cannot be read or written; it is then unchanged.
    """
    remaining = [index for index in list_episodes(dataset) if index not in episode_indices]
    if not remaining:
        with storage_errors("remove", dataset):
            dataset.unlink()
        return
    with written_in_place(dataset, overwrite=True) as temporary:
        make_dataset([(index, dataset) for index in remaining], temporary)
        flush_to_disk(temporary)


def _names(directory: Path, name: str) -> Iterator[Path]:
    """Yield possible names for a file in a directory: its own, then ``e000001.1.h5`` and so on."""
    yield directory / name
    for number in count(1):
        yield (directory / name).with_suffix(f".{number}{Path(name).suffix}")


def _free_name(directory: Path, name: str) -> Path:
    return next(path for path in _names(directory, name) if not os.path.lexists(path))


def _taken_names(directory: Path, name: str) -> Iterator[Path]:
    for path in _names(directory, name):
        if not path.exists():
            return
        yield path


def _holds(path: Path, episode_index: int, checksum: object) -> bool:
    try:
        return read_attributes(path, episode_index).get("checksum") == checksum
    except DamagedFileError:
        return False
