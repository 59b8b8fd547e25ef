"""The bytes that HDF5's library gives to the types of numpy, and what is worked out from them once."""

from functools import lru_cache

import h5py
import numpy as np

from isaaclab_arena.storage.hdf5.episode_template import ArrayType, EpisodeTemplate
from isaaclab_arena.storage.hdf5.format import AttributeType, text_attribute
from isaaclab_arena.storage.hdf5.recording_image import TopAttributes


@lru_cache(maxsize=64)
def template_of(
    arrays: tuple[tuple[str, np.dtype, int], ...], attributes: tuple[tuple[str, np.dtype | None], ...]
) -> EpisodeTemplate:
    """Return the structure of episodes.

    Args:
        arrays: Name, type and number of dimensions of each array.
        attributes: Name and type of each attribute; None for a text.
    """
    types = [ArrayType(name=name, encoded_type=_encoded_type(dtype), rank=rank) for name, dtype, rank in arrays]
    return EpisodeTemplate(types, [_attribute_type(name, dtype) for name, dtype in attributes])


@lru_cache(maxsize=64)
def top_attributes(env_args: str) -> TopAttributes:
    """Return the attributes of the group of all episodes, with the text that describes the environment."""
    return TopAttributes(
        total=_attribute_type("total", np.dtype(np.int64)),
        env_args=_attribute_type("env_args", None),
        env_args_text=env_args.encode(),
    )


def _attribute_type(name: str, dtype: np.dtype | None) -> AttributeType:
    if dtype is None:
        return text_attribute(name, _encoded_type(h5py.string_dtype()))
    return AttributeType(name=name, encoded_type=_encoded_type(dtype), value_bytes=dtype.itemsize)


def _encoded_type(dtype: np.dtype) -> bytes:
    """Return a type as HDF5 writes it; the library puts two bytes of its own before it."""
    return h5py.h5t.py_create(dtype, logical=True).encode()[2:]
