"""Rewards and progress of every task in numbers, so that no term of them changes unseen."""

import pytest

from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    FLOOR_ENVIRONMENTS,
    build,
    build_on_the_floor,
    play,
    random_actions,
    start,
)

# Contacts differ a little between processors.
CLOSE = 1e-2

SOLVED = {
    "reach": (9.036, 13, {"final_distance_m": 0.0005}),
    "lift_object": (20.853, 40, {"final_height_m": 0.178, "final_distance_m": 0.002}),
    "pick_and_place": (28.409, 56, {"final_bin_distance_m": 0.033}),
    "open_drawer": (19.338, 39, {"final_opening_m": 0.175, "pulled_m": 0.175}),
    "close_drawer": (16.966, 39, {"final_opening_m": -0.001, "pushed_m": 0.121}),
    "open_microwave": (26.253, 45, {"final_angle_rad": 1.103, "pulled_rad": 1.05}),
    "stack": (34.220, 59, {"final_beside_m": 0.001, "final_above_m": 0.05}),
    "pick_by_colour": (20.326, 36, {"final_height_m": 0.177, "final_other_height_m": 0.0}),
    "sort_two": (53.104, 109, {"progress": 1.0, "progress.red_in_left_bin": 1.0, "progress.blue_in_right_bin": 1.0}),
    "push_to_goal": (37.483, 80, {"final_goal_distance_m": 0.012}),
    "push_cube": (42.958, 67, {"final_goal_distance_m": 0.013}),
    "press_button": (8.489, 17, {"final_press_m": 0.0196}),
}
"""Return, length and metrics of the scripted policy's first episode."""

WANDERING = {
    "reach": (0.08617, 0.05542, 0.05215, 0.06161),
    "lift_object": (0.02073, 0.01691, 0.01598, 0.01582),
    "pick_and_place": (0.02018, 0.02825, 0.02655, 0.01439),
    "open_drawer": (0.05158, 0.02593, 0.01706, 0.08097),
    "close_drawer": (0.08487, 0.03261, 0.02214, 0.08661),
    "open_microwave": (0.04356, 0.0599, 0.03226, 0.05178),
    "stack": (0.01687, 0.01568, 0.01362, 0.01354),
    "pick_by_colour": (0.0299, 0.04737, 0.04502, 0.02143),
    "sort_two": (0.0184, 0.02363, 0.02182, 0.01392),
    "push_to_goal": (0.11296, 0.13318, 0.1316, 0.10455),
    "push_cube": (0.26784, 0.3097, 0.28006, 0.21323),
    "press_button": (0.04316, 0.03156, 0.02897, 0.03203),
    "cartpole": (0.01992, 0.01865, 0.01956, 0.01953),
    "velocity_go1": (0.06162, 0.08193, 0.03569, 0.06548),
    "walk_humanoid": (0.06465, 0.01324, 0.03488, 0.03123),
    "track_motion": (0.06742, 0.03984, 0.03458, 0.04155),
}
"""Rewards of steps 0, 3, 6 and 9 of random actions."""

CUT_SHORT = {
    "reach": (0.4782, "almost"),
    "lift_object": (0.5354, "out_of_time_while_progressing"),
    "pick_and_place": (0.6, "out_of_time_while_progressing"),
    "open_drawer": (0.5362, "out_of_time_while_progressing"),
    "close_drawer": (0.53, "out_of_time_while_progressing"),
    "open_microwave": (0.6111, "out_of_time_while_progressing"),
    "stack": (0.6, "out_of_time_while_progressing"),
    "pick_by_colour": (0.6216, "out_of_time_while_progressing"),
    "sort_two": (0.75, "stalled"),
    "push_to_goal": (0.5128, "out_of_time_while_progressing"),
    "push_cube": (0.474, "reached_and_missed"),
    "press_button": (0.25, "stalled"),
}
"""Progress and main reason of the same episode after two thirds of its steps."""


@pytest.mark.parametrize("task", ALL_ENVIRONMENTS)
def test_an_episode_has_its_return_length_metrics_and_progress(task):
    record = play(build(task), ScriptedPolicy(), 1).records[0]
    expected_return, length, metrics = SOLVED[task]
    assert record.episode_return == pytest.approx(expected_return, rel=CLOSE)
    assert record.length == length
    assert record.metrics == pytest.approx(metrics, rel=CLOSE, abs=1e-3)

    env = build(task)
    env.max_episode_length = 2 * length // 3
    events = play(env, ScriptedPolicy(), 1).records[0].events
    assert events is not None
    progress, decisive = CUT_SHORT[task]
    assert events.progress == pytest.approx(progress, rel=CLOSE)
    assert events.decisive == decisive


@pytest.mark.parametrize("task", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_a_robot_that_wanders_is_rewarded_step_by_step(task):
    env = build(task) if task in ALL_ENVIRONMENTS else build_on_the_floor(task)
    start(env)
    actions = random_actions(env, 12)
    if task in FLOOR_ENVIRONMENTS:
        actions = actions.clamp(-1, 1)
    rewards = [float(env.step(action).reward) for action in actions]
    assert rewards[::3] == pytest.approx(WANDERING[task], rel=CLOSE, abs=1e-4)
