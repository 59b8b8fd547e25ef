"""Datasets that LeRobot itself recorded are read, and play in their own environment as they were recorded."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.results import list_episodes, read_episode
from isaaclab_arena_gr00t.convert import main as convert
from tests.end_to_end.launching import episodes_table, evaluated, job
from tests.gr00t.data.recordings import picture_series
from tests.outsiders.lerobot_style import CAMERA, write_dataset

VERSIONS = pytest.mark.parametrize("version", ["v2.1", "v3.0"])
REPLAY = "isaaclab_arena_gr00t.policy.replay_lerobot_policy.ReplayLerobotPolicy"


def converted(dataset: Path, directory: Path) -> Path:
    """Return the recording of a dataset."""
    assert convert(["from_lerobot", "--dataset", str(dataset), "--output_dir", str(directory)]) == 0
    (recording,) = directory.glob("*/*.hdf5")
    return recording


def made_up(*lengths: int) -> list[dict]:
    generator = np.random.default_rng(1)
    return [
        {
            "state": generator.normal(size=(length, 7)).astype(np.float32),
            "actions": generator.normal(size=(length, 8)).astype(np.float32),
            "rewards": generator.normal(size=length).astype(np.float32),
            "success": index != 1,
            "task": f"push {'left' if index else 'right'}",
            "pictures": picture_series(index, length, 64, 64),
        }
        for index, length in enumerate(lengths)
    ]


@VERSIONS
@pytest.mark.parametrize("dtype", ["video", "image"])
def test_all_that_lerobot_recorded_is_in_the_recording(tmp_path, version, dtype):
    episodes = made_up(5, 3, 6)
    dataset = write_dataset(tmp_path / "theirs", episodes, version=version, dtype=dtype)
    recording = converted(dataset, tmp_path / "back")
    assert list_episodes(recording) == [0, 1, 2]
    for index, episode in enumerate(episodes):
        found = read_episode(recording, index)
        np.testing.assert_array_equal(found.arrays["obs/state"], episode["state"])
        np.testing.assert_array_equal(found.arrays["actions"], episode["actions"])
        np.testing.assert_array_equal(found.arrays["rewards"], episode["rewards"])
        off = np.abs(found.arrays["camera_obs/front"].astype(int) - episode["pictures"]).mean()
        assert off == 0 if dtype == "image" else off < 8
        assert found.attributes["success"] is episode["success"]
        assert found.attributes["language_instruction"] == episode["task"]
        assert found.attributes["control_dt"] == 0.05


def outcomes(output: Path) -> list[tuple]:
    columns = ["episode_index", "outcome", "length", "return"]
    return [*episodes_table(output)[columns].itertuples(index=False, name=None)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return evaluated(tmp_path_factory.mktemp("recorded") / "out", job(num_envs=1, seed=6))


@VERSIONS
def test_their_dataset_plays_in_its_own_environment_as_it_was_recorded(recorded, tmp_path, version):
    episodes = []
    for index in range(3):
        episode = read_episode(recorded / "a" / "dataset_a.hdf5", index)
        arrays = {name: episode.arrays[name] for name in ("actions", "rewards")}
        about = {"success": bool(episode.attributes["success"]), "task": "reach"}
        episodes.append({**arrays, **about, "state": episode.arrays["obs/robot_joint_pos"]})
    dataset = write_dataset(tmp_path / "theirs", episodes, version=version, dtype="video")
    played = job("reach", REPLAY, options={"dataset_path": str(dataset)}, seed=6)
    assert outcomes(evaluated(tmp_path / "out", played)) == outcomes(recorded)


def encoded(height: int, width: int, form: str = "PNG") -> bytes:
    file = BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, form)
    return file.getvalue()


WRONG = {
    "of another size": (encoded(32, 64), r"picture 2 of '.*front' has \(64, 32\) pixels .*expected \(64, 64\)"),
    "torn": (encoded(64, 64)[:60], "is neither PNG nor JPEG, or is damaged"),
    "of another kind": (encoded(64, 64, "BMP"), "is neither PNG nor JPEG, or is damaged"),
    "far too large": (encoded(64, 64) + bytes(1 << 20), "at most .* are allowed"),
    "none": (None, "has no bytes"),
}  # fmt: skip


@pytest.fixture
def pictures(tmp_path) -> Path:
    """The table of a dataset that holds its pictures."""
    dataset = write_dataset(tmp_path / "theirs", made_up(3), version="v2.1", dtype="image")
    return dataset / "data/chunk-000/episode_000000.parquet"


def refusal(table: pa.Table, path: Path, out: Path, capsys) -> str:
    """Return the refusal of a dataset with this table."""
    parquet.write_table(table, path)
    assert convert(["from_lerobot", "--dataset", str(path.parents[2]), "--output_dir", str(out)]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("wrong", WRONG)
def test_a_picture_in_a_table_that_is_not_as_it_should_be_is_named(tmp_path, pictures, capsys, wrong):
    content, message = WRONG[wrong]
    table = parquet.read_table(pictures)
    found = table[CAMERA].to_pylist()
    found[1]["bytes"] = content
    position = table.column_names.index(CAMERA)
    changed = table.set_column(position, CAMERA, pa.array(found, table.schema.field(position).type))
    assert re.search(message, refusal(changed, pictures, tmp_path / "out", capsys))


def test_a_table_that_lacks_pictures_is_named(tmp_path, pictures, capsys):
    table = parquet.read_table(pictures)
    for number, (changed, message) in enumerate(
        (
            (table.slice(0, 2), "has 2 rows of episode 0, expected 3"),
            (pa.concat_tables([table, table]), "has 6 rows of episode 0, expected 3"),
            (table.drop_columns([CAMERA]), "has no column 'observation.images.front' of pictures"),
        )
    ):
        assert message in refusal(changed, pictures, tmp_path / f"out{number}", capsys)
