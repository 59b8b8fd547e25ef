"""Compare ways to write episodes: HDF5 as finished bytes, through h5py, and as safetensors that h5py consolidates.

Each way writes the same episodes, one file per episode, renamed into place, and consolidates them into one dataset in
robomimic's layout after it has checked their checksums. The ways run in turn, in one process. The figures are CPU
milliseconds per episode of the least disturbed run. The files lie in memory if the system offers that: a disk costs all
ways the same, and some disks far more than the writing.
"""

import json
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.numpy import save

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, run, values
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.recording.recorder import EpisodeRecorder
from isaaclab_arena.storage.atomic import flush_to_disk, json_line, write_bytes, written_in_place
from isaaclab_arena.storage.dataset import consolidate, copy_episodes
from isaaclab_arena.storage.episode_file import (
    AttributeValue,
    Compression,
    RecordedEpisode,
    checksum,
    compressed_episode_file,
)
from isaaclab_arena.storage.episodes import read_episode, verify_episodes, write_episode
from isaaclab_arena.storage.layout import ACTIONS, DATA_GROUP, EPISODES_DIRECTORY, demo_name, episode_file_name

ENVIRONMENT = "lift_object"
CAMERAS = ("front", "wrist")
PICTURE_SHAPE = (128, 128, 3)
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    repeats: int = 9  # Runs of each way.
    episodes: int = 48  # Episodes of each run without cameras; with cameras it is a sixth of them.
    directory: Path | None = None  # Directory of the files; by default in memory.


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to write episodes."""

    name: str  # Its name in the table.
    write: Callable[[Path, RecordedEpisode], object]  # Writes the file of one episode.
    consolidate: Callable[[Sequence[Path], Path], object]  # Makes one dataset of such files and removes them.


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU milliseconds per episode."""

    write_ms: float
    consolidate_ms: float


def write_through_h5py(path: Path, episode: RecordedEpisode) -> None:
    """Write the file of one episode through h5py, in memory first."""
    write_bytes(path, compressed_episode_file(episode, _attributes(episode), Compression.NONE))


def consolidate_hdf5_through_h5py(parts: Sequence[Path], dataset: Path) -> None:
    """Copy HDF5 files of one episode each into a dataset through h5py, and verify the copies."""
    with written_in_place(dataset) as temporary:
        copy_episodes(list(enumerate(parts)), temporary)
        verify_episodes(temporary, range(len(parts)))
        flush_to_disk(temporary)
    for part in parts:
        part.unlink()


def write_safetensors(path: Path, episode: RecordedEpisode) -> None:
    """Write the file of one episode as safetensors; attributes and their checksum are in its header."""
    facts = json_line(
        {"attributes": _attributes(episode), "env_args": episode.env_args, "index": episode.episode_index}
    )
    arrays = {name: np.ascontiguousarray(array) for name, array in episode.arrays.items()}
    write_bytes(path, save(arrays, {"episode": facts, "crc": str(zlib.crc32(facts.encode()))}))


def consolidate_safetensors(parts: Sequence[Path], dataset: Path) -> None:
    """Read safetensors files, compare them with their checksums, and write a dataset through h5py."""
    with written_in_place(dataset) as temporary:
        with h5py.File(temporary, "x") as file:
            data = file.create_group(DATA_GROUP)
            total, env_args = 0, {}
            for part in parts:
                episode = read_safetensors(part)
                group = h5py.h5g.create(data.id, demo_name(episode.episode_index).encode())
                _write_group(group, episode)
                total += len(episode.arrays[ACTIONS])
                env_args = episode.env_args
            data.attrs["total"] = total
            data.attrs["env_args"] = json_line(env_args)
        flush_to_disk(temporary)
    for part in parts:
        part.unlink()


