"""The tables of a LeRobot dataset: Parquet files, their pages and their statistics."""

import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.atomic import storage_error
from isaaclab_arena_gr00t.data.layout import MEGABYTE, FileSizes

# Read the decompressed sizes of a Parquet file's pages from their headers, before decompressing anything.
#
# A column of a row group is a chain of pages. Each page begins with a header in Thrift's compact protocol, with its
# compressed and decompressed sizes. Readers allocate buffers of these sizes, whatever the file states for the column
# as a whole.

MAX_PAGE_BYTES = 64 << 20
"""Writers begin a new page after about a megabyte; a row of a column has at most half a megabyte."""

_MAX_HEADER_BYTES = 64 << 10
_MAX_PAGES = 1 << 16
_MAX_DEPTH = 8
_MAX_VARINT_BYTES = 10
_UNFOLDED_BYTES, _STORED_BYTES = 2, 3
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(14)
_FIXED_BYTES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}


def largest_page(file: BinaryIO, start: int, num_bytes: int) -> int:
    """Return the decompressed size of a column's largest page [bytes]; ValueError if the page chain is broken."""
    # The pages, with their headers, take `num_bytes` from `start` on.
    size = file.seek(0, 2)
    position, end = start, start + num_bytes
    if not 0 <= position <= end <= size:
        raise ValueError("a column lies outside of the file")
    largest = 0
    for _ in range(_MAX_PAGES):
        if position == end:
            return largest
        file.seek(position)
        # Walk from header to header and skip the page contents, so that nothing is decompressed here.
        header = _Header(file.read(min(_MAX_HEADER_BYTES, end - position)))
        unfolded, stored = header.sizes()
        if unfolded < 0 or stored < 0 or position + header.num_bytes + stored > end:
            raise ValueError("a page lies outside of its column")
        largest = max(largest, unfolded)
        position += header.num_bytes + stored
    raise ValueError(f"a column has more than {_MAX_PAGES} pages")


