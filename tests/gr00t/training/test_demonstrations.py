from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena_gr00t.observations import Wiring
from isaaclab_arena_gr00t.training.trainer import (
    Demonstration,
    DemonstrationSteps,
    find_demonstrations,
    recorded_spaces,
    split,
)
from tests.gr00t.data.recordings import record
from tests.gr00t.training.demonstrations import SIZE, recording, write_recordings
from tests.growth import in_time
from tests.outsiders.lerobot_datasets import damaged_recording

WIRING = Wiring(
    cameras={"head": "robot_head_cam_rgb"},
    image_size=(SIZE, SIZE),
    state_terms=("gripper_pos", "robot_joint_pos"),
    state={"arm": tuple(range(2, 9)), "gripper": (0,)},
    action={"gripper": (7,), "arm": tuple(range(7))},
    language_keys=("task",),
)


@pytest.fixture
def directory(tmp_path):
    return write_recordings(tmp_path / "lift", *map(recording, range(3)), recording(3, success=False))


def steps_of(directory, horizon: int = 4) -> DemonstrationSteps:
    found = find_demonstrations(sorted(directory.glob("*.h5")))
    return DemonstrationSteps(found, WIRING, horizon=horizon, steps=RecordedSteps())


def test_only_what_succeeded_is_learned_unless_told_otherwise(directory):
    files = sorted(directory.glob("*.h5"))
    assert [each.episode_index for each in find_demonstrations(files)] == [0, 1, 2]
    assert [each.episode_index for each in find_demonstrations(files, only_successes=False)] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="1 did not succeed"):
        find_demonstrations(files[3:])


def test_every_control_step_is_one_sample_in_order(directory):
    data = steps_of(directory)
    assert len(data) == 6 + 7 + 8
    assert data.states()["arm"].shape == (21, 7)
    np.testing.assert_array_equal(data.actions()["arm"][6:13], recording(1).arrays["actions"][:, :7])
    batch = data.batch([0, 5, 6, 20])
    second = recording(1).arrays
    np.testing.assert_array_equal(batch.observation["state"]["arm"][2, 0], second["obs/robot_joint_pos"][0])
    np.testing.assert_array_equal(batch.observation["video"]["head"][2, 0], second["camera_obs/robot_head_cam_rgb"][0])
    assert batch.observation["language"]["task"] == [
        [recording(i).attributes["language_instruction"]] for i in (0, 0, 1, 2)
    ]


def test_an_action_chunk_holds_what_followed_and_marks_what_lies_behind_the_end(directory):
    batch = steps_of(directory).batch([0, 4])
    actions = recording(0).arrays["actions"]
    np.testing.assert_array_equal(batch.action["arm"][0], actions[0:4, :7])
    np.testing.assert_array_equal(batch.action["arm"][1], actions[[4, 5, 5, 5], :7])
    np.testing.assert_array_equal(batch.action["gripper"][0], actions[0:4, 7:])
    assert batch.is_padding.tolist() == [[False] * 4, [False, False, True, True]]


def test_what_a_recording_lacks_is_said(tmp_path):
    blind = recording(0)
    arrays = {name: array for name, array in blind.arrays.items() if not name.startswith("camera_obs")}
    directory = write_recordings(tmp_path, type(blind)(**{**vars(blind), "arrays": arrays}))
    (demonstration,) = find_demonstrations(directory.glob("*.h5"))
    with pytest.raises(ConfigError, match="no pictures"):
        recorded_spaces(demonstration, RecordedSteps())


@pytest.mark.parametrize(("share", "numbers"), [(0.0, (0, 0)), (0.01, (1, 1)), (0.5, (5, 1)), (0.99, (9, 1))])
def test_every_job_gives_its_share_for_validation_and_keeps_something_to_learn(tmp_path, share, numbers):
    demonstrations = [
        Demonstration(file=tmp_path, episode_index=index, num_steps=5, instruction="", job=job)
        for job, count in (("lift", 10), ("reach", 2))
        for index in range(count)
    ]
    chosen, held_out = split(demonstrations, share=share, seed=1)
    assert sorted(chosen + held_out) == list(range(12))
    assert (sum(index < 10 for index in held_out), sum(index >= 10 for index in held_out)) == numbers
    assert split(demonstrations, share=share, seed=1) == (chosen, held_out)


def check_damaged_recording(original: Path, directory: Path, seed: int) -> None:
    """Change an attribute or an array of a recording, and give it to what learns."""
    recording = damaged_recording(original, directory, seed)
    try:
        with in_time(60):
            find_demonstrations([recording])
    except ArenaError:
        return
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seeds", [range(12), *(pytest.param(range(first, first + 400), marks=pytest.mark.slow) for first in (1000, 2000))]
)
def test_whatever_a_recording_says_of_itself_it_is_learned_or_refused(tmp_path, seeds):
    original = record(tmp_path / "lift", "lift", [3, 4])
    for seed in seeds:
        check_damaged_recording(original, tmp_path, seed)
