"""Datasets that others wrote, or that are damaged."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena.lerobot.layout import DatasetVersion
from isaaclab_arena.lerobot.reading import open_dataset, write_recordings
from isaaclab_arena.lerobot.writing import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena.storage.episodes import read_episode
from isaaclab_arena_gr00t.convert import model_columns
from tests.gr00t.data.recordings import PANDA_YAML, record, recorded_episode

Change = Callable[[Path], object]
VERSIONS = pytest.mark.parametrize("version", [*DatasetVersion])


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    directory = tmp_path_factory.mktemp("datasets")
    recording = record(directory / "lift", "lift", [4, 6])
    for version in DatasetVersion:
        options = LeRobotOptions(version=version, lossless=True)
        write_lerobot_dataset(recording, directory / version, options, model_columns(PANDA_YAML))
    return directory


@pytest.fixture
def dataset(originals, tmp_path, version):
    return shutil.copytree(originals / version, tmp_path / "somebodys")


def changed(dataset, name, change):
    document = json.loads((dataset / name).read_text())
    change(document)
    (dataset / name).write_text(json.dumps(document))


def without_our_files(dataset):
    for path in (dataset / "meta").glob("arena*"):
        path.unlink()


@VERSIONS
def test_a_dataset_of_others_becomes_a_recording_by_its_modality_file(dataset, tmp_path):
    without_our_files(dataset)
    (recording,) = write_recordings(dataset, tmp_path / "back")
    assert recording == tmp_path / "back/somebodys/dataset_somebodys.hdf5"
    found, source = read_episode(recording, 1), recorded_episode(1, 6, "lift")
    for name, expected in {
        "obs/arm": "obs/robot_joint_pos",
        "obs/gripper": "obs/gripper_pos",
        "actions": "actions",
        "camera_obs/wrist": "camera_obs/wrist_cam_rgb",
    }.items():
        assert np.array_equal(found.arrays[name], source.arrays[expected])
    assert {"language_instruction": "lift the cube", "control_dt": 0.05}.items() <= found.attributes.items()
    assert found.arrays["dones"].tolist() == [0, 0, 0, 0, 0, 1]


@VERSIONS
def test_a_dataset_without_a_modality_file_is_taken_as_it_is_also_with_actions_of_openpis_name(dataset, tmp_path):
    without_our_files(dataset)
    (dataset / "meta/modality.json").unlink()
    changed(dataset, "meta/info.json", lambda info: info["features"].update(actions=info["features"].pop("action")))
    for path in (dataset / "data").glob("*/*.parquet"):
        table = parquet.read_table(path)
        names = ["actions" if name == "action" else name for name in table.column_names]
        parquet.write_table(table.rename_columns(names), path)
    (recording,) = write_recordings(dataset, tmp_path / "back")
    found = read_episode(recording, 1).arrays
    assert sorted(found) == ["actions", "camera_obs/head", "camera_obs/wrist", "dones", "obs/state", "rewards"]
    assert found["obs/state"].shape == (6, 9)
    assert np.array_equal(found["actions"], recorded_episode(1, 6, "lift").arrays["actions"])


@pytest.mark.parametrize("version", [DatasetVersion.V21])
def test_a_job_name_that_is_no_directory_name_does_not_become_one(dataset, tmp_path):
    path = dataset / "meta/arena_episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["attributes"]["job"] = "../outside"
    lines[1]["attributes"]["job"] = "job"
    path.write_text("\n".join(map(json.dumps, lines)))
    recordings = write_recordings(dataset, tmp_path / "back")
    assert [path.relative_to(tmp_path / "back").as_posix() for path in recordings] == [
        "job/dataset_job.hdf5",
        "job-2/dataset_job-2.hdf5",
    ]


def in_hub_cache(dataset, repository):
    """Lay a dataset out as the hub's cache does: files by their content, and a revision of links to them."""
    revision, blobs = repository / "snapshots" / "0123abc", repository / "blobs"
    blobs.mkdir(parents=True)
    for file in (path for path in dataset.rglob("*") if path.is_file()):
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        link = revision / file.relative_to(dataset)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return revision


@VERSIONS
def test_a_dataset_in_the_hubs_cache_is_read_as_any_other(dataset, tmp_path):
    revision = in_hub_cache(dataset, tmp_path / "datasets--somebody--lift")
    (recording,) = write_recordings(revision, tmp_path / "back")
    (plain,) = write_recordings(dataset, tmp_path / "plain")
    for name, array in read_episode(plain, 1).arrays.items():
        assert np.array_equal(array, read_episode(recording, 1).arrays[name])