@dataclass
class _Header:
    """A page header in Thrift's compact protocol, at the beginning of `content`."""

    content: bytes
    num_bytes: int = 0  # read so far

    def sizes(self) -> tuple[int, int]:
        """Return the decompressed and the compressed page size [bytes]; ValueError if the bytes are no header."""
        # If a field is repeated, the last value counts.
        found: dict[int, int] = {}
        try:
            number = 0
            while (kind := (byte := self._byte()) & 0xF) != _STOP:
                number = number + (byte >> 4) if byte >> 4 else self._whole_number()
                if kind == _I32:
                    found[number] = self._whole_number()
                else:
                    self._skip(kind, _MAX_DEPTH)
            return found[_UNFOLDED_BYTES], found[_STORED_BYTES]
        except (IndexError, KeyError) as error:
            raise ValueError("a page has no header that says how large it is") from error

    def _byte(self) -> int:
        byte = self.content[self.num_bytes]
        self.num_bytes += 1
        return byte

    def _varint(self) -> int:
        value = 0
        for position in range(_MAX_VARINT_BYTES):
            byte = self._byte()
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return value
        raise ValueError("a number in the header of a page does not end")

    def _whole_number(self) -> int:
        # Readers keep only 32 bits of the value.
        value = self._varint() & 0xFFFFFFFF
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth == 0:
            raise ValueError("the header of a page is nested too deep")
        if kind in _FIXED_BYTES:
            self.num_bytes += _FIXED_BYTES[kind]
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self.num_bytes += length
        elif kind in (_LIST, _SET):
            byte = self._byte()
            self._skip_elements(byte >> 4 if byte >> 4 != 0xF else self._varint(), (byte & 0xF,), depth)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            self._skip_elements(count, (kinds >> 4, kinds & 0xF), depth)
        elif kind == _STRUCT:
            while (field := self._byte()) & 0xF != _STOP:
                if not field >> 4:
                    self._varint()
                self._skip(field & 0xF, depth - 1)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("the header of a page holds what no header holds")

    def _skip_elements(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                if kind in (_TRUE, _FALSE):
                    self._byte()
                else:
                    self._skip(kind, depth - 1)
                if self.num_bytes > len(self.content):
                    raise ValueError("the header of a page is cut off")


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
    channels: list[dict[str, float]] = []
    for channel in counts:
        total = int(channel.sum())
        mean = float(channel @ levels / total)
        found = np.flatnonzero(channel)
        statistics = {
            "min": float(found[0]),
            "max": float(found[-1]),
            "mean": mean,
            "std": float(np.sqrt(channel @ (levels - mean) ** 2 / total)),
        }
        # The same quantiles as `numpy.quantile` of the values themselves.
        ends = np.cumsum(channel)
        for name, share in QUANTILES.items():
            position = share * (total - 1)
            below = int(np.floor(position))
            ranks = (below, min(below + 1, total - 1))
            low, high = (int(np.searchsorted(ends, rank, side="right")) for rank in ranks)
            statistics[name] = low + (high - low) * (position - below)
        channels.append(statistics)
    joined = {name: np.array([each[name] for each in channels]).reshape(-1, 1, 1) / 255 for name in channels[0]}
    return joined | {"count": np.array([num_frames])}


# Read and write the tables of a dataset: Parquet files, one row per control step or per episode.


def steps_table(columns: Mapping[str, np.ndarray], encoded: Mapping[str, Sequence[bytes]]) -> pa.Table:
    """Return a table of control steps: numbers (num_steps[, size]), and per picture column the encoded files."""
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        # A column of size 1 is stored as plain numbers, not as lists of one number.
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        size = values.shape[1] if values.ndim == 2 else 1
        arrays[name] = flat if size == 1 else pa.FixedSizeListArray.from_arrays(flat, size)
    # Hugging Face's `datasets` stores a picture as this struct, which LeRobot reads.
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    for name, files in encoded.items():
        arrays[name] = pa.array([{"bytes": each, "path": None} for each in files], picture)
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
    with parquet_errors("read", path), parquet.ParquetFile(path) as file:
        # Check names and types in the schema, before any page is read.
        missing = [name for name in (extent.key, *names) if name not in file.schema_arrow.names]
        if missing:
            raise StorageError(f"{path} has no column '{missing[0]}'")
        for name in (extent.key, *names):
            _check_type(file.schema_arrow.field(name).type, f"column '{name}' of {path}")
        if pa.types.is_nested(file.schema_arrow.field(extent.key).type):
            raise StorageError(f"column '{extent.key}' of {path} holds lists, and should hold a number per row")

        # Skip row groups without wanted rows, and keep wanted rows only: even a small file may decompress to much more.
        groups = _groups_with(file.metadata, extent)
        rows_at_once = _rows_at_once(file, groups, [extent.key, *names], extent.max_size, path)
        parts, found = [], 0
        wanted = list(dict.fromkeys((extent.key, *names)))
        for batch in file.iter_batches(rows_at_once, row_groups=groups, columns=wanted):
            part = batch.filter(pa.array(batch[extent.key].to_numpy(zero_copy_only=False) == extent.value))
            found += part.num_rows
            if found > extent.num_rows:
                raise StorageError(
                    f"{path} has more rows with {extent.key} {extent.value} than the {extent.num_rows} that are due"
                )
            parts.append(part)
        table = pa.Table.from_batches(parts, schema=pa.schema([file.schema_arrow.field(name) for name in wanted]))

    columns: dict[str, np.ndarray] = {}
    for name in names:
        array: Any = table[name].combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], type=table[name].type)
        flat = array.flatten() if pa.types.is_nested(array.type) else array
        # Refuse missing values, which would become NaN unnoticed.
        if array.null_count or flat.null_count:
            raise StorageError(f"column '{name}' of {path} has empty places")
        size = 1
        if pa.types.is_nested(array.type):
            # NumPy needs a rectangle, and a writer may have stored lists of different lengths.
            size = len(flat) // max(1, len(array))
            lengths = np.unique(np.asarray(array.value_lengths())) if len(array) else np.array([size])
            if lengths.tolist() != [size]:
                raise StorageError(f"column '{name}' of {path} is no list of equally many numbers per row")
        columns[name] = flat.to_numpy(zero_copy_only=False).reshape(len(array), size)
    return columns


