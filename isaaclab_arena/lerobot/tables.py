"""The tables of a LeRobot dataset: Parquet files and their statistics."""

import os
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena.lerobot import table_worker
from isaaclab_arena.lerobot.layout import MEGABYTE, FileSizes
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.atomic import storage_error
from isaaclab_arena.workers import RequestError, WorkerError, ask_kept_worker

# Compute exact statistics of a dataset's columns, for any number of control steps.

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Statistics: TypeAlias = Mapping[str, np.ndarray]
"""``min``, ``max``, ``mean``, ``std`` and the `QUANTILES`, each of one shape, and ``count`` of shape (1,)."""


class ColumnSpool:
    """All values of one column, in a temporary file in `directory`, because quantiles need all of them."""

    def __init__(self, directory: Path, size: int) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed in `finish`
        self._size = size  # numbers per control step

    def append(self, values: np.ndarray) -> None:
        """Add control steps. Shape: (n, size)."""
        self._file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    def finish(self) -> Statistics:
        """Return the statistics of all added control steps (at least one), and remove the file."""
        self._file.flush()
        values = np.memmap(self._file, np.float64, "r").reshape(-1, self._size)
        # Only one number of all control steps is in memory at a time.
        columns = [array_statistics(values[:, place : place + 1]) for place in range(self._size)]
        del values
        self._file.close()
        joined = {name: np.concatenate([column[name] for column in columns]) for name in columns[0] if name != "count"}
        return joined | {"count": columns[0]["count"]}


