"""An episode file that is there already when the same episode is to be written.

Another process left it: a rank that died between the file and its commit line, or one that was thought dead.
"""

from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.hdf5.episodes import read_attributes, verify_episodes
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from isaaclab_arena.storage.run.commits import parse_row


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """A whole episode with the line that commits it.

    Attributes:
        line: The line, as it would stand in a commit file.
        checksum: CRC-32 of the recorded arrays.
    """

    line: str
    checksum: int


def read_left_behind(path: Path, job: str, episode_index: int) -> LeftBehind:
    """Read an episode file that another process left.

    Args:
        path: The file.
        job: Name of the job whose episode it should be.
        episode_index: The episode that it should be.

    Raises:
        StorageError: If it is damaged, is another episode, or holds no line that commits it.
    """
    verify_episodes(path, [episode_index])
    attributes = read_attributes(path, episode_index)
    line = str(attributes.get(COMMIT_ATTRIBUTE, ""))
    try:
        row = parse_row(line)
    except ValueError as error:
        raise StorageError(f"{path} does not say how its episode went") from error
    found = (row.job_name, row.episode_index, row.checksum)
    if found != (job, episode_index, attributes.get("checksum")):
        raise StorageError(f"{path} is of job '{row.job_name}', episode {row.episode_index}, or of other arrays")
    return LeftBehind(line=line, checksum=int(attributes["checksum"]))