@dataclass(frozen=True, kw_only=True)
class EpisodeRows:
    """The rows of each episode in a table."""

    counts: Mapping[int, int]  # rows per episode
    unordered: frozenset[int]  # episodes whose rows do not ascend in `ordered_by`


def episode_rows(path: Path, key: str, ordered_by: str | None, wanted: Container[int]) -> EpisodeRows:
    """Count the rows of the `wanted` episodes by column `key`; `ordered_by` should ascend (None: any order)."""
    names = [key] if ordered_by is None else [key, ordered_by]
    counts: dict[int, int] = {}
    last: dict[int, float] = {}
    unordered: set[int] = set()
    with parquet_errors("read", path), parquet.ParquetFile(path) as file:
        for name in names:
            if name not in file.schema_arrow.names:
                raise StorageError(f"{path} has no column '{name}'")
            kind = file.schema_arrow.field(name).type
            _check_type(kind, f"column '{name}' of {path}")
            if pa.types.is_nested(kind):
                raise StorageError(f"column '{name}' of {path} holds lists, and should hold a number per row")

        rows_at_once = _rows_at_once(file, range(file.metadata.num_row_groups), names, 1, path)
        for batch in file.iter_batches(rows_at_once, columns=names):
            owners = batch[key].to_numpy(zero_copy_only=False)
            # Split the batch by episode. The stable sort keeps the order of an episode's rows.
            order = np.argsort(owners, kind="stable")
            starts = np.flatnonzero(np.diff(owners[order], prepend=np.nan) != 0)
            for rows in np.split(order, starts[1:]) if len(order) else ():
                owner: int = owners[rows[0]].item()
                if owner not in wanted:
                    continue
                counts[owner] = counts.get(owner, 0) + len(rows)
                if ordered_by is not None:
                    # An episode may go on from an earlier batch, so compare with its last row there.
                    places = batch[ordered_by].to_numpy(zero_copy_only=False)[rows].astype(np.float64)
                    if not (np.diff(places, prepend=last.get(owner, -np.inf)) > 0).all():
                        unordered.add(owner)
                    last[owner] = places[-1].item()
    return EpisodeRows(counts=counts, unordered=frozenset(unordered))


