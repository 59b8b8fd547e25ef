"""Read the header that ``np.save`` writes, without evaluating it as Python."""

import re
from typing import NamedTuple

import numpy as np

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
_MAX_HEADER_BYTES = 1024
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z?]\d{0,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:-?\d{1,19}, ?)*(?:-?\d{1,19})?)\), \} *\n"
)


class NpyHeader(NamedTuple):
    """The header of a saved array.

    Attributes:
        dtype: Type of its numbers.
        shape: Its shape according to the header.
        is_fortran: Whether the first index changes fastest.
        size: Size of the header [bytes]; the numbers follow.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran: bool
    size: int


def npy_header(data: bytes) -> NpyHeader:
    """Return the header of a saved array from its first bytes.

    Raises:
        ValueError: If they are not a header of ``np.save`` for a plain type.
    """
    length_bytes = _LENGTH_BYTES.get(data[6:8])
    if not data.startswith(_MAGIC) or length_bytes is None:
        raise ValueError("it does not begin as np.save begins")
    begin = 8 + length_bytes
    length = int.from_bytes(data[8:begin], "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, at most {_MAX_HEADER_BYTES} are allowed")
    found = _HEADER.fullmatch(data[begin : begin + length])
    if found is None:
        raise ValueError("its header is not one that np.save writes for numbers")
    descr, order, sizes = (group.decode("ascii") for group in found.groups())
    try:
        dtype = np.dtype(descr)
    except TypeError as error:
        raise ValueError(f"there is no type '{descr}'") from error
    shape = tuple(int(size) for size in sizes.replace(" ", "").split(",") if size)
    return NpyHeader(dtype=dtype, shape=shape, is_fortran=order == "True", size=begin + length)
