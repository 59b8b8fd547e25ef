"""One file of many episodes, made of files of one episode and of datasets."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import h5py
from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]  compiled, its stubs lack it

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.hdf5.episodes import verify_episodes
from isaaclab_arena.storage.hdf5.opened_file import AlikeEpisodes, OpenRecording, hdf5_errors, mapped, opened
from isaaclab_arena.storage.hdf5.recording_image import DatasetWriter, EpisodeBlock, block_of
from isaaclab_arena.storage.layout import ACTIONS, DATA_GROUP, demo_name, episode_index_of_file
from isaaclab_arena.storage.recorded_episode import num_samples_of

_WRITE_BYTES = 1 << 20


def make_dataset(sources: Sequence[tuple[int, Path]], target: Path) -> None:
    """Make a file that holds verified episodes of other files.

    Args:
        sources: Index of each episode, and the file that holds it.
        target: The file to make; there must be none.

    Raises:
        StorageError: If a source is damaged or cannot be read, or the target cannot be written.
    """
    if sources and assemble_dataset(sources, target):
        return
    target.unlink(missing_ok=True)
    copy_episodes(sources, target)
    verify_episodes(target, told([index for index, _ in sources], "verifying", _final_name(target)))


def copy_episodes(sources: Sequence[tuple[int, Path]], target: Path) -> None:
    """Make a file that holds episodes of other files; compressed chunks are copied as they are.

    Args:
        sources: Index of each episode, and the file that holds it.
        target: The file to make; there must be none.

    Raises:
        StorageError: If a source cannot be read or the target cannot be written.
    """
    with hdf5_errors("write", target), h5py.File(target, "x", locking=False) as file:
        data = file.create_group(DATA_GROUP)
        total, env_args = 0, "{}"
        counted = told(sources, "consolidating", _final_name(target))
        for path, group_of_sources in groupby(counted, key=lambda source: source[1]):
            with opened(path) as source:
                env_args = str(source.attributes(source.data).get("env_args", env_args))
                for index, _ in group_of_sources:
                    group = source.group(index)
                    h5o.copy(group, b".", data.id, demo_name(index).encode())
                    total += num_samples_of(source.attributes(group))
        data.attrs["total"] = total
        data.attrs["env_args"] = env_args


def assemble_dataset(sources: Sequence[tuple[int, Path]], target: Path) -> bool:
    """Make a file that holds episodes as `write_episode` wrote them, uncompressed, without the library of HDF5.

    Each episode is read once and compared with its own checksum.

    Args:
        sources: Index of each episode, and the file that holds it; at least one.
        target: The file to make; there must be none.

    Returns:
        Whether all sources were such episodes. If not, the target is no recording; see `copy_episodes`.

    Raises:
        StorageError: If a source cannot be read or the target cannot be written.
    """
    indices, total, env_args = [], 0, "{}"
    with hdf5_errors("write", target):
        with target.open("xb", buffering=_WRITE_BYTES) as file, ExitStack() as kept_open:
            writer, datasets = DatasetWriter(file), _Datasets(kept_open)
            for index, path in told(sources, "consolidating", _final_name(target)):
                block = (
                    _block_of_part(path)
                    if episode_index_of_file(path.name) is not None
                    else datasets.block(index, path)
                )
                if block is None or block.episode_index != index:
                    return False
                writer.add(block)
                indices.append(index)
                total += block.num_samples
                env_args = block.env_args
            writer.finish(env_args, total)
        _check_assembled(target, indices)
    return True


def _final_name(target: Path) -> str:
    """Return the name that a file will have once it is in place, for people."""
    return target.name.removeprefix(".").partition(".hdf5")[0] + ".hdf5"


def _block_of_part(path: Path) -> EpisodeBlock | None:
    with storage_errors("read", path):
        return block_of(path.read_bytes())


class _Datasets:
    """Datasets from which episodes are taken over, byte by byte.

    Args:
        kept_open: Closes them.
    """

    def __init__(self, kept_open: ExitStack) -> None:
        self._kept_open = kept_open
        self._opened: dict[Path, tuple[OpenRecording, memoryview, str]] = {}
        self._episodes = AlikeEpisodes()

    def block(self, episode_index: int, path: Path) -> EpisodeBlock | None:
        """Return an episode of a dataset, None if it is not one that `assemble_dataset` has put there."""
        if path not in self._opened:
            recording = self._kept_open.enter_context(opened(path))
            env_args = str(recording.attributes(recording.data).get("env_args", "{}"))
            self._opened[path] = recording, mapped(path), env_args
        recording, content, env_args = self._opened[path]
        whole = self._episodes.read(recording, episode_index, content)
        if whole is None:
            return None
        return EpisodeBlock(
            content=whole.block.content,
            pointers=whole.block.pointers,
            origin=whole.block.origin,
            episode_index=episode_index,
            group_offset=whole.group_offset,
            num_samples=num_samples_of(whole.attributes),
            env_args=env_args,
        )


def _check_assembled(path: Path, indices: Sequence[int]) -> None:
    """Let HDF5 itself read the table of contents and an episode, whose bytes have been checked before."""
    with opened(path) as recording:
        if recording.indices() != sorted(indices) or ACTIONS.encode() not in recording.group(indices[-1]):
            raise StorageError(f"{path} does not hold the episodes that were written to it")
