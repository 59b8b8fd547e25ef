"""Datasets that LeRobot itself recorded are read, and play in their own environment as they were recorded."""

import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.results import list_episodes, read_episode
from isaaclab_arena_gr00t.convert import main as convert
from tests.end_to_end.launching import write_jobs
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


def outcomes(job: Path) -> list[tuple]:
    lines = map(json.loads, (job / "episode_results_rank0.jsonl").read_text().splitlines())
    return sorted(
        (line["episode_index"], line["outcome"], line["episode_length"], line["episode_return"]) for line in lines
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    job = {"name": "reach", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "seed": 6}
    jobs = write_jobs(directory / "jobs.json", [{**job, "num_episodes": 3}])
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out")]) == 0
    return directory / "out" / "reach"


@VERSIONS
def test_their_dataset_plays_in_its_own_environment_as_it_was_recorded(recorded, tmp_path, version):
    episodes = []
    for index in range(3):
        episode = read_episode(recorded / "dataset_reach.hdf5", index)
        arrays = {name: episode.arrays[name] for name in ("actions", "rewards")}
        about = {"success": bool(episode.attributes["success"]), "task": "reach"}
        episodes.append({**arrays, **about, "state": episode.arrays["obs/robot_joint_pos"]})
    dataset = write_dataset(tmp_path / "theirs", episodes, version=version, dtype="video")
    job = {
        "name": "played",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": REPLAY,
        "policy_config_dict": {"dataset_path": str(dataset)},
        "num_episodes": 3,
        "seed": 6,
    }
    jobs = write_jobs(tmp_path / "jobs.json", [job])
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(tmp_path / "out")]) == 0
    assert outcomes(tmp_path / "out" / "played") == outcomes(recorded)


def encoded(height: int, width: int, form: str = "PNG") -> bytes:
    file = BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, form)
    return file.getvalue()


def a_picture_of_another_size() -> bytes:
    return encoded(32, 64)


def a_torn_picture() -> bytes:
    return encoded(64, 64)[:60]


def a_picture_of_another_kind() -> bytes:
    return encoded(64, 64, "BMP")


def a_file_that_is_far_too_large() -> bytes:
    return encoded(64, 64) + bytes(1 << 20)


def no_picture() -> None:
    return None


@pytest.fixture
def refused(tmp_path_factory, capsys) -> Callable[[Path], str]:
    """Return what a dataset is refused with."""

    def refused(dataset: Path) -> str:
        directory = tmp_path_factory.mktemp("refused")
        assert convert(["from_lerobot", "--dataset", str(dataset), "--output_dir", str(directory)]) == 1
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            a_picture_of_another_size,
            r"picture 2 of '.*front' has \(64, 32\) pixels across and down, expected \(64, 64\)",
        ),
        (a_torn_picture, "is neither PNG nor JPEG, or is damaged"),
        (a_picture_of_another_kind, "is neither PNG nor JPEG, or is damaged"),
        (a_file_that_is_far_too_large, "at most .* are allowed"),
        (no_picture, "has no bytes"),
    ],
)
def test_a_picture_in_a_table_that_is_not_as_it_should_be_is_named(tmp_path, refused, make, message):
    dataset = write_dataset(tmp_path / "theirs", made_up(3), version="v2.1", dtype="image")
    path = dataset / "data/chunk-000/episode_000000.parquet"
    table = parquet.read_table(path)
    pictures = table[CAMERA].to_pylist()
    pictures[1]["bytes"] = make()
    position = table.column_names.index(CAMERA)
    column = pa.array(pictures, table.schema.field(position).type)
    parquet.write_table(table.set_column(position, CAMERA, column), path)
    assert re.search(message, refused(dataset))


def test_a_table_that_lacks_pictures_is_named(tmp_path, refused):
    dataset = write_dataset(tmp_path / "theirs", made_up(3), version="v2.1", dtype="image")
    path = dataset / "data/chunk-000/episode_000000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.slice(0, 2), path)
    assert "has 2 rows of episode 0, expected 3" in refused(dataset)
    parquet.write_table(pa.concat_tables([table, table]), path)
    assert "has 6 rows of episode 0, expected 3" in refused(dataset)
    parquet.write_table(table.drop_columns([CAMERA]), path)
    assert "has no column 'observation.images.front' of pictures" in refused(dataset)
