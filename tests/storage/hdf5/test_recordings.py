"""Recordings: files of single episodes, the dataset that they become, and what reads them."""

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyfive
import pytest

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage import dataset as dataset_assembly
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.atomic import temporary_path
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, block_of, check_compression, checksum
from isaaclab_arena.storage.episodes import RecordedSteps, check_array, opened
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.recovery import Diagnosis, RecordedCopy, repair_job
from tests.end_to_end.launching import ROOT
from tests.results.evidence import plan_entry
from tests.security.test_recordings import LEADS, recording
from tests.storage.hdf5.hostile_recordings import ARRAYS, kinds
from tests.storage.recordings import recorded, write_parts

SEED = 7

# What is written without HDF5's library is what the library, and another one, reads.

TYPES = (np.float16, np.float32, np.float64, np.uint8, np.int8, np.int32, np.int64, np.uint64, bool, ">f8")


def many_types(index: int) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    arrays = {f"typed/{np.dtype(kind)}": (generator.random((7, 3)) * 50).astype(kind) for kind in TYPES}
    arrays |= {f"deep/{'er/' * depth}x": np.arange(depth, dtype=np.int16) for depth in range(12)}
    arrays |= {f"wide/array_{number}": generator.random((7, 1)).astype(np.float32) for number in range(40)}
    arrays |= {"scalar": np.array(3.5), "backwards": np.arange(9)[::-1], "empty": np.zeros((7, 0, 2))}
    texts = {"text": "Grüße ✓", "none": "", "long": "x" * 9000}
    return RecordedEpisode(
        episode_index=index,
        arrays={"actions": generator.random((7, 2)).astype(np.float32), **arrays},
        attributes={**texts, "yes": True, "no": False, "many": 2**63, "pi": 3.1},
        env_args={"env_name": "lift", "env_kwargs": {"a": [1, "ü"]}},
    )


def contents(group: Any) -> dict[str, object]:
    """Return everything below a group: path to array or attribute, the same from both libraries."""
    found: dict[str, object] = {}
    for name, value in group.attrs.items():
        text = value.decode() if isinstance(value, bytes) else value
        found[f"@{name}"] = (text, None if isinstance(text, str) else np.asarray(value).dtype.itemsize)
    for name in group:
        member = group[name]
        if hasattr(member, "keys"):
            found |= {f"{name}/{path}": value for path, value in contents(member).items()}
        else:
            array = np.asarray(member[()])
            found[name] = (array.dtype.str, array.shape, array.tobytes())
    return found


def everything(path: Path) -> dict[str, object]:
    with h5py.File(path) as file:
        return contents(file)


def test_any_reader_sees_what_the_library_would_have_written(tmp_path):
    ours, theirs = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    hdf5.write_episode(ours, many_types(3))
    hdf5.write_episode(theirs, many_types(3), Compression.GZIP)
    assert block_of(theirs.read_bytes()) is None
    assert everything(ours) == everything(theirs)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_reader_written_from_the_specification_alone_reads_a_dataset(tmp_path, compression):
    parts = [tmp_path / episode_file_name(index) for index in range(9)]
    for index, part in enumerate(parts):
        hdf5.write_episode(part, recorded(index, instruction="Größe ✓"), compression)
    consolidate(parts, tmp_path / "dataset.hdf5")
    with pyfive.File(tmp_path / "dataset.hdf5") as theirs, h5py.File(tmp_path / "dataset.hdf5") as ours:
        found = contents(theirs["data"])
        assert found == contents(ours["data"])
    assert found["demo_3/actions"] == ("<f4", (5, 4), recorded(3).arrays["actions"].tobytes())


def test_a_dataset_put_together_from_bytes_is_what_the_library_copies_together(tmp_path):
    parts = [tmp_path / episode_file_name(index) for index in (0, 3, 11)]
    for part, episode in zip(parts, (recorded(0), many_types(3), recorded(11, length=200)), strict=True):
        hdf5.write_episode(part, episode)
    sources = list(zip((0, 3, 11), parts, strict=True))
    dataset_assembly.copy_episodes(sources, tmp_path / "theirs.hdf5")
    assert dataset_assembly.assemble_dataset(sources, tmp_path / "ours.hdf5")
    assert everything(tmp_path / "ours.hdf5") == everything(tmp_path / "theirs.hdf5")
    hdf5.verify_episodes(tmp_path / "ours.hdf5", [0, 3, 11])


