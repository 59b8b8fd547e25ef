"""Pictures that lie in a dataset's tables as files of their own: what LeRobot writes where it writes no videos."""

import dataclasses
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from isaaclab_arena.errors import StorageError
from isaaclab_arena_gr00t.data.files.tables import TableExtent, read_pictures

# PNG, which LeRobot writes, never takes much more than the pixels themselves; JPEG takes less.
_FORMATS = ("PNG", "JPEG")
_OVERHEAD_BYTES = 1 << 16


def read_encoded(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield the pictures of a column.

    Args:
        path: The table.
        name: The column.
        rows: Which rows hold them; ``max_size`` does not count.
        size: Height and width that pictures have.

    Returns:
        Shape of each: (height, width, 3), uint8.

    Raises:
        StorageError: If the table cannot be read, or there are not as many pictures of this size as are due.
    """
    height, width = size
    most_bytes = 4 * height * width + _OVERHEAD_BYTES
    extent = dataclasses.replace(rows, max_size=most_bytes)
    found = 0
    for found, encoded in enumerate(read_pictures(path, name, extent), start=1):
        if found > rows.num_rows:
            raise StorageError(f"{path}: '{name}' has more than the {rows.num_rows} pictures that are due")
        yield _decoded(encoded, (width, height), f"{path}: picture {found} of '{name}'")
    if found < rows.num_rows:
        raise StorageError(f"{path}: '{name}' has {found} pictures; {rows.num_rows} are due")


def _decoded(encoded: bytes, size: tuple[int, int], what: str) -> np.ndarray:
    try:
        with Image.open(BytesIO(encoded), formats=_FORMATS) as picture:
            # The size stands at the beginning, so nothing is unfolded that is larger than was said.
            if picture.size != size:
                raise StorageError(f"{what} has {picture.size} pixels across and down; {size} are due")
            return np.asarray(picture.convert("RGB"))
    except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
        raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
