"""LeRobot datasets, and recordings to be made into some, that strangers have prepared."""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isaaclab_arena import ArenaError, ConfigError, StorageError
from isaaclab_arena.environments import ArraySpec
from isaaclab_arena.errors import PolicyError
from isaaclab_arena_gr00t import convert
from isaaclab_arena_gr00t.data.files.layout import DatasetVersion
from isaaclab_arena_gr00t.data.from_lerobot import write_recordings
from isaaclab_arena_gr00t.data.stored_dataset import open_dataset
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena_gr00t.policy.replay_lerobot_policy import ReplayLerobotPolicy
from isaaclab_arena_gr00t.training.demonstrations import find_demonstrations
from tests.fakes_environment import ScriptedEnvironment
from tests.gr00t.data.recordings import record
from tests.outsiders import lerobot_datasets as attacks
from tests.outsiders.lerobot_datasets import STEERING, attacked

VERSIONS = pytest.mark.parametrize("version", [*DatasetVersion])


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("originals")
    recording = record(directory / "lift", "lift", [3, 4])
    for version in DatasetVersion:
        write_lerobot_dataset(recording, directory / version, LeRobotOptions(version=version))
        # Where the recording lay differs from run to run, and a seed is to damage the same byte in all of them.
        path = directory / version / "meta/arena_episodes.jsonl"
        path.write_text(path.read_text().replace(str(directory), "originals"))
    return directory


@pytest.fixture
def dataset(originals, tmp_path, version) -> Path:
    return Path(shutil.copytree(originals / version, tmp_path / "theirs"))


@contextmanager
def in_time(cpu_s: float) -> Iterator[None]:
    """Interrupt what computes for too long, by the processor's time [s]; what waits for ever, pytest interrupts."""

    def late(*_: object) -> None:
        raise AssertionError(f"it did not end within {cpu_s} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def readers(root: Path, out: Path) -> list[Callable[[], object]]:
    """Return everything that reads a dataset."""

    def played() -> None:
        environment = ScriptedEnvironment(1)
        environment.action_spec = ArraySpec(shape=(8,))
        for index in (None, 1):
            policy = ReplayLerobotPolicy.from_dict({"dataset_path": str(root), "trajectory_index": index})
            policy.check_environment(environment)

    return [lambda: write_recordings(root, out / "back"), played]


def refusal_of(reader: Callable[[], object], or_else: str = "") -> str:
    """Return what a reader says is wrong."""
    try:
        reader()
    except ArenaError as error:
        return str(error)
    return or_else


def check(original: Path, directory: Path, seed: int) -> None:
    root = attacked(original, directory / str(seed), seed)
    for number, reader in enumerate(readers(root, directory / f"out{seed}")):
        words = ""
        try:
            with in_time(60):
                reader()
        except ArenaError as error:
            words = str(error)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, reader {number}: {type(error).__name__}: {error}") from error
        assert all(line.isprintable() for line in words.split("\n")), f"seed {seed}, reader {number}: {words!r}"
        assert len(words) < 3000, f"seed {seed}, reader {number}"
    shutil.rmtree(root)


@VERSIONS
@pytest.mark.parametrize("seed", [0, 100, 200])
def test_whatever_a_dataset_holds_it_is_read_or_refused(originals, tmp_path, version, seed):
    for each in range(seed, seed + 12):
        check(originals / version, tmp_path, each)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@VERSIONS
@pytest.mark.parametrize("seed", range(1000, 5000, 200))
def test_whatever_a_dataset_holds_it_is_read_or_refused_at_length(originals, tmp_path, version, seed):
    for each in range(seed, seed + 200):
        check(originals / version, tmp_path, each)


@VERSIONS
@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{episode_chunk.__class__}{chunk_index.__class__}", "a path made of"),
        ("{episode_index:0999999999d}", "a path made of"),
        ("{video_key:>999999999}", "a path made of"),
        ("{0}", "a path made of"),
        ("{", "a path made of"),
        (7, "a text"),
        (None, "a text"),
        ("../../../etc/{chunk_index}", "a path"),
        ("/etc/passwd", "a path inside the dataset"),
        ("a" * 501, "a path made of"),
    ],
)
def test_a_path_that_is_none_names_file_key_and_value(dataset, key, template, says):
    info = json.loads((dataset / "meta/info.json").read_text())
    (dataset / "meta/info.json").write_text(json.dumps(info | {key: template}))
    with pytest.raises(StorageError) as caught:
        open_dataset(dataset)
    shown = repr(template[:78] if isinstance(template, str) else template).rstrip("'")
    assert str(caught.value).startswith(f"{dataset}/meta/info.json: {key}: must be {says}")
    assert f"got {shown}" in str(caught.value)