@pytest.mark.parametrize("version", [DatasetVersion.V30])
def test_links_of_a_cache_lead_to_its_own_files_alone(dataset, tmp_path):
    repository = tmp_path / "datasets--somebody--lift"
    revision = in_hub_cache(dataset, repository)
    info = revision / "meta/info.json"
    secret = tmp_path / "secret.json"
    shutil.move(info.resolve(), secret)
    info.unlink()
    info.symlink_to(secret)
    with pytest.raises(StorageError, match="outside"):
        open_dataset(revision)
    # Nor does a cache of whose files the directory itself is a link.
    shutil.move(repository / "blobs", tmp_path / "elsewhere")
    (repository / "blobs").symlink_to(tmp_path / "elsewhere")
    shutil.move(secret, tmp_path / "elsewhere/info")
    info.unlink()
    info.symlink_to("../../../blobs/info")
    with pytest.raises(StorageError, match="outside"):
        open_dataset(revision)


# What makes no sense is named, and what is within the limits is read.


def of_info(**changes: Any) -> Change:
    return lambda dataset: changed(dataset, "meta/info.json", lambda info: info.update(changes))


def of_features(**changes: Any) -> Change:
    return lambda dataset: changed(dataset, "meta/info.json", lambda info: info["features"].update(changes))


def of_episode(**changes: Any) -> Change:
    def change(dataset: Path) -> None:
        path = dataset / "meta/episodes.jsonl"
        path.write_text(json.dumps(json.loads(path.read_text().splitlines()[0]) | changes))

    return change


def line_of(num_bytes: int) -> Change:
    line = json.dumps({"episode_index": 0, "tasks": ["a"], "length": 4})
    return lambda dataset: (dataset / "meta/episodes.jsonl").write_text(line.ljust(num_bytes - 1) + "\n")


def without_actions(dataset: Path) -> None:
    without_our_files(dataset)
    changed(dataset, "meta/info.json", lambda info: info["features"].update(acts=info["features"].pop("action")))


def torn_table(dataset: Path) -> None:
    table = max(dataset.glob("data/*/*.parquet"))
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])


def missing_video(dataset: Path) -> None:
    max(dataset.glob("videos/**/*.mp4")).unlink()


def other_groups(dataset: Path) -> None:
    changed(dataset, "meta/arena.json", lambda arena: arena["features"]["vectors"]["action"]["groups"].pop("gripper"))


ODD = {"dtype": "float32", "shape": [65_537]}


@pytest.mark.parametrize("version", [DatasetVersion.V21])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_actions, r"'action'; .*acts"),
        (torn_table, r"cannot read .*\.parquet"),
        (missing_video, r"cannot read .*\.mp4: there is no such file"),
        (other_groups, r"'action' has 8 numbers in meta/info\.json, 7 elsewhere"),
        (of_info(codebase_version="v1.6"), "'v1.6'"),
        (of_info(fps=0), "fps: .*got 0"),
        (of_info(features=[1]), "features: .*a list of 1"),
        (of_features(odd=ODD), "odd: shape.*65536"),
        (of_episode(length=9), "has 4 rows of episode 0, expected 9"),
        (of_episode(length=10_000_001), "line 1: length: .*got 10000001"),
        (of_episode(length=2.5), "line 1: length: .*got 2.5"),
        (of_episode(length=True), "line 1: length: .*got True"),
        (of_episode(episode_index=2**53 + 1), "line 1: episode_index: .*got 9007199254740993"),
        (of_episode(episode_index=-1), "line 1: episode_index: .*got -1"),
        (line_of(1_048_577), "1048576 bytes"),
    ],
)
def test_what_makes_no_sense_is_named(dataset, tmp_path, change, says):
    change(dataset)
    with pytest.raises(StorageError, match=says):
        write_recordings(dataset, tmp_path / "back")


@pytest.mark.parametrize("version", [DatasetVersion.V21])
@pytest.mark.parametrize(
    "change",
    [
        of_info(codebase_version="v2.0"),
        of_features(odd={**ODD, "shape": [65_536]}),
        of_episode(length=10_000_000),
        of_episode(episode_index=2**53),
        line_of(1_048_576),
        lambda dataset: (dataset / "meta/episodes_stats.jsonl").unlink(),
    ],
)
def test_what_is_within_the_limits_is_read(dataset, change):
    change(dataset)
    assert open_dataset(dataset).episodes
