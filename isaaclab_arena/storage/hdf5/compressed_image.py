"""The file of one episode with compressed arrays, made in memory by HDF5's library."""

from collections.abc import Mapping
from importlib import util

import h5py
import numpy as np

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import DATA_GROUP, demo_name
from isaaclab_arena.storage.recorded_episode import AttributeValue, Compression, RecordedEpisode

ZSTD_FILTER = 32015
CHUNK_BYTES = 1 << 20
CHUNK_LENGTH = 20


def check_compression(compression: Compression) -> None:
    """Refuse a compression that is not installed.

    Raises:
        ConfigError: If it needs a package that is not there.
    """
    if compression is Compression.ZSTD and util.find_spec("hdf5plugin") is None:
        raise ConfigError(
            "compression 'zstd' needs the package hdf5plugin: pip install 'isaaclab-arena-mujoco[zstd]', or choose gzip"
        )


def compressed_episode_file(
    episode: RecordedEpisode, attributes: Mapping[str, AttributeValue], compression: Compression
) -> bytes:
    """Return the file of one episode.

    Args:
        episode: What it holds.
        attributes: Attributes of the episode's group, ``num_samples`` among them.
        compression: How its arrays are compressed.

    Raises:
        ConfigError: If the compression is not installed.
    """
    # Built in memory and written at once: a twentieth of the system calls, and no lock on a network file system.
    with h5py.File("episode", "w", driver="core", backing_store=False, block_size=1 << 16) as file:
        data = file.create_group(DATA_GROUP)
        data.attrs["total"] = attributes["num_samples"]
        data.attrs["env_args"] = json_line(episode.env_args)
        group = data.create_group(demo_name(episode.episode_index))
        for name, value in attributes.items():
            _create_attribute(group, name, value)
        for name in sorted(episode.arrays):
            _create_dataset(group, name, episode.arrays[name], compression)
        file.flush()
        return file.id.get_file_image()


def _create_attribute(group: h5py.Group, name: str, value: AttributeValue) -> None:
    array = np.array(value, dtype=h5py.string_dtype() if isinstance(value, str) else None)
    kind, space = h5py.h5t.py_create(array.dtype, logical=True), h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5a.create(group.id, name.encode(), kind, space).write(array)


def _create_dataset(group: h5py.Group, name: str, array: np.ndarray, compression: Compression) -> None:
    array = np.ascontiguousarray(array)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    dataset = h5py.h5d.create(
        group.id,
        name.encode(),
        h5py.h5t.py_create(array.dtype, logical=True),
        h5py.h5s.create_simple(array.shape),
        dcpl=_filters(array, compression),
        lcpl=links,
    )
    if array.size:
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, array)


def _filters(array: np.ndarray, compression: Compression) -> h5py.h5p.PropDCID | None:
    if compression is Compression.NONE or array.size == 0 or array.ndim == 0:
        return None
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    length = CHUNK_LENGTH if array.ndim > 2 else max(1, CHUNK_BYTES * len(array) // array.nbytes)
    properties.set_chunk((min(len(array), length), *array.shape[1:]))
    if compression is Compression.GZIP:
        properties.set_deflate(1)
    elif compression is Compression.LZF:
        properties.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
    else:
        check_compression(compression)
        load_zstd()
        properties.set_filter(ZSTD_FILTER, h5py.h5z.FLAG_MANDATORY, (1,))
    return properties


def load_zstd() -> None:
    """Make HDF5 know the filter of Zstandard, by an optional package."""
    # Optional and only registers its filters with HDF5; loading it takes longer than all of this module.
    import hdf5plugin  # noqa: F401, PLC0415  optional package