@pytest.mark.parametrize("number", [1, 8, 9, 8 * 32, 8 * 32 + 1, 8 * 32 * 32 + 1])
def test_a_group_of_any_size_is_read_by_the_library(tmp_path, number):
    arrays = {f"many/array_{at}": np.array([at], np.int32) for at in range(number)} | {"actions": np.zeros((1, 2))}
    episode = RecordedEpisode(episode_index=0, arrays=arrays, attributes={}, env_args={})
    hdf5.write_episode(tmp_path / "e.h5", episode)
    with h5py.File(tmp_path / "e.h5") as file:
        many: Any = file["data/demo_0/many"]
        assert list(many) == sorted(f"array_{at}" for at in range(number))
        assert all(many[f"array_{at}"][0] == at for at in {0, number // 2, number - 1})
        assert "array_x" not in many


@pytest.mark.parametrize("size", [0, 1, 8, *range(3840, 4096, 8), 100_000])
def test_texts_of_any_size_are_read_by_the_library(tmp_path, size):
    text = "é" * (size // 2) + "x" * (size % 2)
    hdf5.write_episode(tmp_path / "e.h5", recorded(0, length=1, note=text))
    with h5py.File(tmp_path / "e.h5") as file:
        assert file["data/demo_0"].attrs["note"] == text


def test_other_programs_can_change_a_dataset(tmp_path):
    consolidate(write_parts(tmp_path, [0, 1, 2]), tmp_path / "dataset.hdf5")
    with h5py.File(tmp_path / "dataset.hdf5", "r+") as file:
        for number in range(100):
            file.create_dataset(f"mask/a much longer name {number}", data=np.array([b"demo_0", b"demo_2"]))
        file["data/demo_1"].attrs["note"] = "n" * 5000
        del file["data/demo_2/states"]
        file.copy("data/demo_0", file["data"], name="demo_9")
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        mask: Any = file["mask"]
        data: Any = file["data"]
        assert (len(mask), mask["a much longer name 99"][1]) == (100, b"demo_2")
        assert sorted(data) == ["demo_0", "demo_1", "demo_2", "demo_9"]
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0, 9])


# An episode and its dataset.


@pytest.mark.parametrize("compression", Compression)
def test_an_episode_comes_back_bit_for_bit_and_smaller_where_it_is_compressed(tmp_path, compression):
    path, written = tmp_path / "e.h5", recorded(3)
    arrays = {**written.arrays, "smooth": np.zeros((4000, 8), np.float32)}
    written = RecordedEpisode(episode_index=3, arrays=arrays, attributes=written.attributes, env_args=written.env_args)
    crc = hdf5.write_episode(path, written, compression)
    assert (path.stat().st_size < arrays["smooth"].nbytes / 4) is (compression is not Compression.NONE)
    read, steps = hdf5.read_episode(path, 3), RecordedSteps()
    assert read.env_args == written.env_args
    assert read.attributes == {**written.attributes, "num_samples": 5, "checksum": crc}
    assert sorted(read.arrays) == steps.names(path, 3) == sorted(arrays)
    for name, array in arrays.items():
        for found in (read.arrays[name], steps.array(path, 3, name)):
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


def test_an_episode_file_is_written_over_only_on_demand(tmp_path):
    for compression in (Compression.NONE, Compression.GZIP):
        hdf5.write_episode(tmp_path / "e.h5", recorded(0), overwrite=True)
        with pytest.raises(StorageError, match=r"e\.h5"):
            hdf5.write_episode(tmp_path / "e.h5", recorded(1), compression)
        assert hdf5.list_episodes(tmp_path / "e.h5") == [0]
        hdf5.write_episode(tmp_path / "e.h5", recorded(1), compression, overwrite=True)
        assert hdf5.list_episodes(tmp_path / "e.h5") == [1]


def no_actions(path: Path, content: object = None) -> None:
    hdf5.write_episode(path, recorded(0))
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/actions"]
        if content is not None:
            file["data/demo_0/actions"] = content


def numbers(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["numbers"] = [1, 2]


def whole(path: Path) -> None:
    hdf5.write_episode(path, recorded(0))


MISTAKES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "no file": (lambda path: None, hdf5.list_episodes, "No such file"),
    "empty": (Path.touch, hdf5.list_episodes, "cannot read"),
    "no HDF5": (lambda path: path.write_bytes(b"not HDF5 at all"), hdf5.list_episodes, "cannot read"),
    "no recording": (numbers, hdf5.list_episodes, "not a recording"),
    "no such episode": (whole, lambda path: hdf5.read_actions(path, 4), "no demo_4"),
    "no such steps": (whole, lambda path: RecordedSteps().names(path, 4), "no demo_4"),
    "no such array": (whole, lambda path: RecordedSteps().array(path, 0, "obs/no"), "demo_0 holds no 'obs/no'"),
    "no actions": (no_actions, lambda path: hdf5.read_actions(path, 0), "no 'actions'"),
    "words": (
        partial(no_actions, content=np.array([[b"push"]], dtype=object)),
        lambda path: hdf5.read_actions(path, 0),
        "/data/demo_0/actions holds object",
    ),
}


@pytest.mark.parametrize(("make", "read", "words"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_read_is_named(tmp_path, make, read, words):
    make(tmp_path / "x.hdf5")
    with pytest.raises(StorageError, match=words):
        read(tmp_path / "x.hdf5")


def test_the_checksum_knows_names_shapes_types_and_order_of_elements():
    array = np.arange(6, dtype=np.float32)
    base = checksum({"a": array})
    others = [{"b": array}, {"a": array.reshape(2, 3)}, {"a": array.astype(np.float64)}, {"a": array[::-1]}]
    assert len({base, *map(checksum, others)}) == 5
    assert checksum({"a": array, "b": array}) == checksum({"b": array, "a": array})


def test_zstd_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isaaclab-arena-mujoco\[zstd\]"):
        check_compression(Compression.ZSTD)
    check_compression(Compression.GZIP)


def test_the_layout_is_robomimics_and_the_parts_are_gone(tmp_path):
    done = consolidate(write_parts(tmp_path, [10, 9, 2, 0]), tmp_path / "dataset.hdf5")
    assert list(done.episode_indices) == hdf5.list_episodes(tmp_path / "dataset.hdf5") == [0, 2, 9, 10]
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.hdf5"]
    with h5py.File(tmp_path / "dataset.hdf5") as file:
        data: Any = file["data"]
        assert set(data) == {"demo_0", "demo_2", "demo_9", "demo_10"}
        assert (data.attrs["total"], data.attrs["env_args"]) == (3 + 5 + 12 + 13, '{"env_name": "lift", "type": 2}')
        assert (data["demo_2"].attrs["num_samples"], bool(data["demo_2"].attrs["success"])) == (5, True)
        assert data["demo_2/states/articulation/robot/joint_position"].shape == (5, 7)


def test_a_dataset_that_grows_holds_the_same_as_one_that_was_made_at_once_also_after_a_crash(tmp_path):
    consolidate(write_parts(tmp_path, [0, 2]), tmp_path / "grown.hdf5")
    again = consolidate(write_parts(tmp_path, [1, 2, 3]), tmp_path / "grown.hdf5")
    assert (again.episode_indices, again.damaged) == ((0, 1, 2, 3), ())
    consolidate(write_parts(tmp_path, range(4)), tmp_path / "at once.hdf5")
    assert everything(tmp_path / "grown.hdf5") == everything(tmp_path / "at once.hdf5")


@pytest.mark.parametrize("number", [3, 110])
def test_a_part_that_cannot_be_removed_is_named_and_makes_no_loss_of_the_others(tmp_path, monkeypatch, number):
    """Very many are removed by several threads."""
    parts, dataset = write_parts(tmp_path, range(number)), tmp_path / "dataset.hdf5"
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == parts[1]:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"e000001\.h5"):
        consolidate(parts, dataset)
    monkeypatch.undo()
    assert hdf5.list_episodes(dataset) == list(range(number))
    assert consolidate(parts, dataset).loss is None
    assert [*tmp_path.iterdir()] == [dataset]


def test_parts_that_vanish_are_a_loss_and_damaged_ones_and_strangers_stay(tmp_path):
    parts = write_parts(tmp_path, [0, 1, 2, 3])
    with h5py.File(parts[1], "r+") as file:
        actions: Any = file["data/demo_1/actions"]
        actions[0, 0] += 1
    parts[2].write_bytes(b"")
    parts[3].unlink()
    stranger = tmp_path / "notes.h5"
    hdf5.write_episode(stranger, recorded(0))
    done = consolidate([*parts, stranger], tmp_path / "dataset.hdf5")
    damaged = dict(done.damaged)
    assert (done.episode_indices, {*damaged}) == ((0,), {*parts[1:], stranger})
    assert "not what was written" in damaged[parts[1]]
    assert "is gone" in damaged[parts[3]]
    assert all(each.exists() for each in (parts[1], parts[2], stranger))
    assert "4 episodes" in str(done.loss)


def test_two_different_recordings_of_one_episode_are_refused(tmp_path):
    consolidate(write_parts(tmp_path, [0]), tmp_path / "dataset.hdf5")
    other = tmp_path / episode_file_name(0)
    hdf5.write_episode(other, recorded(0, length=9))
    with pytest.raises(StorageError, match="both hold demo_0"):
        consolidate([other], tmp_path / "dataset.hdf5")
    assert other.exists()
    hdf5.verify_episodes(tmp_path / "dataset.hdf5", [0])


def test_a_dataset_is_on_the_disk_before_it_is_in_place_and_before_the_parts_are_removed(tmp_path, monkeypatch):
    dataset = tmp_path / "dataset.hdf5"
    noted, flush = [], os.fsync

    def note(descriptor: int) -> None:
        noted.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, {path.name for path in tmp_path.iterdir()}))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    parts, temporary = write_parts(tmp_path, [0, 1]), temporary_path(dataset).name
    consolidate(parts, dataset)
    assert noted == [(temporary, {temporary, *(part.name for part in parts)})]
    # It lost an episode, and the old one stays until then.
    dropped = RecordedCopy(episode_index=0, path=dataset, checksum=None)
    repair_job(tmp_path, Diagnosis(job=plan_entry("lift"), discarded=[(dropped, None)]))
    assert noted[1:] == [(temporary, {temporary, dataset.name})]
    assert hdf5.list_episodes(dataset) == [1]


