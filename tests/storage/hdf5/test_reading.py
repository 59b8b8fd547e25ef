"""Recordings that are read: whole, damaged, hostile."""

import importlib.util
import subprocess
import sys
import traceback
from functools import partial
from typing import Any

import h5py
import numpy as np
import pyfive
import pytest

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage import dataset as dataset_assembly
from isaaclab_arena.storage import episode_file as compressed_image
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, block_of
from isaaclab_arena.storage.episodes import check_array, read_actions, read_episode, write_episode
from isaaclab_arena.storage.layout import demo_name, episode_file_name
from tests.end_to_end.launching import ROOT, environment
from tests.faults.system_trouble import trouble_variables
from tests.storage.hdf5.hostile_recordings import ARRAYS, kinds
from tests.storage.recordings import recorded, write_parts

# Files that are made without HDF5's library, against files that it makes.


TYPES = (np.float16, np.float32, np.float64, np.uint8, np.int8, np.int32, np.int64, np.uint64, bool, ">f8")


def many_types(index: int) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    arrays = {f"typed/{np.dtype(kind)}": (generator.random((7, 3)) * 50).astype(kind) for kind in TYPES}
    arrays |= {f"deep/{'er/' * depth}x": np.arange(depth, dtype=np.int16) for depth in range(12)}
    arrays |= {f"wide/array_{number}": generator.random((7, 1)).astype(np.float32) for number in range(40)}
    arrays |= {"scalar": np.array(3.5), "backwards": np.arange(9)[::-1], "empty": np.zeros((7, 0, 2))}
    return RecordedEpisode(
        episode_index=index,
        arrays={"actions": generator.random((7, 2)).astype(np.float32), **arrays},
        attributes={
            "text": "Grüße",
            "none": "",
            "long": "x" * 9000,
            "yes": True,
            "no": False,
            "many": 2**63,
            "pi": 3.1,
        },
        env_args={"env_name": "lift", "env_kwargs": {"a": [1, "ü"]}},
    )


def everything(path) -> dict[str, object]:
    """Content of a file as a plain reader sees it: groups, types, shapes, bytes, attributes."""
    seen: dict[str, object] = {}

    def see(name, item):
        attributes = {key: (type(value), value) for key, value in item.attrs.items()}
        content = (item.dtype.str, item.shape, item[()].tobytes()) if isinstance(item, h5py.Dataset) else None
        seen[name] = (content, attributes)

    with h5py.File(path) as file:
        file.visititems(see)
    return seen


def test_a_plain_reader_sees_what_the_library_would_have_written(tmp_path):
    ours, theirs = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    hdf5.write_episode(ours, many_types(3))
    hdf5.write_episode(theirs, many_types(3), Compression.GZIP)
    assert block_of(theirs.read_bytes()) is None
    assert everything(ours) == everything(theirs)


def test_a_dataset_put_together_from_bytes_is_what_the_library_copies_together(tmp_path):
    parts = [tmp_path / episode_file_name(index) for index in (0, 3, 11)]
    for part, episode in zip(parts, (recorded(0), many_types(3), recorded(11, length=200)), strict=True):
        hdf5.write_episode(part, episode)
    sources = list(zip((0, 3, 11), parts, strict=True))
    dataset_assembly.copy_episodes(sources, tmp_path / "theirs.hdf5")
    assert dataset_assembly.assemble_dataset(sources, tmp_path / "ours.hdf5")
    assert everything(tmp_path / "ours.hdf5") == everything(tmp_path / "theirs.hdf5")
    hdf5.verify_episodes(tmp_path / "ours.hdf5", [0, 3, 11])


def test_other_programs_can_change_a_dataset(tmp_path):
    consolidate(write_parts(tmp_path, [0, 1, 2]), tmp_path / "dataset.hdf5")
    with h5py.File(tmp_path / "dataset.hdf5", "r+") as file:
        file.create_dataset("mask/train", data=np.array([b"demo_0", b"demo_2"]))
        file["data/demo_1"].attrs["note"] = "n" * 5000
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] = 7
        del file["data/demo_2/states"]
        file.copy("data/demo_0", file["data"], name="demo_9")
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        mask: Any = file["mask/train"]
        actions: Any = file["data/demo_1/actions"]
        data: Any = file["data"]
        assert mask[1] == b"demo_2"
        assert actions[0, 0] == 7
        assert sorted(data) == ["demo_0", "demo_1", "demo_2", "demo_9"]
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0, 9])