def array_statistics(values: np.ndarray) -> Statistics:
    """Return the statistics of each column of `values` of shape (num_steps >= 1, size); shape of each: (size,)."""
    samples = np.array(values, dtype=np.float64)
    quantiles = np.quantile(samples, list(QUANTILES.values()), axis=0)
    return {
        "min": samples.min(axis=0),
        "max": samples.max(axis=0),
        "mean": samples.mean(axis=0),
        "std": samples.std(axis=0),
        "count": np.array([len(samples)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def picture_statistics(counts: np.ndarray, num_frames: int) -> Statistics:
    """Return LeRobot's statistics of intensities in [0, 1], each (channels, 1, 1), from counts: (channels, 256)."""
    levels = np.arange(256, dtype=np.float64)
    channels = []
    for channel in counts:
        total, found = int(channel.sum()), np.flatnonzero(channel)
        mean = float(channel @ levels / total)
        std = np.sqrt(channel @ (levels - mean) ** 2 / total)
        # The same quantiles as `numpy.quantile` of the values themselves.
        positions, ends = np.array(list(QUANTILES.values())) * (total - 1), np.cumsum(channel)
        below = np.floor(positions).astype(np.int64)
        low, high = (np.searchsorted(ends, np.minimum(ranks, total - 1), side="right") for ranks in (below, below + 1))
        channels.append([found[0], found[-1], mean, std, *(low + (high - low) * (positions - below))])
    shaped = np.array(channels).T.reshape(-1, len(counts), 1, 1) / 255
    return dict(zip(("min", "max", "mean", "std", *QUANTILES), shaped, strict=True)) | {"count": np.array([num_frames])}


# Read and write the tables of a dataset: Parquet files, one row per control step or per episode.


Columns: TypeAlias = Mapping[str, np.ndarray | list[bytes]]
"""Numbers of each control step, or its encoded picture."""


def steps_table(columns: Columns) -> pa.Table:
    """Return a table of control steps: numbers, (num_steps[, size]), and encoded pictures, one file per step."""
    # Hugging Face's `datasets` stores a picture as this struct, which LeRobot reads.
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        if isinstance(values, list):
            arrays[name] = pa.array([{"bytes": each, "path": None} for each in values], picture)
            continue
        # A column of size 1 is stored as plain numbers, not as lists of one number.
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        size = values.shape[1] if values.ndim == 2 else 1
        arrays[name] = flat if size == 1 else pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.table(arrays)


@dataclass(eq=False)
class TableFiles:
    """Writes tables of one kind one after the other, and begins a new file if the present one is large enough."""

    root: Path
    template: str  # path in `root`, by chunk and file
    sizes: FileSizes
    _number: int = field(default=-1, init=False)  # of the present file, counted over all chunks
    _path: Path = field(default=Path(), init=False)
    _writer: parquet.ParquetWriter | None = field(default=None, init=False)

    def next_number(self) -> int:
        """Return the number of the file for the next table."""
        if self._writer is None or self._path.stat().st_size >= self.sizes.data_mb * MEGABYTE:
            return self._number + 1
        return self._number

    def append(self, table: pa.Table) -> None:
        """Write a table as a row group of its own; StorageError if this fails."""
        number = self.next_number()
        if number != self._number:
            self.close()
            self._number = number
            chunk, file = divmod(number, self.sizes.chunk)
            self._path = self.root / self.template.format(chunk_index=chunk, file_index=file)
        with parquet_errors("write", self._path):
            if self._writer is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet.ParquetWriter(self._path, table.schema, compression="snappy")
            self._writer.write_table(table)

    def close(self) -> None:
        """Complete the current file."""
        if self._writer is not None:
            with parquet_errors("write", self._path):
                self._writer.close()
            self._writer = None


@dataclass(frozen=True, kw_only=True)
class TableExtent:
    """The wanted rows of a table, and the largest number of values that a column may have in a row."""

    # A row is wanted if column `key` has `value`.
    key: str
    value: int
    num_rows: int  # expected number of wanted rows; more are an error
    max_size: int


def read_columns(path: Path, names: Sequence[str], extent: TableExtent) -> dict[str, np.ndarray]:
    """Return columns of the wanted rows, each (num_rows, size); StorageError if rows, columns or types do not fit."""
    return next(_pieces(path, "columns", names=list(names), **asdict(extent)))[1]


def episode_rows(path: Path, key: str, wanted: Container[int]) -> dict[int, int]:
    """Return the number of rows of the `wanted` episodes, by column `key`."""
    counts: Counter[int] = Counter()
    for _, found in _pieces(path, "episodes", key=key):
        rows = zip(found["owner"].tolist(), found["count"].tolist(), strict=True)
        counts.update({owner: number for owner, number in rows if owner in wanted})
    return counts


def read_rows(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with the named columns that exist; StorageError if the file cannot be read."""
    for piece, _ in _pieces(path, "rows", names=list(names)):
        yield from piece["rows"]


def read_pictures(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield a column's PNG or JPEG pictures, each (height, width, 3) uint8; StorageError for another number or size."""
    height, width = size
    # The caller's ``max_size`` does not apply to pictures; their size bounds the bytes. PNG, which LeRobot writes, is
    # never much larger than the pixels themselves; JPEG is smaller.
    wanted = {"name": name, "key": rows.key, "value": rows.value, "max_size": 4 * height * width + (1 << 16)}
    encoded = (each.tobytes() for _, piece in _pieces(path, "pictures", **wanted) for each in piece.values())
    found = 0
    for found, content in enumerate(encoded, start=1):
        if found > rows.num_rows:
            raise StorageError(f"{path}: '{name}' has more than the {rows.num_rows} pictures that are due")
        what = f"{path}: picture {found} of '{name}'"
        try:
            with Image.open(BytesIO(content), formats=("PNG", "JPEG")) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                if picture.size != (width, height):
                    raise StorageError(f"{what} has {picture.size} pixels across and down; {(width, height)} are due")
                frame = np.asarray(picture.convert("RGB"))
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
        yield frame
    if found < rows.num_rows:
        raise StorageError(f"{path}: '{name}' has {found} pictures; {rows.num_rows} are due")


MAX_MEMORY_BYTES = 4 << 30
"""Address space of the process that reads foreign tables: Arrow reserves more than it uses."""

_TIMEOUT_S = 300.0  # for each piece
# A thread of these libraries reserves memory, which the limit counts.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
_READER = Path(table_worker.__file__)
_NUMBERS = count()


def _pieces(path: Path, kind: str, **wanted: Any) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Yield the pieces of one reading in another process, which is kept; StorageError if the file is refused."""
    message: dict[str, Any] = {"reading": next(_NUMBERS), "memory_bytes": MAX_MEMORY_BYTES}
    asked = {"path": str(path.absolute()), "shown": str(path), "kind": kind, "wanted": wanted}
    while True:
        try:
            piece, arrays = ask_kept_worker(_READER, sys.executable, _ONE_THREAD, {**message, **asked}, _TIMEOUT_S)
        except (RequestError, WorkerError) as error:
            raise StorageError(f"cannot read {path}: {plain_text(error)[:500]}") from error
        if piece.get("errno") is not None:
            raise storage_error("read", path, OSError(piece["errno"], os.strerror(piece["errno"])))
        if "failed" in piece:
            # Arrow's message may repeat bytes of a damaged file.
            raise StorageError(f"cannot read {path}: {plain_text(piece['failed'])[:500]}")
        if "refused" in piece:
            raise StorageError(plain_text(piece["refused"]))
        if not piece:
            return
        yield piece, arrays
        asked = {}


@contextmanager
def parquet_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into a `StorageError` that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(doing, path, error) from error
        # pyarrow's message may repeat bytes of a damaged file.
        raise StorageError(f"cannot {doing} {path}: {plain_text(error)[:500]}") from error