# Damage


def answer(read: Callable[[], object]) -> object:
    """Result of a reader, or its refusal."""
    try:
        found = read()
    except StorageError:
        return "refused"
    return "refused" if isinstance(found, str) else found


def by_the_library(path, index):
    with opened(path) as recording:
        return recording.verified_attributes(index)


@pytest.mark.parametrize("name", ["dataset.hdf5", episode_file_name(1)])
def test_no_changed_byte_passes_that_the_library_would_refuse(tmp_path, name):
    first, second = write_parts(tmp_path, [0, 1])
    if name == "dataset.hdf5":
        consolidate([first, second], tmp_path / name)
    path, draw = tmp_path / name, random.Random(SEED)
    content = path.read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        at = draw.randrange(96, len(changed))
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        found = answer(lambda: hdf5.examine_episodes(path, [1])[0])
        assert found == answer(lambda: by_the_library(path, 1)), f"byte {at} is changed, and {found} is read"


@pytest.mark.parametrize("lead", LEADS)
def test_consolidation_brings_nothing_of_another_file_into_a_dataset(tmp_path, lead):
    make, message = LEADS[lead]
    path = recording(tmp_path, make)
    result = consolidate([path], tmp_path / "dataset.hdf5")
    assert result.episode_indices == ()
    assert [(damaged, message in reason) for damaged, reason in result.damaged] == [(path, True)]
    assert path.exists()