def test_a_file_of_which_a_bit_or_the_end_or_the_name_changed_is_not_taken_over_unread(tmp_path):
    path = tmp_path / episode_file_name(4)
    hdf5.write_episode(path, recorded(4))
    content = path.read_bytes()
    assert block_of(content) is not None
    actions, text = content.index(recorded(4).arrays["actions"]), content.index(b"lift")
    for place in (130, content.index(b"SNOD"), actions, text, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 4
        assert block_of(changed) is None, place
    assert all(block_of(content[:size]) is None for size in range(0, len(content), 97))
    assert not dataset_assembly.assemble_dataset([(5, path)], tmp_path / "dataset.hdf5")


def test_zstd_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isaaclab-arena-mujoco\[zstd\]"):
        compressed_image.check_compression(Compression.ZSTD)
    compressed_image.check_compression(Compression.GZIP)


# Recordings are read by programs that share nothing with what wrote them.


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


@pytest.mark.parametrize("num_episodes", [8, 9, 260])
def test_it_reads_a_dataset_of_few_and_of_many_episodes(tmp_path, num_episodes):
    """A group of more than 8 members has several leaves, one of more than 256 a tree of two levels."""
    dataset, small = tmp_path / "dataset.hdf5", {"actions": np.ones((1, 2), np.float32)}
    parts = [tmp_path / episode_file_name(index) for index in range(num_episodes)]
    for index, part in enumerate(parts):
        write_episode(part, RecordedEpisode(episode_index=index, arrays=small, attributes={"n": index}, env_args={}))
    consolidate(parts, dataset)
    with pyfive.File(dataset) as theirs, h5py.File(dataset) as ours:
        found = contents(theirs["data"])
        assert found == contents(ours["data"])
    names = {path.split("/")[0] for path in found if not path.startswith("@")}
    assert names == {demo_name(index) for index in range(num_episodes)}


# What a recording declares is held against what its file has room for.


REFUSED = {
    "huge": "8,000,000,000,000 bytes, of which 0",
    "huge_in_chunks": "80,000,000,000 bytes, of which 0",
    "huge_and_compressed": "80,000,000,000 bytes",
    "never_written": "240 bytes, of which 0",
    "giant_chunk": "3,200,000,000 bytes",
    "bomb": "4,294,967,296 bytes",
    "chunk_that_swells": "unpacks into more",
    "null": "has no shape",
    "of type g": "only numbers",
    "scalar": r"shape \(\)",
}


@pytest.mark.parametrize(("kind", "words"), REFUSED.items())
def test_an_array_that_declares_more_than_is_stored_is_refused_by_what_it_declares(tmp_path, kind, words):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        ARRAYS[kind](file.create_group("data/demo_0"), "actions")
    with pytest.raises(StorageError, match=words):
        read_actions(path, 0)


def test_black_pictures_are_read_however_well_they_compress(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        pictures = np.zeros((200, 64, 64, 3), np.uint8)
        file.create_group("data/demo_0").create_dataset(
            "black", data=pictures, compression="gzip", chunks=pictures.shape
        )
    assert read_episode(path, 0).arrays["black"].shape == (200, 64, 64, 3)


def test_no_more_members_are_looked_at_than_a_file_has_room_for(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("data/demo_0")
        for _ in range(12):
            group["one"] = file.create_group(None)
            group["again"] = group["one"]
            group = group["one"]
    with pytest.raises(StorageError, match="declares more than its file has room for: its groups hold each other"):
        read_episode(path, 0)


def test_an_array_is_paid_for_once_and_not_for_every_name(tmp_path):
    path = tmp_path / "e000000.h5"
    with h5py.File(path, "w") as file:
        values = file.create_dataset("data/demo_0/a", data=np.zeros(10_000, np.float32))
        assert check_array(values.id, "a") == (40_000, False)
        file["data/demo_0/b"] = values
    with pytest.raises(StorageError, match=r"demo_0/b declares more than .*: arrays share what they hold"):
        read_episode(path, 0)


def test_an_error_about_a_virtual_dataset_holds_none_of_its_properties(tmp_path):
    # HDF5 2.0 crashes at the end of a process that still holds them, and an error may be kept until then.
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((3, 2), np.float32)
        layout[:] = h5py.VirtualSource("elsewhere.h5", "actions", (3, 2))
        file.create_virtual_dataset("actions", layout)
    with h5py.File(tmp_path / "virtual.h5") as file, pytest.raises(StorageError, match="from other files") as caught:
        check_array(file["actions"].id, "actions")
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert not any(isinstance(value, h5py.h5p.PropID) for value in held)


# HDF5 tells a read that the system refused by errors of many kinds; none of them is damage.


def test_no_read_that_the_system_refuses_is_taken_for_damage(tmp_path):
    variables = trouble_variables(tmp_path)
    if variables is None:
        pytest.skip("the library that refuses calls of the system needs a C compiler, and there is no cc")
    datasets = []
    for compression in (Compression.NONE, Compression.GZIP):
        parts = [tmp_path / episode_file_name(index) for index in (0, 1)]
        for index, part in enumerate(parts):
            write_episode(part, recorded(index, conditions="{}"), compression)
        datasets.append(tmp_path / f"dataset_{compression}.hdf5")
        consolidate(parts, datasets[-1])
    read = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    command = [sys.executable, "-m", "tests.storage.hdf5.refused_reads", *map(str, datasets)]
    done = read(command, env=environment(variables))
    assert done.returncode == 0, done.stderr
    assert all(int(number) > 5 for number in done.stdout.split()), done.stdout
    assert len(done.stdout.splitlines()) == len(datasets)


# Recordings that mean harm: no reader ends in a traceback, in all of the memory, or never.


SEED = 15
FAST_KINDS = 3


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (0, FAST_KINDS),
        *(
            pytest.param(begin, begin + 60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
            for begin in range(FAST_KINDS, len(kinds()), 60)
        ),
    ],
)
def test_no_reader_breaks_on_any_bad_file(tmp_path, begin, end):
    """A process of limited memory runs all readers on kinds that a seed draws."""
    assert len(kinds()) > 500
    command = [sys.executable, "-m", "tests.storage.hdf5.hostile_recordings", str(tmp_path)]
    done = subprocess.run(
        [*command, str(SEED), str(begin), str(end)], cwd=ROOT, check=False, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    said = [line for line in done.stdout.splitlines() if line.startswith(("COMPLAINT", "DONE"))]
    assert said == [f"DONE {min(end, len(kinds())) - begin} of {len(kinds())} kinds"]
