"""Recordings are read by programs that share nothing with what wrote them."""

from typing import Any

import h5py
import numpy as np
import pyfive
import pytest

from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import demo_name
from tests.storage.recordings import recorded, write_parts


def contents(group: Any) -> dict[str, object]:
    """Return everything below a group: path to array or attribute, the same from both libraries."""
    found: dict[str, object] = {f"@{name}": _text(value) for name, value in group.attrs.items()}
    for name in group:
        member = group[name]
        if hasattr(member, "keys"):
            found |= {f"{name}/{path}": value for path, value in contents(member).items()}
        else:
            array = np.asarray(member[()])
            found[name] = (array.dtype.str, array.shape, array.tobytes())
    return found


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_reader_written_from_the_specification_alone_reads_an_episode(tmp_path, compression):
    path = tmp_path / "e000003.h5"
    write_episode(path, recorded(3, instruction="Größe ✓"), compression)
    with pyfive.File(path) as theirs, h5py.File(path) as ours:
        found = contents(theirs["data"])
        assert found == contents(ours["data"])
    assert found[f"{demo_name(3)}/actions"] == ("<f4", (5, 4), recorded(3).arrays["actions"].tobytes())


@pytest.mark.parametrize("num_episodes", [1, 8, 9, 300])
def test_it_reads_a_dataset_of_few_and_of_many_episodes(tmp_path, num_episodes):
    """A group of more than 8 members has several leaves, one of more than 256 a tree of two levels."""
    dataset = tmp_path / "dataset.hdf5"
    consolidate(write_parts(tmp_path, range(num_episodes)), dataset)
    with pyfive.File(dataset) as theirs, h5py.File(dataset) as ours:
        found = contents(theirs["data"])
        assert found == contents(ours["data"])
    assert {path.split("/")[0] for path in found if not path.startswith("@")} == {
        demo_name(index) for index in range(num_episodes)
    }
