import json

import pytest

from isaaclab_arena.environments.variations.overrides import differs_only_by, with_moved_starts

BEFORE = {"cube.position": (0.5, 0.1, 0.02), "cube.yaw": 0.3, "robot.joint_position": (0.0, -0.4)}


def changed(**own):
    """Return an episode with variations on, and their keys."""
    values = {key.replace("__", "."): value for key, value in own.items()}
    return with_moved_starts({**BEFORE, **values}, values), values.keys()


def test_a_start_is_what_the_task_draws_and_what_is_added_to_it():
    now, _ = changed(cube__shift=(0.01, -0.02), cube__turn=0.5, cube__size=2.0, robot__joint_shift=(0.1, 0.2))
    assert now["cube.position"] == (0.51, 0.1 - 0.02, 0.04)
    assert now["cube.yaw"] == 0.8
    assert now["robot.joint_position"] == (0.1, -0.4 + 0.2)


def test_an_episode_with_moved_starts_is_the_same_in_everything_else_also_from_json():
    now, keys = changed(cube__shift=(0.01, -0.02), cube__turn=0.5, cube__size=1.1, cube__mass=0.2)
    assert differs_only_by(BEFORE, now, keys)
    assert differs_only_by(json.loads(json.dumps(BEFORE)), json.loads(json.dumps(now)), keys)


@pytest.mark.parametrize(
    "other",
    [
        {"cube.position": (0.5, 0.1, 0.021)},
        {"cube.yaw": 0.31},
        {"robot.joint_position": (0.0, -0.41)},
        {"bin.position": (0.5, 0.3, 0.0)},
        {"distractor_1.position": (0.4, 0.3, 0.02)},
        {"light.color": (1.0, 1.0, 0.9)},
        {"picture.noise_seed": 5},
    ],
)
def test_an_episode_that_differs_in_anything_else_is_another_one(other):
    now, keys = changed(cube__mass=0.2)
    assert differs_only_by(BEFORE, now, keys)
    assert not differs_only_by(BEFORE, {**now, **other}, keys)


def test_a_start_may_be_moved_by_no_more_than_what_was_drawn():
    now, keys = changed(cube__shift=(0.01, -0.02))
    assert now["cube.position"] == (0.51, 0.1 - 0.02, 0.02)
    assert not differs_only_by(BEFORE, {**now, "cube.position": (0.51 + 1e-9, 0.1 - 0.02, 0.02)}, keys)


def test_a_variation_that_was_on_before_or_is_not_on_now_changes_nothing():
    assert not differs_only_by({**BEFORE, "cube.mass": 0.1}, {**BEFORE, "cube.mass": 0.2}, ["cube.mass"])
    assert not differs_only_by(BEFORE, BEFORE, ["cube.mass"])


def test_what_cannot_have_been_moved_was_not():
    now = {**BEFORE, "bin.shift": (0.1, 0.0)}
    assert not differs_only_by(BEFORE, now, ["bin.shift"])
    assert not differs_only_by({**BEFORE, "bin.position": "left"}, {**now, "bin.position": "right"}, ["bin.shift"])


@pytest.mark.parametrize(
    ("key", "drawn"),
    [
        ("action.noise", "action.noise_seed"),
        ("table.texture", "table.pattern"),
        ("distractors.count", "distractor_2.yaw"),
    ],
)
def test_what_a_variation_draws_besides_belongs_to_it_alone(key, drawn):
    assert differs_only_by(BEFORE, {**BEFORE, key: 1, drawn: 7}, [key])
    assert not differs_only_by(BEFORE, {**BEFORE, "cube.mass": 1, drawn: 7}, ["cube.mass"])