# What a recording declares is held against what its file has room for.


def groups_that_hold_each_other(file: h5py.File) -> None:
    group = file.create_group("data/demo_0")
    for _ in range(12):
        group["one"] = file.create_group(None)
        group["again"] = group["one"]
        group = group["one"]


def one_array_of_two_names(file: h5py.File) -> None:
    file["data/demo_0/a"] = np.zeros(10_000, np.float32)
    assert check_array(file["data/demo_0/a"].id, "a") == (40_000, False)
    file["data/demo_0/b"] = file["data/demo_0/a"]


DECLARES = "declares more than .*"
REFUSED: dict[str, tuple[Any, str]] = {
    kind: (lambda file, kind=kind: ARRAYS[kind](file.create_group("data/demo_0"), "actions"), words)
    for kind, words in {
        "huge": "8,000,000,000,000 bytes, of which 0",
        "huge_in_chunks": "80,000,000,000 bytes, of which 0",
        "huge_and_compressed": "80,000,000,000 bytes",
        "never_written": "240 bytes, of which 0",
        "giant_chunk": "3,200,000,000 bytes",
        "bomb": "4,294,967,296 bytes",
        "chunk_that_swells": "unpacks into more",
        "null": "has no shape",
        "of type g": "only numbers",
    }.items()
} | {
    "groups": (groups_that_hold_each_other, f"{DECLARES}: its groups hold each other"),
    "names": (one_array_of_two_names, f"demo_0/b {DECLARES}: arrays share what they hold"),
}


@pytest.mark.parametrize(("declare", "words"), REFUSED.values(), ids=REFUSED)
def test_a_recording_that_declares_more_than_is_stored_is_refused_by_what_it_declares(tmp_path, declare, words):
    with h5py.File(tmp_path / "e000000.h5", "w") as file:
        declare(file)
    with pytest.raises(StorageError, match=words):
        hdf5.read_episode(tmp_path / "e000000.h5", 0)


FAST_KINDS = 3
SLOW_PARTS = [
    pytest.param(begin, begin + 60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
    for begin in range(FAST_KINDS, len(kinds()), 60)
]


@pytest.mark.parametrize(("begin", "end"), [(0, FAST_KINDS), *SLOW_PARTS])
def test_no_reader_breaks_on_any_bad_file(tmp_path, begin, end):
    """A process of limited memory runs all readers on kinds that a seed draws."""
    assert len(kinds()) > 500
    command = [sys.executable, "-m", "tests.storage.hdf5.hostile_recordings", tmp_path, "15", str(begin), str(end)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    said = [line for line in done.stdout.splitlines() if line.startswith(("COMPLAINT", "DONE"))]
    assert said == [f"DONE {min(end, len(kinds())) - begin} of {len(kinds())} kinds"]