@pytest.mark.parametrize("version", [DatasetVersion.V21])
@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("length", 10_000_000, True),
        ("length", 10_000_001, False),
        ("length", 1, True),
        ("length", 0, False),
        ("length", 2.5, False),
        ("length", True, False),
        ("episode_index", 2**53, True),
        ("episode_index", 2**53 + 1, False),
        ("episode_index", 0, True),
        ("episode_index", -1, False),
    ],
)
def test_numbers_of_an_episode_have_limits(dataset, key, value, fits):
    path = dataset / "meta/episodes.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps(line | {key: value}))
    if fits:
        (episode,) = open_dataset(dataset).episodes.values()
        assert value in (episode.num_steps, episode.episode_index)
    else:
        with pytest.raises(StorageError, match=rf"episodes.jsonl, line 1: {key}: must be a whole number .*got {value}"):
            open_dataset(dataset)


@pytest.mark.parametrize("version", [DatasetVersion.V21])
@pytest.mark.parametrize(("shape", "fits"), [([65_535], True), ([65_536], True), ([65_537], False), ([9, 9999], False)])
def test_a_column_has_at_most_65536_numbers(dataset, shape, fits):
    info = json.loads((dataset / "meta/info.json").read_text())
    info["features"]["observation.odd"] = {"dtype": "float32", "shape": shape}
    (dataset / "meta/info.json").write_text(json.dumps(info))
    if fits:
        assert open_dataset(dataset).size("observation.odd") == shape[0]
    else:
        with pytest.raises(StorageError, match=r"info.json: features: observation.odd: shape.*65536"):
            open_dataset(dataset)


@pytest.mark.parametrize("version", [DatasetVersion.V21])
@pytest.mark.parametrize(("size", "fits"), [(1_048_575, True), (1_048_576, True), (1_048_577, False)])
def test_a_line_has_at_most_a_mebibyte(dataset, size, fits):
    line = json.dumps({"episode_index": 0, "tasks": ["a"], "length": 3})
    (dataset / "meta/episodes.jsonl").write_text(line.ljust(size - 1) + "\n")
    if fits:
        assert len(open_dataset(dataset).episodes) == 1
    else:
        with pytest.raises(StorageError, match="line 1 has more than 1048576 bytes"):
            open_dataset(dataset)


@VERSIONS
@pytest.mark.parametrize("kind", ["pipe", "directory", "link out", "device"])
def test_what_stands_in_the_place_of_a_file_is_refused_and_never_waited_for(dataset, tmp_path, kind):
    for number, path in enumerate(sorted(each for each in dataset.rglob("*") if each.is_file())):
        aside = tmp_path / "aside"
        path.rename(aside)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(aside if kind == "link out" else "/dev/zero")
        for reader in readers(dataset, tmp_path / f"out{number}"):
            with in_time(30):
                assert "theirs" in refusal_of(reader, or_else="theirs is read")
        path.rmdir() if kind == "directory" else path.unlink()
        aside.rename(path)


@pytest.mark.parametrize(
    ("version", "what"), [(DatasetVersion.V21, "data"), (DatasetVersion.V30, "data"), (DatasetVersion.V30, "meta")]
)
def test_a_table_that_unfolds_to_hundreds_of_megabytes_fills_no_memory(dataset, tmp_path, what):
    for path in sorted((dataset / what).rglob("*.parquet")):
        first = parquet.read_table(path).slice(0, 1)
        columns = {}
        for name in [name for name in first.column_names if not name.startswith("stats/")]:
            value = first[name][0].as_py()
            is_number = isinstance(value, int | float)
            columns[name] = pa.array(np.full(2_000_000, value)) if is_number else pa.nulls(2_000_000, first[name].type)
        parquet.write_table(pa.table(columns), path, compression="zstd", row_group_size=2_000_000)
        assert path.stat().st_size < 2_000_000
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        refusals = [refusal_of(reader) for reader in readers(dataset, tmp_path / "out")]
    finally:
        pa.set_memory_pool(before)
    assert all("parquet" in refusal for refusal in refusals)
    assert (pool.max_memory() or 0) < 60_000_000


@VERSIONS
def test_a_playlist_is_no_video(dataset, tmp_path):
    secret = tmp_path / "secret.mp4"
    shutil.copy(next(dataset.rglob("*.mp4")), secret)
    for path in dataset.rglob("*.mp4"):
        path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n")
    with pytest.raises(StorageError, match=r"cannot read .*\.mp4"):
        write_recordings(dataset, tmp_path / "back")


@VERSIONS
def test_a_video_of_an_unknown_codec_is_named(dataset, tmp_path):
    for path in dataset.rglob("*.mp4"):
        content = path.read_bytes()
        assert content.count(b"avc1") >= 1
        path.write_bytes(content.replace(b"avc1", b"zzzz"))
    with pytest.raises(StorageError, match=r"\.mp4 is of a codec that is not known here"):
        write_recordings(dataset, tmp_path / "back")