def read_safetensors(path: Path) -> RecordedEpisode:
    """Return the episode of a file of `write_safetensors`, after a check of its content."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    begin = 8 + header_bytes
    header = json.loads(content[8:begin])
    metadata = header.pop("__metadata__")
    if int(metadata["crc"]) != zlib.crc32(metadata["episode"].encode()):
        raise StorageError(f"{path}: its header is not what was written")
    facts = json.loads(metadata["episode"])
    arrays = {}
    for name, about in header.items():
        first, end = (begin + offset for offset in about["data_offsets"])
        arrays[name] = np.frombuffer(memoryview(content)[first:end], _NUMPY_TYPES[about["dtype"]]).reshape(
            about["shape"]
        )
    if checksum(arrays) != facts["attributes"]["checksum"]:
        raise StorageError(f"{path}: its arrays are not what was written")
    return RecordedEpisode(
        episode_index=facts["index"], arrays=arrays, attributes=facts["attributes"], env_args=facts["env_args"]
    )


_NUMPY_TYPES = {"F32": np.float32, "F64": np.float64, "U8": np.uint8, "I64": np.int64}

WAYS = (
    Way(name="HDF5 as finished bytes", write=write_episode, consolidate=consolidate),
    Way(name="HDF5 through h5py", write=write_through_h5py, consolidate=consolidate_hdf5_through_h5py),
    Way(name="safetensors, HDF5 through h5py", write=write_safetensors, consolidate=consolidate_safetensors),
)


def _attributes(episode: RecordedEpisode) -> dict[str, AttributeValue]:
    sums = {"num_samples": len(episode.arrays[ACTIONS]), "checksum": checksum(episode.arrays)}
    return {**episode.attributes, **sums}


def _write_group(group: h5py.h5g.GroupID, episode: RecordedEpisode) -> None:
    for name, value in episode.attributes.items():
        array = np.array(value, dtype=h5py.string_dtype() if isinstance(value, str) else None)
        kind, space = h5py.h5t.py_create(array.dtype, logical=True), h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(group, name.encode(), kind, space).write(array)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    for name, array in sorted(episode.arrays.items()):
        kind, space = h5py.h5t.py_create(array.dtype, logical=True), h5py.h5s.create_simple(array.shape)
        h5py.h5d.create(group, name.encode(), kind, space, lcpl=links).write(h5py.h5s.ALL, h5py.h5s.ALL, array)


def recorded_episodes(number: int) -> list[RecordedEpisode]:
    """Return the recorder's episodes of a job without cameras."""
    environment = build(ENVIRONMENT, 8)
    with tempfile.TemporaryDirectory(prefix="episode_writing_") as name:
        env_args = {"env_name": ENVIRONMENT}
        recorder = EpisodeRecorder(Path(name), job="writing", rank=0, world_size=1, attempt=1, env_args=env_args)
        rollout(environment, make_policy("scripted"), episodes(number), [recorder])
        recorder.close()
        files = [Path(name, EPISODES_DIRECTORY, episode_file_name(index)) for index in range(number)]
        recorded = [read_episode(file, index) for index, file in enumerate(files)]
    environment.close()
    return recorded


def with_cameras(recorded: Sequence[RecordedEpisode]) -> list[RecordedEpisode]:
    """Return episodes with the pictures of two cameras beside their states."""
    generator, found = np.random.default_rng(0), []
    for episode in recorded:
        shape = (len(episode.arrays[ACTIONS]), *PICTURE_SHAPE)
        pictures = {f"camera_obs/{name}": generator.integers(0, 256, shape, np.uint8) for name in CAMERAS}
        found.append(replace(episode, arrays={**episode.arrays, **pictures}))
    return found


def measure(way: Way, recorded: Sequence[RecordedEpisode], directory: Path | None) -> Cost:
    """Write and consolidate episodes once, and return the cost."""
    with tempfile.TemporaryDirectory(prefix="episode_writing_", dir=directory) as name:
        parts = [Path(name, EPISODES_DIRECTORY, episode_file_name(episode.episode_index)) for episode in recorded]
        begin = time.process_time()
        for part, episode in zip(parts, recorded, strict=True):
            way.write(part, episode)
        written = time.process_time()
        way.consolidate(parts, Path(name, "dataset.hdf5"))
        consolidated = time.process_time()
        verify_episodes(Path(name, "dataset.hdf5"), range(len(recorded)))
    ms = 1000 / len(recorded)
    return Cost(write_ms=ms * (written - begin), consolidate_ms=ms * (consolidated - written))


def main(options: Options) -> None:
    """Write episodes without pictures and with them, and write the page."""
    torch.set_num_threads(1)
    page = Page("episode_writing", "What writing an episode costs", options)
    states = recorded_episodes(options.episodes)
    jobs = {"states": states, "states, two cameras": with_cameras(states[: max(1, options.episodes // 6)])}
    directory = options.directory or (MEMORY if MEMORY.is_dir() else None)
    table = Table("an episode", "way", "write", "consolidate", "both", words=2)
    for job, recorded in jobs.items():
        size = sum(array.nbytes for episode in recorded for array in episode.arrays.values()) / len(recorded)
        calls = {way.name: partial(measure, way, recorded, directory) for way in WAYS}
        for name, costs in in_turn(calls, options.repeats, warm_up=1).items():
            write_ms, consolidate_ms = (min(values(costs, figure)) for figure in ("write_ms", "consolidate_ms"))
            ms = (f"{each:.2f}" for each in (write_ms, consolidate_ms, write_ms + consolidate_ms))
            table.add(f"{job}, {size / 1000:,.0f} kB", name, *ms)
    text = f"""\
Episodes of `{ENVIRONMENT}`, pictures of {PICTURE_SHAPE[0]} by {PICTURE_SHAPE[1]}, files in memory.
CPU milliseconds per episode, the least of {options.repeats} runs. `write` is done at the end of every episode, and
`consolidate` at the end of a job."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
