"""Check by size and header whether a safetensors file is complete, and read small ones, without the library."""

import itertools
import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.plain_files import not_a_plain_file

MAX_HEADER_BYTES = 100_000_000
"""Limits of the format."""

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_NUMPY_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U8": "u1", "I32": "<i4", "I64": "<i8"}
_LENGTH_BYTES = 8
_MAX_SMALL_BYTES = 16 << 20


def wrong_with_weights(directory: Path) -> str | None:
    """Return what is wrong with the safetensors files of a directory, None if all are present and complete."""
    files = sorted(directory.glob("*.safetensors"))
    for file in files:
        wrong = wrong_with_safetensors(file)
        if wrong is not None:
            return f"{file.name} {wrong}"
    for index in sorted(directory.glob("*.safetensors.index.json")):
        wrong = _wrong_with_index(index, {file.name for file in files})
        if wrong is not None:
            return f"{index.name} {wrong}"
    return None


def wrong_with_safetensors(file: Path) -> str | None:
    """Return why a file is not a complete safetensors file, None if it is one."""
    wrong = not_a_plain_file(file)
    if wrong is not None:
        return wrong
    try:
        header, num_bytes = _header(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except _DamagedError as error:
        return str(error)
    except (ValueError, RecursionError):
        return "is damaged: its header is no JSON"
    if not isinstance(header, dict):
        return "is damaged: its header is no mapping"
    return next(_lies(header, num_bytes), None)


def read_small_file(file: Path) -> dict[str, np.ndarray]:
    """Return what a file without weights holds, such as the statistics of a processor, by name; floats as float64.

    Raises:
        ValueError: If it is damaged, or is larger than such files are.
    """
    wrong = wrong_with_safetensors(file)
    if wrong is None and file.stat().st_size > _MAX_SMALL_BYTES:
        wrong = f"has {file.stat().st_size} bytes, and at most {_MAX_SMALL_BYTES} are read"
    if wrong is not None:
        raise ValueError(wrong)
    header, num_bytes = _header(file)
    content = file.read_bytes()[-num_bytes:] if num_bytes else b""
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        part = content[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(part, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] in _NUMPY_TYPES:
            values = np.frombuffer(part, _NUMPY_TYPES[entry["dtype"]])
        else:
            raise ValueError(f"holds '{name}' as {entry['dtype']}")
        found[name] = values.astype(np.float64).reshape(entry["shape"])
    return found


class _DamagedError(Exception):
    """The header cannot be read; the message says why."""


def _header(file: Path) -> tuple[Any, int]:
    """Return the content of a file's header, and the number of bytes after it."""
    num_bytes = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        room = num_bytes - _LENGTH_BYTES
        if header_bytes > room:
            message = f"is damaged: it has {num_bytes} bytes, and its header alone would have {header_bytes}"
            raise _DamagedError(message)
        if header_bytes > MAX_HEADER_BYTES:
            message = f"has a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed"
            raise _DamagedError(message)
        return json.loads(stream.read(header_bytes)), room - header_bytes


def _lies(header: Mapping[str, Any], num_bytes: int) -> Iterator[str]:
    """Yield the contradictions between a header and the number of bytes of weights."""
    ends = [(0, 0)]
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [begin, end, *shape]
        except (KeyError, TypeError, ValueError):
            yield f"is damaged: its header does not say what '{name}' is"
            return
        if any(type(number) is not int or number < 0 for number in numbers):
            yield f"is damaged: its header gives '{name}' sizes that are no whole numbers"
            return
        bits = _BITS.get(dtype) if isinstance(dtype, str) else None
        if bits is not None and prod(shape) * bits != 8 * (end - begin):
            yield f"is damaged: '{name}' has {end - begin} bytes, and its shape {shape} of {dtype} has others"
        ends.append((begin, end))
    ends.sort()
    if any(begin != end for (_, end), (begin, _) in itertools.pairwise(ends)):
        yield "is damaged: its weights overlap, or there are gaps between them"
    if ends[-1][1] != num_bytes:
        yield f"is damaged: it holds {num_bytes} bytes of weights, and its header says {ends[-1][1]}"


def _wrong_with_index(index: Path, present: set[str]) -> str | None:
    wrong = not_a_plain_file(index)
    if wrong is not None:
        return wrong
    try:
        named = set(json.loads(index.read_bytes())["weight_map"].values())
        absent = sorted(named - present)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "says of no weight which file holds it"
    return f"names {absent[0]}, which is not there" if absent else None
