from typing import Any

import numpy as np
import pytest

from isaaclab_arena.evaluation.rerun import Difference, first_difference
from isaaclab_arena.storage.episode_file import RecordedEpisode

ATTRIBUTES = {"outcome": "success", "success": True, "termination": "terminated", "episode_return": 2.5}


def recorded(length=6, attributes=None, **changed) -> RecordedEpisode:
    """Return an episode; a changed array is named with ``__`` for each slash, and given as what changes a copy."""
    generator = np.random.default_rng(3)
    arrays = {
        "actions": generator.random((length, 4)).astype(np.float32),
        "camera_obs/front": generator.integers(0, 255, (length, 6, 6, 3), np.uint8),
        "dones": np.zeros(length, np.uint8),
        "initial_state/simulator/integration_state": generator.random(9),
        "obs/joint_pos": generator.random((length, 7)).astype(np.float32),
        "obs_extra/nothing": np.zeros((length, 0), np.float32),
        "rewards": generator.random(length).astype(np.float32),
        "states/rigid_object/cube/root_pose": generator.random((length, 7)),
    }
    for name, change in changed.items():
        change(arrays[name.replace("__", "/")])
    return RecordedEpisode(episode_index=0, arrays=arrays, attributes={**ATTRIBUTES, **(attributes or {})}, env_args={})


def the_difference(found: RecordedEpisode, before: RecordedEpisode | None = None) -> Difference:
    difference = first_difference(before or recorded(), found)
    assert difference is not None
    return difference


def at(place, amount):
    def change(array):
        array[place] += amount

    return change


def test_the_same_episode_has_no_difference():
    assert first_difference(recorded(), recorded()) is None


def test_a_changed_state_is_found_with_step_field_and_amount():
    found = recorded(states__rigid_object__cube__root_pose=at((4, 2), 0.25))
    difference = the_difference(found)
    assert (difference.step, difference.field) == (4, "states/rigid_object/cube/root_pose")
    assert difference.max_abs == pytest.approx(0.25)
    assert str(difference) == "at control step 4: states/rigid_object/cube/root_pose by 0.25"


def test_the_earliest_step_is_named_whatever_the_fields_are_called():
    difference = the_difference(recorded(actions=at(5, 1), rewards=at(2, 1), obs__joint_pos=at(3, 1)))
    assert (difference.step, difference.field) == (2, "rewards")


def test_within_a_step_what_happens_first_is_named():
    everything: dict[str, Any] = {
        name: at(1, 1) for name in ("actions", "rewards", "states__rigid_object__cube__root_pose")
    }
    difference = the_difference(recorded(**everything))
    assert difference.field == "actions"
    difference = the_difference(recorded(**everything, camera_obs__front=at((1, 0, 0, 0), 1)))
    assert difference.field == "camera_obs/front"


def test_what_an_episode_starts_from_comes_before_its_first_step():
    found = recorded(obs__joint_pos=at(0, 1), initial_state__simulator__integration_state=at(3, 1e-9))
    difference = the_difference(found)
    assert difference.at_start
    assert str(difference) == "at the start: initial_state/simulator/integration_state by 1e-09"


def test_one_bit_is_a_difference_and_a_nan_is_none():
    def last_bit(array):
        array[2, 0] = np.nextafter(array[2, 0], 1)

    def no_number(array):
        array[5] = np.nan

    difference = the_difference(recorded(states__rigid_object__cube__root_pose=last_bit))
    assert difference.step == 2
    assert 0 < (difference.max_abs or 0) < 1e-15
    assert first_difference(recorded(rewards=no_number), recorded(rewards=no_number)) is None


def test_a_nan_against_a_number_is_shown_with_both():
    def no_number(array):
        array[5] = np.nan

    difference = the_difference(recorded(rewards=no_number))
    assert difference.max_abs is None
    assert str(difference).endswith("is now [nan]")


def test_an_episode_of_another_length_is_compared_as_far_as_both_go():
    shorter = recorded()
    shorter = RecordedEpisode(
        episode_index=0,
        arrays={name: array if name.startswith("initial") else array[:4] for name, array in shorter.arrays.items()},
        attributes=shorter.attributes,
        env_args={},
    )
    assert str(first_difference(recorded(), shorter)) == "at the end: num_samples was 6, is now 4"
    difference = the_difference(shorter, recorded(actions=at(3, 1)))
    assert difference.field == "actions"


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"outcome": "failure"}, "outcome was success, is now failure"),
        ({"episode_return": 2.5000001}, "episode_return was 2.5, is now 2.5000001"),
        ({"error": "the floor gave way"}, "error was not there, is now the floor gave way"),
    ],
)
def test_how_it_ended_is_compared_too(attributes, words):
    assert str(first_difference(recorded(), recorded(attributes=attributes))) == f"at the end: {words}"


def test_an_array_that_is_absent_or_of_another_kind_is_named():
    whole = recorded()
    arrays = dict(whole.arrays)
    del arrays["obs/joint_pos"]
    found = RecordedEpisode(episode_index=0, arrays=arrays, attributes=ATTRIBUTES, env_args={})
    assert str(first_difference(whole, found)) == "at control step 0: obs/joint_pos was recorded, is now absent"
    arrays = {**whole.arrays, "rewards": whole.arrays["rewards"].astype(np.float64)}
    found = RecordedEpisode(episode_index=0, arrays=arrays, attributes=ATTRIBUTES, env_args={})
    assert str(first_difference(whole, found)) == "at control step 0: rewards was float32, is now float64"


def test_what_only_the_new_episode_holds_is_passed_over():
    whole = recorded()
    less = {name: array for name, array in whole.arrays.items() if not name.startswith("obs")}
    before = RecordedEpisode(episode_index=0, arrays=less, attributes=ATTRIBUTES, env_args={})
    assert first_difference(before, whole) is None
