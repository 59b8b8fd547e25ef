"""Limit the work of reading a recording, by comparing its declared sizes with the size of its file.

A few bytes of HDF5 can declare an array of any size, and any number of episodes that are one and the same group. So
before anything is read, declared sizes are compared with stored ones, and everything that is read from one opening of a
file together with the size of that file.
"""

import math
import zlib
from dataclasses import dataclass

import h5py
import numpy as np

from isaaclab_arena.errors import DamagedFileError

FREE_EXPANSION_BYTES = 1 << 30
"""How much compressed arrays may hold in any case, so that black pictures of any length are read."""
MAX_EXPANSION = 1100
"""How many bytes may come of a stored one beyond that; deflate gives 1,032 at most."""
MIN_MEMBER_BYTES = 32
"""What an object or an attribute takes in a file, at the least."""

_NUMBERS = "biuf"
_MAX_NUMBER_BYTES = 8
_HEADER_BYTES = 4096
_MANY_AND_TOO_BIG = "declares more than its file has room for"


class ReadingBudget:
    """What is left of what may be read from one file.

    Args:
        file_bytes: Size of the file.
    """

    def __init__(self, file_bytes: int) -> None:
        self._members = file_bytes // MIN_MEMBER_BYTES
        self._plain_bytes = file_bytes
        self._expanded_bytes = FREE_EXPANSION_BYTES + MAX_EXPANSION * file_bytes

    def spend_members(self, number: int, place: str) -> None:
        """Take account of objects or attributes that are about to be looked at.

        Raises:
            StorageError: If the file cannot hold as many: some of them are the same.
        """
        self._members -= number
        if self._members < 0:
            raise DamagedFileError(f"{place} {_MANY_AND_TOO_BIG}: its groups hold each other")

    def spend_array(self, dataset: h5py.h5d.DatasetID, place: str) -> None:
        """Take account of an array that is about to be read; see `check_array`.

        Raises:
            StorageError: If the arrays of this file, together, are more than it can hold.
        """
        num_bytes, is_filtered = check_array(dataset, place)
        if is_filtered:
            self._expanded_bytes -= num_bytes
        else:
            self._plain_bytes -= num_bytes
        if min(self._expanded_bytes, self._plain_bytes) < 0:
            raise DamagedFileError(f"{place} {_MANY_AND_TOO_BIG}: arrays share what they hold")


def check_array(dataset: h5py.h5d.DatasetID, place: str) -> tuple[int, bool]:
    """Refuse a dataset that is no array of numbers, lies elsewhere, or declares more than is stored of it.

    Args:
        dataset: The dataset, of which no value is read.
        place: What messages call it.

    Returns:
        How many bytes reading it takes, and whether they are compressed.

    Raises:
        StorageError: If it is refused.
    """
    stored_as = _stored_as(dataset)
    if stored_as.is_elsewhere:
        raise DamagedFileError(f"{place} takes its values from other files, and those are not read")
    kind = _number_type(dataset, place)
    if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        raise DamagedFileError(f"{place} has no shape and holds nothing")
    declared = math.prod(dataset.shape) * kind.itemsize
    if declared == 0:
        return 0, False
    stored, is_filtered = dataset.get_storage_size(), False
    if stored_as.chunk is not None:
        chunk = stored_as.chunk
        chunk_bytes = math.prod(chunk) * kind.itemsize
        # HDF5 unpacks whole chunks, also where they reach beyond the array.
        declared = chunk_bytes * math.prod(-(-size // part) for size, part in zip(dataset.shape, chunk, strict=True))
        is_filtered = bool(stored_as.filters)
        if is_filtered:
            _check_filtered(dataset, chunk_bytes, stored_as.filters[-1], stored, place)
    allowed = stored if not is_filtered else min(stored, 1) * FREE_EXPANSION_BYTES + MAX_EXPANSION * stored
    if declared > allowed:
        raise DamagedFileError(f"{place} declares {declared:,} bytes, of which {stored:,} are stored")
    return declared, is_filtered


@dataclass(frozen=True, kw_only=True)
class _StoredAs:
    """How the values of a dataset are stored.

    Attributes:
        is_elsewhere: Whether they lie in other files.
        chunk: Shape of its chunks, None if it has none.
        filters: What its chunks went through, in order.
    """

    is_elsewhere: bool
    chunk: tuple[int, ...] | None
    filters: tuple[int, ...]


def _stored_as(dataset: h5py.h5d.DatasetID) -> _StoredAs:
    # Read here and let go of: HDF5 2.0 crashes at the end of a process in which the properties of a virtual dataset are
    # still held, as by the traceback of an error that refuses it.
    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    is_chunked = layout == h5py.h5d.CHUNKED
    filters = tuple(properties.get_filter(each)[0] for each in range(properties.get_nfilters()))
    return _StoredAs(
        is_elsewhere=layout == h5py.h5d.VIRTUAL or properties.get_external_count() > 0,
        chunk=properties.get_chunk() if is_chunked else None,
        filters=filters if is_chunked else (),
    )


def _number_type(dataset: h5py.h5d.DatasetID, place: str) -> np.dtype:
    try:
        kind = dataset.dtype
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{place} holds what is no number: {error}") from error
    if kind.kind not in _NUMBERS or kind.itemsize > _MAX_NUMBER_BYTES:
        raise DamagedFileError(f"{place} holds {kind}, and only numbers are read, of up to 8 bytes")
    return kind


def _check_filtered(dataset: h5py.h5d.DatasetID, chunk_bytes: int, last: int, stored: int, place: str) -> None:
    """Refuse chunks that unpack into more than a chunk: HDF5 makes room for all of it before it looks."""
    if stored * MAX_EXPANSION <= FREE_EXPANSION_BYTES:
        return
    chunks = []
    dataset.chunk_iter(lambda chunk: chunks.append((chunk.chunk_offset, chunk.size)))
    for offset, num_bytes in chunks:
        if num_bytes > chunk_bytes + chunk_bytes // 64 + _HEADER_BYTES:
            raise DamagedFileError(f"{place} stores {num_bytes:,} bytes of a chunk of {chunk_bytes:,}")
        if last == h5py.h5z.FILTER_DEFLATE and num_bytes * MAX_EXPANSION > FREE_EXPANSION_BYTES:
            _check_inflates(dataset.read_direct_chunk(offset)[1], chunk_bytes, place)


def _check_inflates(content: bytes, chunk_bytes: int, place: str) -> None:
    inflating = zlib.decompressobj()
    try:
        while content and not inflating.eof and chunk_bytes >= 0:
            chunk_bytes -= len(inflating.decompress(content, 1 << 24))
            content = inflating.unconsumed_tail
    except zlib.error:
        # HDF5 says what is wrong with it.
        return
    if chunk_bytes < 0:
        raise DamagedFileError(f"{place} holds a chunk that unpacks into more than a chunk")
