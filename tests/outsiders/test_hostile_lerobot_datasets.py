"""LeRobot datasets, and recordings to be made into some, that strangers have prepared."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isaaclab_arena import ArenaError
from isaaclab_arena.environments import ArraySpec
from isaaclab_arena_gr00t import convert
from isaaclab_arena_gr00t.policy.replay_lerobot_policy import ReplayLerobotPolicy
from tests.fakes_environment import ScriptedEnvironment
from tests.gr00t.data.recordings import record
from tests.growth import in_time
from tests.outsiders.lerobot_datasets import STEERING, attacked, damaged_recording, write_video

VERSIONS = pytest.mark.parametrize("version", ["v2.1", "v3.0"])


def to_lerobot(recording: Path, out: Path, *options: str) -> list[str]:
    return ["to_lerobot", "--dataset", str(recording), "--output_dir", str(out), *options]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("originals")
    recording = record(directory / "lift", "lift", [3, 4])
    for version in ("v2.1", "v3.0"):
        assert convert.main(to_lerobot(recording, directory / version, "--version", version)) == 0
        # Where the recording lay differs from run to run, and a seed is to damage the same byte in all of them.
        path = directory / version / "meta/arena_episodes.jsonl"
        path.write_text(path.read_text().replace(str(directory), "originals"))
    return directory


@pytest.fixture
def dataset(originals, tmp_path, version) -> Path:
    return Path(shutil.copytree(originals / version, tmp_path / "theirs"))


def converted(root: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the refusal of a dataset by the command that makes recordings of it, empty if it makes them."""
    code = convert.main(["from_lerobot", "--dataset", str(root), "--output_dir", str(out)])
    said = capsys.readouterr().err.rstrip("\n")
    assert code in (0, 1, 2)
    assert (code == 0) == (said == "")
    return said


@pytest.fixture
def refusal(dataset, tmp_path, capsys) -> Callable[[], str]:
    return lambda: converted(dataset, tmp_path / "back", capsys)


def edit_info(dataset: Path, **changes: object) -> None:
    path = dataset / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal_of_replay(root: Path) -> str:
    """Return the refusal of a dataset by the policy that plays it, empty if it plays."""
    environment = ScriptedEnvironment(1)
    environment.action_spec = ArraySpec(shape=(8,))
    try:
        for index in (None, 1):
            policy = ReplayLerobotPolicy.from_dict({"dataset_path": str(root), "trajectory_index": index})
            policy.check_environment(environment)
    except ArenaError as error:
        return str(error)
    return ""


