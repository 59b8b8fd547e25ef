"""Hold an episode's arrays and attributes, for recorder, files and readers."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from pydantic import ValidationError

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import adapter
from isaaclab_arena.storage.layout import CONTENTS_ATTRIBUTE

AttributeValue: TypeAlias = str | int | float | bool
Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Path below the episode's group, such as ``obs/robot_joint_pos``, to array."""


class Compression(StrEnum):
    """The compression of arrays. ``ZSTD`` needs the package hdf5plugin, also in programs that read the file."""

    NONE = "none"
    LZF = "lzf"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One recorded episode.

    Attributes:
        episode_index: Position of the episode in the job, which names its group.
        arrays: ``actions`` of shape (num_samples, action_dim), and all other recorded arrays.
        attributes: Attributes of the episode's group. The writer adds ``num_samples`` and ``checksum``.
        env_args: Content of the attribute ``env_args`` of ``/data``.
    """

    episode_index: int
    arrays: Arrays
    attributes: Mapping[str, AttributeValue]
    env_args: Mapping[str, Any]

    @property
    def provenance(self) -> Mapping[str, str]:
        """Versions, processor, model and other facts at the time of the recording; empty if not recorded."""
        return parsed_mapping(self.attributes.get("provenance", "{}"), "the provenance")

    @property
    def contents(self) -> Contents | None:
        """The evaluated contents, None if they were not recorded or are not readable."""
        try:
            return adapter(Contents).validate_json(str(self.attributes.get(CONTENTS_ATTRIBUTE, "")))
        except ValidationError:
            return None


_MAX_SAMPLES = 1 << 40  # so that the steps of all episodes of a file fit into the 64 bits that it has for them
JSON_ATTRIBUTES = ("conditions", "metrics", "provenance")  # attributes of an episode that hold a JSON object as text


def parsed_mapping(text: object, what: str) -> Mapping[str, Any]:
    """Return the JSON object of an attribute; `what` names it in messages. DamagedFileError if it is not an object."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{what} is no JSON object but a {type(value).__name__}")
    return value


def num_samples_of(attributes: Mapping[str, AttributeValue]) -> int:
    """Return an episode's number of control steps. ValueError if it is missing or invalid."""
    number = attributes.get("num_samples")
    if not isinstance(number, int) or not 0 <= number <= _MAX_SAMPLES:
        raise ValueError(f"an episode says that it has {number} control steps")
    return number


def checksum(arrays: Arrays) -> int:
    """Return the CRC-32 of the arrays' names, types, shapes and contents, in order of the names."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = array_checksum(name, array.dtype, array.shape, array.data if array.size else b"", crc)
    return crc


def array_checksum(name: str, dtype: np.dtype, shape: tuple[int, ...], content: bytes | memoryview, crc: int) -> int:
    """Extend a `checksum` by one array; `crc` is the checksum so far, 0 for the first array."""
    return zlib.crc32(content, zlib.crc32(_description(name, dtype, shape), crc))


@lru_cache(maxsize=1024)
def _description(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    # The episodes of a job have the same arrays, with a few lengths.
    return f"{name} {dtype.str} {shape}".encode()
