"""Read the decompressed sizes of a Parquet file's pages from their headers, before decompressing anything.

A column of a row group is a chain of pages. Each page begins with a header in Thrift's compact protocol, with its
compressed and decompressed sizes. Readers allocate buffers of these sizes, whatever the file states for the column as a
whole.
"""

from dataclasses import dataclass
from typing import BinaryIO

MAX_PAGE_BYTES = 64 << 20
"""Writers begin a new page after about a megabyte; a row of a column has at most half a megabyte."""

_MAX_HEADER_BYTES = 64 << 10
_MAX_PAGES = 1 << 16
_MAX_DEPTH = 8
_MAX_VARINT_BYTES = 10
_UNFOLDED_BYTES, _STORED_BYTES = 2, 3
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(14)
_FIXED_BYTES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}


@dataclass(frozen=True, kw_only=True)
class ColumnChunk:
    """The location of a column's pages in a file.

    Attributes:
        start: Where the first one begins.
        num_bytes: Size of all pages together, with their headers.
    """

    start: int
    num_bytes: int


def largest_page(file: BinaryIO, chunk: ColumnChunk) -> int:
    """Return the decompressed size of the largest page of a column [bytes].

    Args:
        file: The Parquet file, as bytes.
        chunk: Location of the column's pages.

    Raises:
        ValueError: If it is not a chain of pages within the file.
    """
    size = file.seek(0, 2)
    position, end = chunk.start, chunk.start + chunk.num_bytes
    if not 0 <= position <= end <= size:
        raise ValueError("a column lies outside of the file")
    largest = 0
    for _ in range(_MAX_PAGES):
        if position == end:
            return largest
        file.seek(position)
        header = _Header(file.read(min(_MAX_HEADER_BYTES, end - position)))
        unfolded, stored = header.sizes()
        if unfolded < 0 or stored < 0 or position + header.num_bytes + stored > end:
            raise ValueError("a page lies outside of its column")
        largest = max(largest, unfolded)
        position += header.num_bytes + stored
    raise ValueError(f"a column has more than {_MAX_PAGES} pages")


class _Header:
    """The header of a page.

    Args:
        content: Bytes that begin with it.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.num_bytes = 0

    def sizes(self) -> tuple[int, int]:
        """Return the decompressed and the compressed size of the page; the last value of a repeated field counts.

        Raises:
            ValueError: If it is not a header.
        """
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
        byte = self._content[self.num_bytes]
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
            self._skip_struct(depth)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("the header of a page holds what no header holds")

    def _skip_struct(self, depth: int) -> None:
        while (field := self._byte()) & 0xF != _STOP:
            if not field >> 4:
                self._varint()
            self._skip(field & 0xF, depth - 1)

    def _skip_elements(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                if kind in (_TRUE, _FALSE):
                    self._byte()
                else:
                    self._skip(kind, depth - 1)
                if self.num_bytes > len(self._content):
                    raise ValueError("the header of a page is cut off")
