"""Read a stranger's Parquet files in a process of its own: a short file can unfold to any memory, in native code.

The program of a worker, see `workers.program`. It imports nothing of this package; `tables` asks it.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

Piece: TypeAlias = "tuple[dict[str, Any], dict[str, np.ndarray]]"

_MAX_READINGS = 64
_MAX_BYTES = 1 << 30  # of the arrays of a piece: no more travels from a worker at once
_ROWS_OF_TEXT = 64  # of a piece, whose texts may be long


class RefusedError(Exception):
    """The file is not as it should be."""


class Answers:
    """Answers each reading piece by piece."""

    def __init__(self, memory: int, told: Callable[[BaseException], dict[str, str]]) -> None:  # noqa: ARG002  as asked
        # Each thread would reserve memory, which the limit counts.
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        self._readings: dict[int, Iterator[Piece]] = {}  # those that have not ended

    def answer(self, message: dict[str, Any], arrays: dict[str, np.ndarray]) -> Piece:  # noqa: ARG002  as asked
        """Return the next piece of a reading, which its first message describes; an empty one after the last."""
        number, mebibytes = message["reading"], message["memory_bytes"] >> 20
        try:
            if "path" in message:
                # Readings that were given up keep their files open.
                for oldest in sorted(self._readings)[:-_MAX_READINGS]:
                    del self._readings[oldest]
                if sys.platform.startswith("linux"):
                    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
                    limit = message["memory_bytes"]
                    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
                file = parquet.ParquetFile(message["path"])
                self._readings[number] = READERS[message["kind"]](message["shown"], file, **message["wanted"])
            reading = self._readings.pop(number, None)
            if reading is None:
                return {"failed": "the process that read it has ended"}, {}
            piece = next(reading, None)
        except RefusedError as error:
            return {"refused": str(error)}, {}
        except MemoryError:
            return {"failed": f"it needs more than {mebibytes} MiB of memory"}, {}
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            return {"failed": str(error), "errno": getattr(error, "errno", None)}, {}
        if piece is None:
            return {}, {}
        if sum(each.nbytes for each in piece[1].values()) > _MAX_BYTES:
            return {"failed": f"an episode of it takes more than {_MAX_BYTES >> 20} MiB"}, {}
        if "is_whole" not in piece[0]:
            self._readings[number] = reading
        return piece


def columns(
    path: str, file: parquet.ParquetFile, *, names: Sequence[str], key: str, value: int, num_rows: int, max_size: int
) -> Iterator[Piece]:
    """Yield the columns `names` of the rows with `value` in column `key`, each (num_rows, size)."""
    # Check names and types in the schema, before any page is read.
    _check_columns(path, file, (key, *names), flat=[key])

    # Skip row groups without wanted rows, and keep wanted rows only: even a small file may decompress to much more.
    groups = _groups_with(file.metadata, key, value)
    rows_at_once = _rows_at_once(path, file, groups, [key, *names], max_size)
    parts, found = [], 0
    wanted = list(dict.fromkeys((key, *names)))
    for batch in file.iter_batches(rows_at_once, row_groups=groups, columns=wanted, use_threads=False):
        part = batch.filter(pa.array(batch[key].to_numpy(zero_copy_only=False) == value))
        found += part.num_rows
        if found > num_rows:
            raise RefusedError(f"{path} has more rows with {key} {value} than the expected {num_rows}")
        parts.append(part)
    table = pa.Table.from_batches(parts, schema=pa.schema([file.schema_arrow.field(name) for name in wanted]))

    read: dict[str, np.ndarray] = {}
    for name in names:
        array: Any = table[name].combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], type=table[name].type)
        flat = array.flatten() if pa.types.is_nested(array.type) else array
        # Refuse missing values, which would become NaN unnoticed.
        if array.null_count or flat.null_count:
            raise RefusedError(f"column '{name}' of {path} has empty places")
        size = 1
        if pa.types.is_nested(array.type):
            # NumPy needs a rectangle, and a writer may have stored lists of different lengths.
            size = len(flat) // max(1, len(array))
            if np.unique(np.asarray(array.value_lengths())).tolist() not in ([], [size]):
                raise RefusedError(f"column '{name}' of {path} is no list of equally many numbers per row")
        read[name] = flat.to_numpy(zero_copy_only=False).reshape(len(array), size)
    yield {"is_whole": True}, read


def episodes(path: str, file: parquet.ParquetFile, *, key: str) -> Iterator[Piece]:
    """Yield per batch the values of column `key`, and the number of rows of each."""
    _check_columns(path, file, [key], flat=[key])
    rows_at_once = _rows_at_once(path, file, range(file.metadata.num_row_groups), [key], 1)
    for batch in file.iter_batches(rows_at_once, columns=[key], use_threads=False):
        owners, counts = np.unique(batch[key].to_numpy(zero_copy_only=False), return_counts=True)
        yield {"read": True}, {"owner": owners, "count": counts}


def rows(path: str, file: parquet.ParquetFile, *, names: Sequence[str]) -> Iterator[Piece]:
    """Yield the rows in lists, with the columns of `names` that exist."""
    there = [name for name in names if name in file.schema_arrow.names]
    rows_at_once = _rows_at_once(path, file, range(file.metadata.num_row_groups), there, 1000)
    for batch in file.iter_batches(rows_at_once, columns=there, use_threads=False):
        for start in range(0, batch.num_rows, _ROWS_OF_TEXT):
            found = batch.slice(start, _ROWS_OF_TEXT).to_pylist()
            yield {"rows": [{key: _plain(value) for key, value in row.items()} for row in found]}, {}


def pictures(
    path: str, file: parquet.ParquetFile, *, name: str, key: str, value: int, max_size: int
) -> Iterator[Piece]:
    """Yield the encoded pictures in column `name` of the rows with `value` in column `key`, a few at a time."""
    # Hugging Face's `datasets` writes a picture as a struct whose field ``bytes`` is the file.
    kind = file.schema_arrow.field(name).type if name in file.schema_arrow.names else None
    if kind is None or not pa.types.is_struct(kind) or "bytes" not in [field.name for field in kind]:
        raise RefusedError(f"{path} has no column '{name}' of pictures with their bytes")
    _check_columns(path, file, [key])
    groups = _groups_with(file.metadata, key, value)
    _rows_at_once(path, file, groups, [key], 1)
    # The file may store equal pictures once, so only a few rows are read at a time, and each picture is measured.
    for batch in file.iter_batches(8, row_groups=groups, columns=[key, f"{name}.bytes"], use_threads=False):
        found = []
        encoded = batch[name].field("bytes")
        for row in np.flatnonzero(batch[key].to_numpy(zero_copy_only=False) == value).tolist():
            picture = encoded[row].as_buffer()
            if picture is None or picture.size > max_size:
                size = "no bytes" if picture is None else f"{picture.size} bytes"
                raise RefusedError(f"{path}: a picture of '{name}' has {size}; at most {max_size} are allowed")
            found.append(np.frombuffer(picture, np.uint8))
        yield {"read": True}, {str(number): each for number, each in enumerate(found)}


READERS = {reader.__name__: reader for reader in (columns, episodes, rows, pictures)}


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: anything that is no number, text or list of these as text."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _check_columns(path: str, file: parquet.ParquetFile, names: Sequence[str], flat: Sequence[str] = ()) -> None:
    """Refuse a file without one of the columns, or with one that holds no numbers, or lists of them if it is `flat`."""
    for name in names:
        if name not in file.schema_arrow.names:
            raise RefusedError(f"{path} has no column '{name}'")
        kind = file.schema_arrow.field(name).type
        inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind
        if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
            raise RefusedError(f"column '{name}' of {path} holds {kind}, and should hold numbers or lists of numbers")
    for name in flat:
        if pa.types.is_nested(file.schema_arrow.field(name).type):
            raise RefusedError(f"column '{name}' of {path} holds lists, and should hold a number per row")


def _groups_with(metadata: parquet.FileMetaData, key: str, value: int) -> list[int]:
    """Return the row groups that may hold `value` in column `key`, by the minimum and maximum in their statistics."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(position) for position in range(group.num_columns))
        statistics = next((each.statistics for each in chunks if each.path_in_schema == key), None)
        if statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max:
            found.append(number)
    return found


def _rows_at_once(
    path: str, file: parquet.ParquetFile, groups: Sequence[int], names: Sequence[str], max_size: int
) -> int:
    """Return a number of rows that takes a few megabytes; refuse rows with more than `max_size` numbers in a column."""
    for group in map(file.metadata.row_group, groups):
        for column in map(group.column, range(group.num_columns)):
            # Arrow takes the dots of a name as levels: with ``action`` it reads ``action.delta`` too. A leaf of the
            # schema belongs to the column with the longest name that fits, which may be none of `names`.
            leaf = f"{column.path_in_schema}."
            if any(leaf.startswith(f"{name}.") for name in names):
                owners = (name for name in file.schema_arrow.names if leaf.startswith(f"{name}."))
                most = max_size if max(owners, key=len, default="") in names else 65_536
                if column.num_values > max(1, group.num_rows) * max(1, most):
                    raise RefusedError(
                        f"{path}: '{column.path_in_schema}' has {column.num_values} values in {group.num_rows} rows; "
                        f"at most {most} in a row are allowed"
                    )
    return max(1, min(65_536, (1 << 21) // max(1, max_size)))
