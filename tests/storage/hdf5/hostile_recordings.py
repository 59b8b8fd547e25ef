"""HDF5 files that mean harm, by kind, and every reader of this package on each of them.

``python -m tests.storage.hdf5.hostile_recordings DIRECTORY SEED BEGIN END`` runs the readers in the order of a seed,
and prints one line for each thing that no reader may do. It is a program of its own so that it can be limited in memory
and so that a crash of HDF5's library is noticed and ends nothing else.
"""

import json
import logging
import os
import random
import resource
import shutil
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from isaaclab_arena import ArenaError, ConfigError, StorageError
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.evaluation.rerun import ReplaySettings, rerun
from isaaclab_arena.evaluation.verification import check_directory
from isaaclab_arena.policies import resolve_policy_class
from isaaclab_arena.results import merge_results
from isaaclab_arena.storage import dataset as dataset_assembly
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.storage.recovery import consolidate_leftovers, recover_run
from tests.fakes import CoinBuilder
from tests.policy.playing import play

MORE_MEMORY_BYTES = 2 << 30
JOB, VICTIM = "coins", 1
EPISODE = f"data/demo_{VICTIM}"

Change = Callable[[h5py.File], object]
Create = Callable[[h5py.Group, str], object]


def put(place: Any, name: object, content: object) -> None:
    place[name] = content


def array(shape: tuple[int, ...], *, first: float | None = None, **layout: Any) -> Create:
    """Declare an array, of which no more than the first row is written."""

    def create(group: h5py.Group, name: str) -> None:
        dataset = group.create_dataset(name, shape, np.float32, **layout)
        if first is not None:
            dataset[0] = first

    return create


def packed(
    shape: tuple[int, int], chunk: tuple[int, int], content: bytes, *, starts: Iterable[int] = (0,), **layout: Any
) -> Create:
    """Return a maker of a compressed array whose chunks are the given bytes."""

    def create(group: h5py.Group, name: str) -> None:
        dataset = group.create_dataset(name, shape, np.float32, chunks=chunk, compression="gzip", **layout)
        for start in starts:
            dataset.id.write_direct_chunk((start, 0), content)

    return create


def chunk_that_swells(group: h5py.Group, name: str) -> None:
    packing = zlib.compressobj(9)
    block = packing.compress(bytes(1 << 24)) + packing.flush(zlib.Z_FULL_FLUSH)
    # 256 times the same 16 MiB of zeros, then an empty last block and the checksum of 4 GiB of zeros.
    checksum = ((1 << 32) % 65_521 << 16) + 1
    content = block + 255 * block[2:] + b"\x03\x00" + checksum.to_bytes(4, "big")
    packed((1 << 18, 4), (1 << 18, 4), content)(group, name)


def of_type(kind: Any) -> Create:
    return lambda group, name: put(group.create_dataset(name, (30, 2), kind), ..., np.zeros((30, 2), kind))


def virtual(group: h5py.Group, name: str) -> None:
    layout = h5py.VirtualLayout((30, 2), np.float32)
    layout[:] = h5py.VirtualSource("secret.h5", "data/demo_0/actions", (30, 2))
    group.create_virtual_dataset(name, layout)


def always(content: object) -> Create:
    return lambda group, name: put(group, name, content)


ARRAYS: dict[str, Create] = {
    "null": always(h5py.Empty("f4")),
    "scalar": always(np.float32(1)),
    "huge": array((10**12, 2)),
    "huge_in_chunks": array((10**10, 2), chunks=(1000, 2)),
    "huge_and_compressed": array((10**10, 2), first=1, chunks=(1000, 2), compression="gzip"),
    "never_written": array((30, 2), chunks=(10, 2), compression="gzip"),
    "giant_chunk": packed((1, 2), (400_000_000, 2), zlib.compress(bytes(10_000)), maxshape=(None, 2)),
    "empty_and_endless": array((0, 10**15)),
    "bomb": packed(
        (1 << 18, 1 << 12), (1 << 14, 1 << 12), zlib.compress(bytes(1 << 20), 9), starts=range(0, 1 << 18, 1 << 14)
    ),
    "chunk_that_swells": chunk_that_swells,
    "garbage_chunk": packed((30, 2), (30, 2), b"no deflate at all", fletcher32=True),
    "texts": always(np.array([["push"] * 2] * 30, dtype=object)),
    "references": lambda group, name: put(group.create_dataset(name, (30, 2), h5py.ref_dtype), ..., group.ref),
    "lists": lambda group, name: put(group.create_dataset(name, (30,), h5py.vlen_dtype("f4")), 0, np.ones(3, "f4")),
    "subgroup": lambda group, name: put(group.create_group(name), "actions", np.zeros((30, 2), np.float32)),
    "named_type": always(np.dtype("f4")),
    "virtual": virtual,
    "external_bytes": array((30, 2), external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]),
    "soft_link": always(h5py.SoftLink("/data/demo_0/actions")),
    "dangling_link": always(h5py.SoftLink("/nowhere")),
    "circular_link": lambda group, name: put(group, name, h5py.SoftLink(f"{group.name}/{name}")),
    "external_link": always(h5py.ExternalLink("/dev/zero", "/data")),
    "root": lambda group, name: put(group, name, group.file["/"]),
} | {
    f"of type {kind}": of_type(kind)
    for kind in ("f2", ">f4", "f8", "g", "c8", "u8", ">i8", "?", "S7", "V9", "f4,i4")
}  # fmt: skip
PLACES = (
    "actions",
    "obs/clock",
    "states/rigid_object/coin/root_pose",
    "dones",
    "initial_state/simulator/more",
    "new/x",
)

