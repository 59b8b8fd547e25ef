"""Whether recorded episodes are what was written, and what they say of themselves, one after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from isaaclab_arena.errors import StorageError
from isaaclab_arena.long_work import told
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.hdf5.episode_template import EpisodeTemplate
from isaaclab_arena.storage.hdf5.opened_file import AlikeEpisodes, OpenRecording, hdf5_errors, mapped, opened
from isaaclab_arena.storage.hdf5.recording_image import block_of
from isaaclab_arena.storage.recorded_episode import AttributeValue


class EpisodeExaminer:
    """Looks at one episode after the other; those that look like the one before it take a twentieth of the time.

    Args:
        open_recording: Opens a recording with HDF5's library.
    """

    def __init__(self, open_recording: Callable[[Path], AbstractContextManager[OpenRecording]] = opened) -> None:
        self._opened = open_recording
        self._episodes = AlikeEpisodes()

    def examine(self, path: Path, episode_indices: Sequence[int]) -> list[dict[str, AttributeValue] | StorageError]:
        """Read the arrays of episodes, compare them with their checksums, and return their attributes.

        Args:
            path: The recording.
            episode_indices: Which episodes.

        Returns:
            For each episode its attributes, or what is wrong with it.

        Raises:
            StorageError: If the file as a whole cannot be read.
        """
        if self._episodes.template is not None and len(episode_indices) == 1:
            attributes = _examine_part(path, episode_indices[0], self._episodes.template)
            if attributes is not None:
                return [attributes]
        with self._opened(path) as recording:
            content = mapped(path)
            indices = told(episode_indices, "checking", path.name)
            return [self._examined(recording, index, content) for index in indices]

    def _examined(
        self, recording: OpenRecording, episode_index: int, content: memoryview
    ) -> dict[str, AttributeValue] | StorageError:
        try:
            with hdf5_errors("read", recording.path):
                whole = self._episodes.read(recording, episode_index, content)
                return recording.verified_attributes(episode_index) if whole is None else whole.attributes
        except StorageError as error:
            return error


def _examine_part(path: Path, episode_index: int, template: EpisodeTemplate) -> dict[str, AttributeValue] | None:
    """Return the attributes of an episode that has a file of its own, None if HDF5 has to look at it."""
    with storage_errors("read", path):
        content = path.read_bytes()
    block = block_of(content)
    if block is None or block.episode_index != episode_index:
        return None
    whole = template.read(content, block.origin + block.group_offset)
    return None if whole is None else whole.attributes
