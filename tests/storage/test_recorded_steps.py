"""Steps of an episode, as recordings hold them."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.atomic import FileThereError
from isaaclab_arena.storage.commits import CommitLine, attributes_of, contradiction
from isaaclab_arena.storage.dataset import observations_of, write_robomimic_file
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from tests.layouts import LAYOUTS
from tests.storage.recordings import recorded
from tests.storage.recovery.crashed_runs import JobOnDisk


def test_of_an_uncompressed_recording_nothing_is_kept_in_memory(tmp_path):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(0))
    found = RecordedSteps().array(path, 0, "actions")
    assert isinstance(found, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_compressed_arrays_are_kept_up_to_a_limit(tmp_path):
    path = tmp_path / "e.h5"
    hdf5.write_episode(path, recorded(0), Compression.GZIP)
    reads: list[str] = []

    def read(file: Path, index: int, name: str) -> np.ndarray:
        reads.append(name)
        return hdf5.read_array(file, index, name)

    steps = RecordedSteps(kept_bytes=1, read=read)
    for name in ("actions", "actions", "dones", "actions"):
        steps.array(path, 0, name)
    assert reads == ["actions", "dones", "actions"]


@pytest.fixture
def line(tmp_path) -> CommitLine:
    return dataclasses.replace(JobOnDisk(tmp_path).line(1), metrics={"force": 0.1, "none": None})


@pytest.fixture
def attributes(tmp_path, line):
    """What is read back from the recording of an episode."""
    path = JobOnDisk(tmp_path).write_part(line)
    return hdf5.read_attributes(path, 1)


def test_a_line_and_its_recording_say_the_same_wherever_it_lies_and_also_without_a_line_in_it(line, attributes):
    moved = dataclasses.replace(line, dataset_file="other.hdf5", episode_file=None)
    assert contradiction(line, attributes) is contradiction(moved, attributes) is None
    assert "episode_length 5" in str(contradiction(line, {**attributes, "num_samples": 4}))
    assert "invalid commit line" in str(contradiction(line, {**attributes, COMMIT_ATTRIBUTE: "{"}))
    del attributes[COMMIT_ATTRIBUTE]
    assert contradiction(line, attributes) is None
    assert contradiction(dataclasses.replace(line, success=False), attributes) is not None


KEYS = {"job": "job_name", "length": "episode_length", "conditions": "variations", "conditions_seed": "placement_seed"}


def test_all_that_was_changed_in_a_line_or_in_its_recording_is_named(line, attributes):
    for name in (field.name for field in dataclasses.fields(CommitLine) if not field.name.endswith("_file")):
        changed, key = dataclasses.replace(line, **{name: "changed"}), KEYS.get(name, name)
        assert f" says {key} changed, its recording " in str(contradiction(changed, attributes))
    for name in ("success", "outcome", "episode_return", "conditions", "metrics", "episode_seed"):
        assert name in attributes_of(line)
        found = str(contradiction(line, {**attributes, name: "changed"}))
        assert f" says {name} " in found
        assert found.endswith("its recording changed")


ENV_ARGS = {"env_name": "lift", "type": 2, "env_kwargs": {}}


def observed(index: int, length: int = 4, more: Mapping[str, np.ndarray] | None = None):
    """Return an episode whose policy saw two terms."""
    episode = recorded(index, length=length)
    seen = {
        "obs/height": np.linspace(0, 1, length),
        "obs/above": np.arange(2 * length, dtype=np.float32).reshape(length, 2),
    }
    return dataclasses.replace(episode, arrays={**episode.arrays, **seen, **(more or {})})


def without(episode: RecordedEpisode, name: str) -> RecordedEpisode:
    return dataclasses.replace(episode, arrays={key: array for key, array in episode.arrays.items() if key != name})


def test_what_comes_next_is_what_is_seen_a_step_later(tmp_path):
    write_robomimic_file(tmp_path / "lift.hdf5", [observed(3), without(observed(4), "dones")], ENV_ARGS)
    with h5py.File(tmp_path / "lift.hdf5") as file:
        demo: Any = file["data/demo_3"]
        for name in ("height", "above", "flat", "front"):
            now, after = demo["obs"][name][:], demo["next_obs"][name][:]
            np.testing.assert_array_equal(after, np.concatenate([now[1:], now[-1:]]))
        assert demo["dones"][:].tolist() == [0, 0, 0, 0], "as recorded"
        ends: Any = file["data/demo_4/dones"]
        assert ends[:].tolist() == [0, 0, 0, 1], "not recorded"
        assert (file["data"].attrs["total"], demo.attrs["num_samples"]) == (8, 4)
        assert json.loads(str(file["data"].attrs["env_args"])) == ENV_ARGS


def test_observations_have_names_without_directories_and_vectors_at_least():
    more = {"obs_critic/height": np.ones((4, 1)), "camera_obs/above": np.ones((4, 2))}
    seen = observations_of(observed(0, more=more).arrays)
    assert {name: array.shape for name, array in seen.items()} == {
        "height": (4, 1),
        "above": (4, 2),
        "flat": (4, 3),
        "front": (4, 6, 6, 3),
        "critic_height": (4, 1),
        "camera_obs_above": (4, 2),
    }
    assert seen["front"].dtype == np.uint8
    np.testing.assert_array_equal(seen["flat"], np.hstack([seen["above"], seen["height"]]).astype(np.float32))


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_pictures_are_in_colours_in_whichever_layout_they_were_recorded(lies, colours):
    seen = observations_of(observed(0, more={"camera_obs/front": np.stack([lies] * 4)}).arrays)
    np.testing.assert_array_equal(seen["front"], np.stack([colours] * 4))


def masks_of(path: Path, success: Mapping[int, bool | None]) -> dict[str, list[int]]:
    """Return the masks of a file of short episodes with these successes."""
    said = {index: {} if each is None else {"success": each} for index, each in success.items()}
    episodes = (dataclasses.replace(observed(index, 1), attributes=each) for index, each in said.items())
    return write_robomimic_file(path, episodes, ENV_ARGS)


def test_every_tenth_index_is_for_validation_however_many_there_are(tmp_path):
    some, more = (masks_of(tmp_path / f"{count}.hdf5", {at: at % 2 == 0 for at in range(count)}) for count in (12, 31))
    assert (some["valid"], more["valid"]) == ([0, 10], [0, 10, 20, 30])
    assert set(some["train"]) < set(more["train"])
    assert sorted(some["train"] + some["valid"]) == list(range(12))
    assert some["successful"] == [0, 2, 4, 6, 8, 10]
    assert (some["successful_train"], some["successful_valid"]) == ([2, 4, 6, 8], [0, 10])
    # A key that would name none is left out.
    assert masks_of(tmp_path / "one.hdf5", {0: None}) == {"train": [0]}
    assert masks_of(tmp_path / "two.hdf5", {3: False, 4: None}) == {"train": [3, 4]}


def test_without_observations_there_is_no_file_and_one_that_is_there_stays(tmp_path):
    path = tmp_path / "lift.hdf5"
    with pytest.raises(StorageError, match=r"demo_1.*--record_observations"):
        write_robomimic_file(path, [without(recorded(1), "camera_obs/front")], ENV_ARGS)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(FileThereError):
        write_robomimic_file(path, [observed(0)], ENV_ARGS)
    assert path.read_text() == "mine"
