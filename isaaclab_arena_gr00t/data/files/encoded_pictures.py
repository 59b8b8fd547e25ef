"""Read and write pictures that a dataset's tables hold as PNG or JPEG, which LeRobot has instead of videos."""

import dataclasses
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from isaaclab_arena.errors import StorageError
from isaaclab_arena_gr00t.data.files.tables import TableExtent, read_pictures

# PNG, which LeRobot writes, is never much larger than the pixels themselves; JPEG is smaller.
_FORMATS = ("PNG", "JPEG")
_OVERHEAD_BYTES = 1 << 16


def read_encoded(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield the pictures of a column.

    Args:
        path: The table.
        name: The column.
        rows: Which rows hold them; ``max_size`` does not count.
        size: Expected height and width of the pictures.

    Returns:
        Shape of each: (height, width, 3), uint8.

    Raises:
        StorageError: If the table cannot be read, or has another number or size of pictures.
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


def png_bytes(frame: np.ndarray) -> bytes:
    """Return a picture as a PNG file. Shape: (height, width, 3), uint8."""
    file = BytesIO()
    Image.fromarray(frame).save(file, format="PNG")
    return file.getvalue()


def _decoded(encoded: bytes, size: tuple[int, int], what: str) -> np.ndarray:
    try:
        with Image.open(BytesIO(encoded), formats=_FORMATS) as picture:
            # The header has the size, so no picture larger than stated is decoded.
            if picture.size != size:
                raise StorageError(f"{what} has {picture.size} pixels across and down; {size} are due")
            return np.asarray(picture.convert("RGB"))
    except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
        raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
