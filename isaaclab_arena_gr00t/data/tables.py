"""The tables of a dataset: Parquet files, one row per control step or per episode."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena_gr00t.data.layout import of_number


def steps_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return a table of control steps.

    Args:
        columns: Shape of each: (num_steps,) or (num_steps, size); a size of 1 is stored as plain numbers.
    """
    return pa.table({name: _arrow(values) for name, values in columns.items()})


def _arrow(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    size = values.shape[1] if values.ndim == 2 else 1
    return flat if size == 1 else pa.FixedSizeListArray.from_arrays(flat, size)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table into a file of its own.

    Raises:
        StorageError: If it cannot be written.
    """
    with parquet_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path, compression="snappy")


class TableFiles:
    """Tables of one kind, written one after the other into files that are begun when the one before is large enough.

    Args:
        root: Folder of the dataset.
        template: Path of the files in it; see `layout.of_number`.
        max_bytes: Size from which on the next table goes into the next file.
    """

    def __init__(self, root: Path, template: str, max_bytes: int) -> None:
        self._root = root
        self._template = template
        self._max_bytes = max_bytes
        self._number = -1
        self._path = root
        self._writer: parquet.ParquetWriter | None = None

    def next_number(self) -> int:
        """Return the number of the file that the next table goes into."""
        if self._writer is None or self._path.stat().st_size >= self._max_bytes:
            return self._number + 1
        return self._number

    def append(self, table: pa.Table) -> None:
        """Write a table, as a row group of its own.

        Raises:
            StorageError: If it cannot be written.
        """
        number = self.next_number()
        if number != self._number:
            self.close()
            self._number = number
            self._path = self._root / of_number(self._template, number)
        with parquet_errors("write", self._path):
            if self._writer is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet.ParquetWriter(self._path, table.schema, compression="snappy")
            self._writer.write_table(table)

    def close(self) -> None:
        """Complete the file that was begun last."""
        if self._writer is not None:
            with parquet_errors("write", self._path):
                self._writer.close()
            self._writer = None


def read_columns(path: Path, names: Sequence[str], *, filters: list[tuple[str, str, Any]]) -> dict[str, np.ndarray]:
    """Return columns of the rows that a filter lets through; others are not read, as far as row groups allow it.

    Returns:
        Shape of each: (num_rows,), or (num_rows, size) for a column of lists.

    Raises:
        StorageError: If the file cannot be read, or a column is missing or holds something else.
    """
    with parquet_errors("read", path):
        known = parquet.read_schema(path).names
        missing = [name for name in names if name not in known]
        if missing:
            raise StorageError(f"{path} has no column '{missing[0]}'")
        table = parquet.read_table(path, columns=list(names), filters=filters)
    return {name: _numbers(table[name].combine_chunks(), f"column '{name}' of {path}") for name in names}


def read_rows(path: Path, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return every row of a table, of all its columns or of those named that it has.

    Raises:
        StorageError: If the file cannot be read.
    """
    with parquet_errors("read", path):
        known = parquet.read_schema(path).names
        columns = None if names is None else [name for name in names if name in known]
        return parquet.read_table(path, columns=columns).to_pylist()


def _numbers(column: pa.Array | pa.ChunkedArray, what: str) -> np.ndarray:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        raise StorageError(f"{what} has empty places")
    if not pa.types.is_nested(array.type):
        return array.to_numpy(zero_copy_only=False)
    flat = array.flatten()
    size = len(flat) // max(1, len(array))
    lengths = np.unique(np.asarray(array.value_lengths())) if len(array) else np.array([size])
    if lengths.tolist() != [size] or pa.types.is_nested(flat.type):
        raise StorageError(f"{what} is no list of equally many numbers per row")
    return flat.to_numpy(zero_copy_only=False).reshape(len(array), size)


@contextmanager
def parquet_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into a `StorageError` that names the file."""
    try:
        with storage_errors(doing, path):
            yield
    except pa.ArrowException as error:
        raise StorageError(f"cannot {doing} {path}: {error}") from error