def readers(root: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[Callable[[], str]]:
    """Return everything that reads a dataset, and says what is wrong with it."""
    return [lambda: converted(root, out, capsys), lambda: refusal_of_replay(root)]


def seeds(quick: tuple[int, ...], end: int, at_once: int) -> list:
    """Return some seeds, and many for the slow tests."""
    many = [range(seed, seed + at_once) for seed in range(1000, end, at_once)]
    marks = [pytest.mark.slow, pytest.mark.timeout(1800)]
    return [range(seed, seed + 12) for seed in quick] + [pytest.param(each, marks=marks) for each in many]


@VERSIONS
@pytest.mark.parametrize("seeds", seeds((0, 100, 200), 5000, 200), ids=lambda each: str(each[0]))
def test_whatever_a_dataset_holds_it_is_read_or_refused(originals, tmp_path, version, seeds, capsys):
    for seed in seeds:
        root = attacked(originals / version, tmp_path / str(seed), seed)
        for number, reader in enumerate(readers(root, tmp_path / f"out{seed}", capsys)):
            what = f"seed {seed}, reader {number}"
            try:
                with in_time(60):
                    words = reader()
            except BaseException as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
            assert all(line.isprintable() for line in words.split("\n")), f"{what}: {words!r}"
            assert len(words) < 3000, what
        shutil.rmtree(root)


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
def test_a_path_that_is_none_names_file_key_and_value(dataset, refusal, key, template, says):
    edit_info(dataset, **{key: template})
    shown = repr(template[:78] if isinstance(template, str) else template).rstrip("'")
    assert (told := refusal()).startswith(f"{dataset}/meta/info.json: {key}: must be {says}")
    assert f"got {shown}" in told


@VERSIONS
@pytest.mark.parametrize("kind", ["pipe", "directory", "link out", "device"])
def test_what_stands_in_the_place_of_a_file_is_refused_and_never_waited_for(dataset, tmp_path, capsys, kind):
    for number, path in enumerate(sorted(each for each in dataset.rglob("*") if each.is_file())):
        aside = tmp_path / "aside"
        path.rename(aside)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(aside if kind == "link out" else "/dev/zero")
        for reader in readers(dataset, tmp_path / f"out{number}", capsys):
            with in_time(30):
                assert "theirs" in (reader() or "theirs is read")
        path.rmdir() if kind == "directory" else path.unlink()
        aside.rename(path)


@pytest.mark.parametrize(("version", "what"), [("v2.1", "data"), ("v3.0", "data"), ("v3.0", "meta")])
def test_a_table_that_unfolds_to_hundreds_of_megabytes_fills_no_memory(dataset, tmp_path, capsys, what):
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
        refusals = [reader() for reader in readers(dataset, tmp_path / "out", capsys)]
    finally:
        pa.set_memory_pool(before)
    assert all("parquet" in refusal for refusal in refusals)
    assert (pool.max_memory() or 0) < 60_000_000


@VERSIONS
def test_a_playlist_is_no_video(dataset, tmp_path, refusal):
    secret = tmp_path / "secret.mp4"
    shutil.copy(next(dataset.rglob("*.mp4")), secret)
    for path in dataset.rglob("*.mp4"):
        path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n")
    assert re.search(r"cannot read .*\.mp4", refusal())


@VERSIONS
def test_a_video_of_an_unknown_codec_is_named(dataset, refusal):
    for path in dataset.rglob("*.mp4"):
        content = path.read_bytes()
        assert content.count(b"avc1") >= 1
        path.write_bytes(content.replace(b"avc1", b"zzzz"))
    assert re.search(r"\.mp4 is of a codec that is not known here", refusal())


@VERSIONS
def test_pictures_that_are_said_to_be_in_a_table_that_lacks_them_are_named(dataset, refusal):
    features = json.loads((dataset / "meta/info.json").read_text())["features"]
    features["observation.images.wrist_cam_rgb"]["dtype"] = "image"
    edit_info(dataset, features=features)
    assert re.search(r"has no column '.*wrist_cam_rgb' of pictures with their bytes", refusal())


@VERSIONS
@pytest.mark.parametrize("size", [(30, 46), (512, 512)])
def test_a_video_of_another_size_is_named(dataset, refusal, size):
    for path in dataset.rglob("*.mp4"):
        path.unlink()
        write_video(path, 20, np.zeros((8, *size, 3), np.uint8))
    assert re.search(rf"\.mp4 has frames of \({size[0]}, {size[1]}\)", refusal())


@VERSIONS
def test_actions_that_are_no_numbers_are_not_played(dataset):
    for path in (dataset / "data").rglob("*.parquet"):
        table = parquet.read_table(path)
        actions = pa.array([[float("nan")] * 8] * table.num_rows, table.schema.field("action").type)
        parquet.write_table(table.set_column(table.column_names.index("action"), "action", actions), path)
    assert "not finite" in refusal_of_replay(dataset)


@VERSIONS
def test_the_command_says_what_is_wrong_and_steers_no_terminal(dataset, refusal):
    edit_info(dataset, fps=STEERING)
    assert "info.json: fps: must be a number" in (told := refusal())
    assert "\x1b" not in told


@pytest.mark.parametrize("seeds", seeds((0, 100), 3000, 100), ids=lambda each: str(each[0]))
def test_whatever_a_recording_says_of_itself_it_is_taken_or_refused(tmp_path, seeds):
    original = record(tmp_path / "lift", "lift", [3, 4])
    for seed in seeds:
        recording = damaged_recording(original, tmp_path, seed)
        try:
            with in_time(60):
                assert convert.main(to_lerobot(recording, recording.parent / "out")) in (0, 1, 2)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