VALUES: dict[str, Any] = {
    "null": h5py.Empty("f4"),
    "a list": np.arange(5),
    "no numbers": np.zeros(0),
    "a long double": np.longdouble(1),
    "not a number": np.nan,
    "a large number": np.uint64(2**64 - 1),
    "a negative number": -1,
    "true": True,
    "a text": "no JSON {",
    "bytes": np.bytes_(b"\xff\xfe"),
    "a JSON list": "[1, 2]",
    "a JSON number": "1e400",
    "deep JSON": "[" * 50_000,
    "other JSON": '{"coin.heads": {"a": [null]}, "coin.number": "x"}',
    "a record": np.zeros((), "f4,i4"),
    "a complex number": 1j,
    "steering characters": "\x1b[2J\u202e",
    "a digit too many": "1" * 5000,
}
ATTRIBUTES = (
    "checksum", "num_samples", "conditions", "metrics", "provenance", "commit", "job", "seed", "episode_index",
    "outcome", "success", "episode_return", "termination", "control_dt",
)  # fmt: skip
OF_DATA = ("env_args", "total")


def replaced(path: str, content: object = None) -> Change:
    """Return a function that replaces a group by something else, or removes it."""

    def change(file: h5py.File) -> None:
        del file[path]
        if content is not None:
            file[path] = content

    return change


def in_its_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that replaces a file by something that is none."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def once_more(*names: str) -> Change:
    """Return a function that gives the group of the episode further names."""
    return lambda file: [put(file, name, file[EPISODE]) for name in names]


ODD_NAMES = ("demo_007", "demo_-1", "demo_1\x1b[2J", "demo_\u0664", "demo_" + "9" * 5000, "demo_", "demo_1.0")
GROUPS: dict[str, Change] = {
    "group_is_array": replaced(EPISODE, np.zeros(3)),
    "data_is_array": replaced("data", np.zeros(3)),
    "data_is_missing": replaced("data"),
    "group_is_empty": replaced(EPISODE, np.zeros(0)),
    "holds_itself": once_more(f"{EPISODE}/again"),
    "holds_itself_often": once_more(*(f"{EPISODE}/again{number}" for number in range(50))),
    "one_group_many_names": once_more(*(f"data/demo_{number + 10}" for number in range(3000))),
    "odd_names": lambda file: [file.create_group(f"data/{name}") for name in ODD_NAMES],
    "odd_names_of_the_same": once_more("data/demo_01"),
    "linked_episode": replaced(EPISODE, h5py.ExternalLink("/dev/zero", "/data/demo_0")),
}


FILES: dict[str, Callable[[Path], object]] = {
    **{
        f"cut at {part}": lambda path, part=part: os.truncate(path, int(path.stat().st_size * part))
        for part in (0.05, 0.3, 0.6, 0.9, 0.999)
    },
    "empty": lambda path: path.write_bytes(b""),
    "only a signature": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "a pipe": in_its_place(os.mkfifo),
    "a link to nothing": in_its_place(lambda path: path.symlink_to("/nowhere")),
    "a link to a device": in_its_place(lambda path: path.symlink_to("/dev/zero")),
}
SYSTEMS_OWN = frozenset({"a pipe", "a link to nothing", "a link to a device"})
"""Kinds that `--resume` names, leaving what is there as it is: it cannot tell what they were."""


def kinds() -> dict[str, Callable[[Path], object]]:
    """Map every kind of bad file to what makes a good file one."""
    changes = dict(GROUPS)
    for (what, create), place in product(ARRAYS.items(), PLACES):
        changes[f"{place} is {what}"] = lambda file, place=place, create=create: _replace(file, place, create)
    for name in (*ATTRIBUTES, *OF_DATA):
        where = "data" if name in OF_DATA else EPISODE
        changes[f"attribute {name} is missing"] = lambda file, where=where, name=name: file[where].attrs.pop(name, None)
        for what, value in VALUES.items():
            changes[f"attribute {name} is {what}"] = lambda file, where=where, name=name, value=value: put(
                file[where].attrs, name, value
            )
    return FILES | {what: partial(_changed, change) for what, change in changes.items()}