@VERSIONS
def test_pictures_that_are_said_to_be_in_a_table_that_lacks_them_are_named(dataset, tmp_path):
    info = json.loads((dataset / "meta/info.json").read_text())
    info["features"]["observation.images.wrist_cam_rgb"]["dtype"] = "image"
    (dataset / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(StorageError, match=r"has no column '.*wrist_cam_rgb' of pictures with their bytes"):
        write_recordings(dataset, tmp_path / "back")


@VERSIONS
@pytest.mark.parametrize("size", [(30, 46), (34, 50), (512, 512)])
def test_a_video_of_another_size_is_named(dataset, tmp_path, size):
    for path in dataset.rglob("*.mp4"):
        path.unlink()
        video = attacks.VideoWriter(path, fps=20, lossless=False)
        video.add(np.zeros((8, *size, 3), np.uint8))
        video.close()
    with pytest.raises(StorageError, match=rf"\.mp4 has frames of \({size[0]}, {size[1]}\)"):
        write_recordings(dataset, tmp_path / "back")


@VERSIONS
def test_actions_that_are_no_numbers_are_not_played(dataset):
    for path in (dataset / "data").rglob("*.parquet"):
        table = parquet.read_table(path)
        actions = pa.array([[float("nan")] * 8] * table.num_rows, table.schema.field("action").type)
        parquet.write_table(table.set_column(table.column_names.index("action"), "action", actions), path)
    policy = ReplayLerobotPolicy.from_dict({"dataset_path": str(dataset)})
    environment = ScriptedEnvironment(1)
    environment.action_spec = ArraySpec(shape=(8,))
    with pytest.raises((ConfigError, PolicyError), match="not finite"):
        policy.check_environment(environment)


@VERSIONS
def test_the_command_says_what_is_wrong_and_shows_no_traceback(dataset, tmp_path, capsys):
    info = json.loads((dataset / "meta/info.json").read_text())
    (dataset / "meta/info.json").write_text(json.dumps(info | {"fps": STEERING}))
    command = ["from_lerobot", "--dataset", str(dataset), "--output_dir", str(tmp_path / "back")]
    assert convert.main(command) in (1, 2)
    words = capsys.readouterr().err
    assert "info.json: fps: must be a number" in words
    assert "\x1b" not in words
    assert "Traceback" not in words


_ATTRIBUTES: list[Any] = [
    0, -1, 2**62, 1e308, float("nan"), float("inf"), 1e-320, "", STEERING, "[1]", "{", "null", "[" * 5000, True,
    b"\xff", np.zeros(3), np.array(["a", "b"], object), np.float16(0.5), h5py.Empty("f4"),
]  # fmt: skip


def check_recording(original: Path, directory: Path, seed: int) -> None:
    """Change an attribute or an array of a recording, and give it to everything that learns or makes datasets."""
    random_ = random.Random(seed)
    recording = directory / f"{seed}" / "dataset_lift.hdf5"
    recording.parent.mkdir()
    shutil.copy(original, recording)
    with h5py.File(recording, "r+") as file:
        demo = file[f"data/demo_{random_.randrange(2)}"]
        assert isinstance(demo, h5py.Group)
        if random_.random() < 0.7:
            name = random_.choice([*demo.attrs])
            del demo.attrs[name]
            if random_.random() < 0.9:
                demo.attrs[name] = random_.choice(_ATTRIBUTES)
        else:
            names = ["actions", "rewards", "obs/robot_joint_pos", "camera_obs/wrist_cam_rgb"]
            name = random_.choice(names)
            del demo[name]
            arrays = [
                np.zeros(0),
                np.zeros((2, 0)),
                np.full((3, 8), np.nan, np.float32),
                np.zeros((3, 8), "S3"),
                np.ones(()),
            ]
            demo[name] = random_.choice(arrays)

    def made() -> None:
        write_lerobot_dataset(recording, recording.parent / "out", LeRobotOptions())

    for reader in (made, lambda: find_demonstrations([recording])):
        try:
            with in_time(60):
                reader()
        except ArenaError:
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("seed", [0, 100])
def test_whatever_a_recording_says_of_itself_it_is_taken_or_refused(tmp_path, seed):
    original = record(tmp_path / "lift", "lift", [3, 4])
    for each in range(seed, seed + 12):
        check_recording(original, tmp_path, each)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1000, 3000, 100))
def test_whatever_a_recording_says_of_itself_it_is_taken_or_refused_at_length(tmp_path, seed):
    original = record(tmp_path / "lift", "lift", [3, 4])
    for each in range(seed, seed + 100):
        check_recording(original, tmp_path, each)
