"""How long tasks take at most and where their things start, in numbers that are written here and not imported."""

import math
from collections.abc import Sequence

import pytest

from isaaclab_arena.interfaces.episode import ConditionValue
from tests.environments.building import build, episode

NUM_DRAWS = 400
HOME = (0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.7854)
YAW = (-math.pi, math.pi)
CUBES = {
    "red_cube.position": ((0.42, 0.58), (-0.10, 0.10), (0.025, 0.025)),
    "red_cube.yaw": YAW,
    "blue_cube.position": ((0.42, 0.58), (-0.10, 0.10), (0.025, 0.025)),
    "blue_cube.yaw": YAW,
}
DRAWER_AND_OPENING = {"cabinet.position": ((0.68, 0.74), (-0.10, 0.10), (0, 0)), "cabinet.drawer_opening": (0.0, 0.02)}
ON_THE_TABLE = (-0.2, 0.2)

TASKS = {
    "reach": (120, {"target.position": ((0.35, 0.60), (-0.25, 0.25), (0.10, 0.45))}),
    "lift_object": (160, {"cube.position": ((0.40, 0.60), ON_THE_TABLE, (0.025, 0.025)), "cube.yaw": YAW}),
    "pick_and_place": (
        240,
        {
            "cube.position": ((0.42, 0.58), (-0.22, -0.03), (0.025, 0.025)),
            "cube.yaw": YAW,
            "bin.position": ((0.42, 0.56), (0.20, 0.27), (0, 0)),
            "bin.yaw": (-0.15, 0.15),
        },
    ),
    "open_drawer": (200, DRAWER_AND_OPENING),
    "close_drawer": (
        200,
        {"cabinet.position": ((0.72, 0.76), (-0.10, 0.10), (0, 0)), "cabinet.drawer_opening": (0.12, 0.18)},
    ),
    "open_microwave": (240, {"microwave.position": ((0.66, 0.72), (-0.05, 0.05), (0, 0))}),
    "stack": (240, CUBES),
    "pick_by_colour": (160, CUBES),
    "sort_two": (
        400,
        {
            **CUBES,
            "left_bin.position": ((0.42, 0.52), (0.27, 0.30), (0, 0)),
            "left_bin.yaw": (-0.1, 0.1),
            "right_bin.position": ((0.42, 0.52), (-0.30, -0.27), (0, 0)),
            "right_bin.yaw": (-0.1, 0.1),
        },
    ),
    "push_to_goal": (
        300,
        {
            "cube.position": ((0.42, 0.55), (-0.20, -0.08), (0.025, 0.025)),
            "cube.yaw": YAW,
            "goal.position": ((0.42, 0.55), (0.10, 0.22), (0, 0)),
        },
    ),
    "push_cube": (160, {"cube.position": ((0.50, 0.58), (-0.10, 0.10), (0.025, 0.025)), "cube.yaw": YAW}),
    "press_button": (160, {"button.position": ((0.40, 0.60), ON_THE_TABLE, (0, 0))}),
}
"""Control steps of 0.05 s, and the smallest and the largest number of each condition."""


def numbers(value: ConditionValue) -> list[float]:
    return [float(part) for part in value] if isinstance(value, Sequence) and not isinstance(value, str) else [value]  # type: ignore[list-item]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_ends_in_time_and_its_things_start_all_over_their_areas_and_nowhere_else(name):
    steps, areas = TASKS[name]
    env = build(name)
    assert (env.control_dt, env.max_episode_length) == (0.05, steps)
    draws = [env.draw_conditions(episode(index).conditions_generator()) for index in range(NUM_DRAWS)]
    near_home = tuple((joint - 0.02, joint + 0.02) for joint in HOME)
    for key, area in {"robot.joint_position": near_home, **areas}.items():
        columns = list(zip(*(numbers(draw[key]) for draw in draws), strict=True))
        limits = area if isinstance(area[0], tuple) else (area,)
        for column, (low, high) in zip(columns, limits, strict=True):
            rounding = 1e-12
            margin = 0.03 * (high - low) + rounding
            assert low - rounding <= min(column) <= low + margin, key
            assert high - margin <= max(column) <= high + rounding, key