def _changed(change: Change, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def _replace(file: Any, place: str, create: Create) -> None:
    directory, _, name = f"{EPISODE}/{place}".rpartition("/")
    group = file.require_group(directory)
    if name in group:
        del group[name]
    create(group, name)


def make_run(directory: Path) -> Path:
    """Run a job of four short episodes and return its output directory."""
    jobs = directory / "jobs.json"
    arguments = {"environment": "coins", "num_envs": 2, "success_step": 3, "failure_step": 5}
    job = {"name": JOB, "num_episodes": 4, "policy_type": "zero_action", "arena_env_args": arguments}
    jobs.write_text(json.dumps({"jobs": [job]}))
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "run")]) == 0
    return directory / "run"


def complaints(run: Path, directory: Path, spoil: Callable[[Path], object], *, is_systems: bool) -> Iterator[str]:
    """Yield what readers do with a bad file that none of them may do; ``is_systems``: it is no bad HDF5."""
    for as_part in (False, True):
        output = shutil.copytree(run, directory / f"part_{as_part}")
        bad = _bad_file(output, as_part=as_part)
        spoil(bad)
        for name, (read, allowed) in _readers(bad, output).items():
            with _told(name, allowed) as told:
                read()
            yield from told
        with _told("resume", (StorageError,) if is_systems else ()) as told:
            first = recover_run(output, read_run_plan(output), retry_errors=False, attempt=2)
            kept = first.jobs[0].finished
            if not kept >= {0, 2, 3} - ({0, 2, 3} if not as_part else set()):
                told.append(f"resume lost sound episodes: only {sorted(kept)} are left")
            again = recover_run(output, read_run_plan(output), retry_errors=False, attempt=2)
            if again.jobs[0].finished != first.jobs[0].finished:
                told.append(f"resume finds {again.jobs[0].finished} after {first.jobs[0].finished}")
        yield from told


def _bad_file(output: Path, *, as_part: bool) -> Path:
    """Return the file to spoil: the job's dataset, or that of one episode that was taken out of it."""
    dataset = output / JOB / f"dataset_{JOB}.hdf5"
    if not as_part:
        return dataset
    part = output / JOB / "episodes" / episode_file_name(VICTIM)
    part.parent.mkdir()
    dataset_assembly.copy_episodes([(VICTIM, dataset)], part)
    rest = dataset.with_suffix(".rest")
    dataset_assembly.copy_episodes([(index, dataset) for index in (0, 2, 3)], rest)
    rest.replace(dataset)
    return part


def _readers(bad: Path, output: Path) -> dict[str, tuple[Callable[[], object], tuple[type[Exception], ...]]]:
    own = (StorageError,)
    settings = ReplaySettings(num_envs=2, device=torch.device("cpu"), num_threads=1)
    files = {VICTIM: bad}
    return {
        "list": (lambda: hdf5.list_episodes(bad), own),
        "attributes": (lambda: hdf5.read_attributes(bad, VICTIM), own),
        "actions": (lambda: hdf5.read_actions(bad, VICTIM), own),
        "episode": (lambda: hdf5.read_episode(bad, VICTIM).provenance, own),
        "verify one": (lambda: hdf5.verify_episodes(bad, [VICTIM]), own),
        "totals": (lambda: hdf5.read_totals(bad), own),
        "steps": (lambda: _read_steps(bad), own),
        "replay": (lambda: rerun(files, settings, lambda _: None), (ConfigError, ArenaError)),
        "replay policy": (lambda: _play(bad), (ConfigError, PolicyError)),
        "merge": (lambda: merge_results(output), ()),
        "verify": (lambda: list(check_directory(output, merge_results(output))), ()),
        "leftovers": (lambda: consolidate_leftovers(output / JOB, JOB), own),
    }


def _read_steps(bad: Path) -> None:
    steps = RecordedSteps()
    for name in steps.names(bad, VICTIM):
        steps.array(bad, VICTIM, name).sum()


def _play(bad: Path) -> None:
    play(resolve_policy_class("replay").from_dict({"replay_file_path": str(bad), "episode_name": "demo_1"}), 1)


@contextmanager
def _told(name: str, allowed: tuple[type[Exception], ...]) -> Iterator[list[str]]:
    """Note what a reader may not do: raise what is not allowed, or run out of memory."""
    told: list[str] = []
    try:
        yield told
    except allowed as error:
        if "no memory" in str(error):
            told.append(f"{name}: {error}")
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        told.append(f"{name} raised {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")


def main(directory: Path, seed: int, begin: int, end: int) -> None:
    """Run the readers on a part of all kinds, in the order that a seed gives them, and print what they may not do."""
    ENVIRONMENTS.register("coins", CoinBuilder())
    run = make_run(directory)
    logging.disable(logging.CRITICAL)
    resident = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (resident + MORE_MEMORY_BYTES, resource.RLIM_INFINITY))
    everything = kinds()
    drawn = sorted(everything)
    random.Random(seed).shuffle(drawn)
    for kind in drawn[begin:end]:
        work = directory / "work"
        for complaint in complaints(run, work, everything[kind], is_systems=kind in SYSTEMS_OWN):
            sys.stdout.write(f"COMPLAINT {kind}: {complaint}\n")
        shutil.rmtree(work)
    sys.stdout.write(f"DONE {len(drawn[begin:end])} of {len(drawn)} kinds\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