def read_rows(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with the named columns that exist; StorageError if the file cannot be read."""
    with parquet_errors("read", path), parquet.ParquetFile(path) as file:
        columns = [name for name in names if name in file.schema_arrow.names]
        rows_at_once = _rows_at_once(file, range(file.metadata.num_row_groups), columns, 1000, path)
        for batch in file.iter_batches(rows_at_once, columns=columns):
            yield from batch.to_pylist()


def read_pictures(path: Path, name: str, extent: TableExtent) -> Iterator[bytes]:
    """Yield the wanted rows' encoded pictures; StorageError if one is missing or has more than `max_size` bytes."""
    with parquet_errors("read", path), parquet.ParquetFile(path) as file:
        # Hugging Face's `datasets` writes a picture as a struct whose field ``bytes`` is the file.
        kind = file.schema_arrow.field(name).type if name in file.schema_arrow.names else None
        if kind is None or not pa.types.is_struct(kind) or "bytes" not in [field.name for field in kind]:
            raise StorageError(f"{path} has no column '{plain_text(name)}' of pictures with their bytes")
        _check_type(file.schema_arrow.field(extent.key).type, f"column '{extent.key}' of {path}")

        # A small file may decompress to gigabytes: check its metadata and page headers before anything is read.
        leaf, groups = f"{name}.bytes", _groups_with(file.metadata, extent)
        _rows_at_once(file, groups, [extent.key], 1, path)
        chunks = [
            (column, group.num_rows)
            for group in map(file.metadata.row_group, groups)
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema == leaf
        ]
        with path.open("rb") as content:
            for column, num_rows in chunks:
                # Beside the pictures themselves, each of them takes up to 64 bytes, and the pages 64 KiB together.
                most = min(2 << 30, num_rows * (extent.max_size + 64) + (1 << 16))
                if column.total_uncompressed_size > most:
                    raise StorageError(
                        f"{path}: '{plain_text(leaf)}' takes {column.total_uncompressed_size} bytes in "
                        f"{num_rows} rows; at most {most} are due"
                    )
                _check_pages(content, column, path, most)

        # The file may store equal pictures once, so only a few rows are read at a time, and each picture is measured.
        for batch in file.iter_batches(8, row_groups=groups, columns=[extent.key, leaf]):
            rows = batch[extent.key].to_numpy(zero_copy_only=False) == extent.value
            encoded = batch[name].field("bytes")
            for position in np.flatnonzero(rows).tolist():
                value = encoded[position].as_buffer()
                if value is None or value.size > extent.max_size:
                    found = "no bytes" if value is None else f"{value.size} bytes"
                    raise StorageError(
                        f"{path}: a picture of '{plain_text(name)}' has {found}; at most {extent.max_size} are due"
                    )
                yield value.to_pybytes()


def _groups_with(metadata: parquet.FileMetaData, extent: TableExtent) -> list[int]:
    """Return the row groups that may hold the wanted rows, by the minimum and maximum in the file's statistics."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(position) for position in range(group.num_columns))
        statistics = next((each.statistics for each in columns if each.path_in_schema == extent.key), None)
        if statistics is None or not statistics.has_min_max or statistics.min <= extent.value <= statistics.max:
            found.append(number)
    return found


def _rows_at_once(
    file: parquet.ParquetFile, groups: Sequence[int], names: Sequence[str], max_size: int, path: Path
) -> int:
    """Return a number of rows that takes a few megabytes; StorageError if a row or a decompressed page is too large."""
    # Arrow takes the dots of a name as levels: with ``action`` it reads ``action.delta`` too.
    chunks = [
        (column, group.num_rows)
        for group in map(file.metadata.row_group, groups)
        for column in map(group.column, range(group.num_columns))
        if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in names)
    ]

    # Read the number of values from the metadata, before any buffer is allocated. A leaf of the schema belongs to the
    # column with the longest name that fits, which may be none of `names`.
    for column, num_rows in chunks:
        leaf = f"{column.path_in_schema}."
        owners = (name for name in file.schema_arrow.names if leaf.startswith(f"{name}."))
        most = max_size if max(owners, key=len, default="") in names else 65_536
        if column.num_values > max(1, num_rows) * max(1, most):
            raise StorageError(
                f"{path}: '{plain_text(column.path_in_schema)}' has {column.num_values} values in "
                f"{num_rows} rows; at most {most} in a row are due"
            )

    # The metadata may lie about a column's size, so the page headers count.
    with path.open("rb") as content:
        for column, _ in chunks:
            _check_pages(content, column, path, MAX_PAGE_BYTES)
    return max(1, min(65_536, (1 << 21) // max(1, max_size)))


def _check_pages(content: BinaryIO, column: parquet.ColumnChunkMetaData, path: Path, most: int) -> None:
    what = f"{path}: '{plain_text(column.path_in_schema)}'"
    # Some writers put a dictionary's offset at the beginning of the file although there is no dictionary.
    starts_with_dictionary = column.has_dictionary_page and 0 < column.dictionary_page_offset < column.data_page_offset
    start = column.dictionary_page_offset if starts_with_dictionary else column.data_page_offset
    try:
        largest = largest_page(content, start, column.total_compressed_size)
    except ValueError as error:
        raise StorageError(f"{what} is damaged: {error}") from error
    if largest > most:
        raise StorageError(f"{what} has a page that unfolds to {largest} bytes; at most {most} are read")


def _check_type(kind: pa.DataType, what: str) -> None:
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
        raise StorageError(f"{what} holds {plain_text(kind)}, and should hold numbers or lists of numbers")


@contextmanager
def parquet_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise storage_error(doing, path, error) from error
        # pyarrow's message may repeat bytes of a damaged file.
        raise StorageError(f"cannot {doing} {path}: {plain_text(error)[:500]}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise StorageError(f"cannot {doing} {path}: {plain_text(error)[:500]}") from error
