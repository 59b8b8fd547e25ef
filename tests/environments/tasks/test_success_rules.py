"""When tasks are solved and lost, in the numbers that their descriptions state, just within and just beyond each.

The numbers are written here and not imported: a rule that changes has to be changed in two places.
"""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.catalog import CUBE
from isaaclab_arena.environments.mdp.task import Task, Verdict
from isaaclab_arena.environments.robots.embodiment import PANDA
from isaaclab_arena.environments.tasks.articulated import CloseDrawer, OpenDrawer, OpenMicrowave, PressButton
from isaaclab_arena.environments.tasks.grasping import LiftObject, PickAndPlace, Reach
from isaaclab_arena.environments.tasks.pushing import PushCube, PushToGoal
from isaaclab_arena.environments.tasks.two_cubes import PickByColour, SortTwo, Stack
from isaaclab_arena.interfaces.episode import Conditions


class StatedWorld:
    """Answers what tasks ask a simulation when they judge. Its env slots are the cases of a test.

    Every fact holds in all env slots, or is one per env slot. Speeds [m/s] are along x. Where nothing is said, a body
    is upright and at rest. ``ctrl`` (num_envs, 2) is what the arm, one joint for all of its own, and the gripper get.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        places: Mapping[str, Any],
        orientations: Mapping[str, Any] | None = None,
        speeds: Mapping[str, Any] | None = None,
        joints: Mapping[str, Any] | None = None,
        touching: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.qpos = torch.zeros(num_envs, 1, dtype=torch.float64)
        self.ctrl = torch.zeros(num_envs, 2, dtype=torch.float64)
        self.names = SimpleNamespace(actuators={"robot/gripper": 1})
        self.places, self.orientations, self.speeds = dict(places), dict(orientations or {}), dict(speeds or {})
        self.joints, self.sensors = dict(joints or {}), dict(touching or {})

    def body_position(self, body: str) -> torch.Tensor:
        return self._per_env_slot(self.places[body], 3)

    site_position = body_position

    def body_orientation(self, body: str) -> torch.Tensor:
        return self._per_env_slot(self.orientations.get(body, (1.0, 0.0, 0.0, 0.0)), 4)

    def free_velocity(self, joint: str) -> torch.Tensor:
        speed = self._per_env_slot(self.speeds.get(joint, 0.0), 1)
        return torch.cat((speed, torch.zeros(self.num_envs, 5, dtype=torch.float64)), dim=1)

    def joint_indices(self, joints: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(joints), dtype=torch.int64), torch.zeros(len(joints), dtype=torch.int64)

    def actuator_indices(self, actuators: Sequence[str]) -> torch.Tensor:
        return torch.zeros(len(actuators), dtype=torch.int64)

    def joint_position(self, joint: str) -> torch.Tensor:
        return self._per_env_slot(self.joints[joint], 1)

    def touching(self, contact_sensor: str) -> torch.Tensor:
        return self._per_env_slot(self.sensors.get(contact_sensor, False), 1)[:, 0] > 0

    def _per_env_slot(self, value: Any, width: int) -> torch.Tensor:
        tensor = torch.tensor(value, dtype=torch.float64)
        if tensor.numel() == self.num_envs * width:
            return tensor.reshape(self.num_envs, width).clone()
        return tensor.reshape(1, width).repeat(self.num_envs, 1)


def begin(task: Task, world: Any, conditions: Sequence[Conditions] = ()) -> None:
    """Begin an episode in every env slot of a world, with conditions where the task has to remember them."""
    env_ids = torch.arange(world.num_envs)
    task.attach(world)
    if conditions:
        task.remember(env_ids, conditions)
    task.begin(world, env_ids)


def judged(task: Task, world: Any, steps: int = 1) -> Verdict:
    """Verdict of the task after some steps in which nothing moves."""
    running = torch.ones(world.num_envs, dtype=torch.bool)
    judgements = [task.judge(world, running) for _ in range(steps)]
    return judgements[-1]


def first_success(
    task: Task, world: Any, conditions: Sequence[Conditions] = (), *, steps: int = 25
) -> list[int | None]:
    """Begin, and return after how many steps each env slot is solved for the first time, None if it never is."""
    begin(task, world, conditions)
    solved = torch.stack([judged(task, world).success for _ in range(steps)])
    return [int(steps.nonzero()[0]) + 1 if steps.any() else None for steps in solved.T]


TCP = "robot/tcp"
FAR = (0.3, 0.0, 0.5)
LITTLE = 1e-6
LEANING_17_DEGREES = (math.cos(math.radians(8.5)), math.sin(math.radians(8.5)), 0.0, 0.0)
LEANING_19_DEGREES = (math.cos(math.radians(9.5)), 0.0, math.sin(math.radians(9.5)), 0.0)
LEANING = [LEANING_17_DEGREES, LEANING_19_DEGREES]


def around(value: float) -> list[float]:
    """Return a value just below a limit, and one just above it."""
    return [value - LITTLE, value + LITTLE]


def fingers_on(thing: str, left: Any = True, right: Any = True) -> dict[str, Any]:
    return {f"left_finger_touches_{thing}": left, f"right_finger_touches_{thing}": right}


def held_at(*heights: float, **touching: Any) -> StatedWorld:
    """Return a world of an object at some heights, 9 cm below the tool centre point, by default in both fingers."""
    return StatedWorld(
        len(heights),
        places={
            "object/body": [(0.5, 0.0, height) for height in heights],
            TCP: [(0.5, 0.0, height + 0.09) for height in heights],
        },
        touching=touching or fingers_on("object"),
    )


def test_a_break_starts_the_half_second_again():
    task, world = LiftObject(PANDA, CUBE), held_at(0.2)
    begin(task, world)
    assert not judged(task, world, steps=9).success
    world.sensors["left_finger_touches_object"] = False
    assert not judged(task, world).success
    world.sensors["left_finger_touches_object"] = True
    assert not judged(task, world, steps=9).success
    assert judged(task, world).success


def test_the_reward_of_lifting_is_03_for_being_near_02_for_holding_05_for_height_and_1_for_success():
    world = held_at(0.075, 0.025, 0.075, 0.2, 0.2, **fingers_on("object", [0, 1, 1, 1, 1]))
    world.places[TCP] = [(0.5, 0.1, 0.075), (0.5, 0.05, 0.025), (0.5, 0.0, 0.075), (0.5, 0.0, 0.2), (0.5, 0.05, 0.2)]
    task = LiftObject(PANDA, CUBE)
    expected = torch.tensor([0.15, 0.24 + 0.2, 0.3 + 0.2 + 0.25, 1.0, 0.24 + 0.2 + 0.5], dtype=torch.float64)
    begin(task, world)
    torch.testing.assert_close(judged(task, world).reward, expected)
    expected[3:] += 1
    torch.testing.assert_close(judged(task, world, steps=9).reward, expected)


def test_an_object_is_lost_beyond_every_edge_of_the_table():
    """The table top reaches from -0.22 to 1.02 m ahead and 0.6 m to both sides; 2 cm below it a thing has fallen."""
    inside = [(-0.22, 0, 0.1), (1.02, 0, 0.1), (0.5, -0.6, 0.1), (0.5, 0.6, 0.1), (0.5, 0, -0.02)]
    outward = [(-LITTLE, 0, 0), (LITTLE, 0, 0), (0, -LITTLE, 0), (0, LITTLE, 0), (0, 0, -LITTLE)]
    for sign, lost in ((-1, False), (1, True)):
        places = [tuple(a + sign * b for a, b in zip(*pair, strict=True)) for pair in zip(inside, outward, strict=True)]
        world, task = StatedWorld(5, places={"object/body": places, TCP: FAR}), LiftObject(PANDA, CUBE)
        begin(task, world)
        assert judged(task, world).lost.tolist() == [lost] * 5


def colours(*, red: Any, blue: Any, tcp: Any = FAR, num_envs: int = 1, **more: Any) -> StatedWorld:
    return StatedWorld(num_envs, places={"red/body": red, "blue/body": blue, TCP: tcp}, **more)


@pytest.mark.parametrize("wanted", ["red", "blue"])
def test_the_cube_of_the_named_colour_counts_and_the_other_one_may_not_be_lifted_by_5_cm(wanted):
    other = {"red": "blue", "blue": "red"}[wanted]
    low = [(0.5, 0.1, 0.025), (0.5, 0.1, 0.075 - LITTLE), (0.5, 0.1, 0.075 + LITTLE), (0.5, 0.1, 0.025)]
    high = [(0.5, 0.0, 0.125 + LITTLE)] * 3 + [(0.5, 0.0, 0.125 - LITTLE)]
    world = colours(**{wanted: high, other: low}, tcp=(0.5, 0.0, 0.1), num_envs=4, touching=fingers_on(wanted))
    task = PickByColour(PANDA)
    assert first_success(task, world, [{"goal.colour": wanted}] * 4) == [10, 10, None, None]
    assert judged(task, world).lost.tolist() == [False, False, True, False]


def tower(
    *, beside: Any = (0.0,), above: Any = (0.05,), tcp: Any = FAR, blue: Any = (0.5, 0.2, 0.025), **more: Any
) -> StatedWorld:
    """Return a world of a red cube over a blue one that touches it."""
    num_envs = max(len(beside), len(above), len(tcp) if isinstance(tcp, list) else 1, more.pop("num_envs", 1))
    beside, above = list(beside) * (num_envs // len(beside)), list(above) * (num_envs // len(above))
    red = [(blue[0], blue[1] + side, blue[2] + up) for side, up in zip(beside, above, strict=True)]
    touching = {"red_touches_blue": True, **more.pop("touching", {})}
    return colours(red=red, blue=blue, tcp=tcp, num_envs=num_envs, touching=touching, **more)


def in_bin(*offsets: tuple[float, float, float], **more: Any) -> StatedWorld:
    """Return a world of an object at offsets, in its frame, from a bin that is turned by 0.4 rad."""
    c, s = math.cos(0.4), math.sin(0.4)
    orientations = {"bin/body": (math.cos(0.2), 0.0, 0.0, math.sin(0.2)), **more.pop("orientations", {})}
    return StatedWorld(
        len(offsets),
        places={
            "bin/body": (0.5, 0.25, 0.0),
            "object/body": [(0.5 + c * x - s * y, 0.25 + s * x + c * y, z) for x, y, z in offsets],
            TCP: more.pop("tcp", FAR),
        },
        orientations=orientations,
        touching={"object_touches_bin": True, **more.pop("touching", {})},
        **more,
    )


def test_two_cubes_are_sorted_when_red_lies_in_the_left_bin_and_blue_in_the_right_one():
    left, right = (0.5, 0.28, 0.033), (0.5, -0.28, 0.033)
    world = colours(red=[left, right, left, left], blue=[right, left, right, (0.5, 0, 0.025)], num_envs=4)
    world.places |= {"left_bin/body": (0.5, 0.28, 0.0), "right_bin/body": (0.5, -0.28, 0.0)}
    world.sensors |= {"right_finger_touches_blue": [0, 0, 1, 0]}
    task = SortTwo(PANDA)
    assert first_success(task, world) == [5, None, None, None]
    judgement = judged(task, world)
    assert judgement.reward[0].item() == pytest.approx(2.0)
    assert judgement.metrics["progress"].tolist() == [1.0, 0.0, 0.5, 0.5]
    assert judgement.metrics["progress.red_in_left_bin"].tolist() == [1.0, 0.0, 1.0, 1.0]


def pushed(*offsets: tuple[float, float, float], **more: Any) -> StatedWorld:
    """Return a world of a cube at offsets from where it would stand in the middle of the disc."""
    places = [(0.5 + x, 0.1 + y, 0.025 + z) for x, y, z in offsets]
    return StatedWorld(len(offsets), places={"object/body": places, "goal/body": (0.5, 0.1, 0.0), TCP: FAR}, **more)


def shoved() -> StatedWorld:
    world = pushed((0.04 - LITTLE, 0, 0.05), (0, 0.04 + LITTLE, 0), speeds={"object/free": 1.0})
    world.places["object/body"][0] = (0.54 - LITTLE, 0.1, 0.2)
    world.orientations["robot/hand"] = (0, 1, 0, 0)
    return world


def button() -> StatedWorld:
    return StatedWorld(
        3,
        places={TCP: FAR, "button/top": (0.5, 0, 0)},
        joints={"button/press": [0.0135 + LITTLE, 0.0135 - LITTLE, 0.015]},
        touching={"hand_touches_button": [1, 1, 0]},
    )


def held_beside() -> StatedWorld:
    world = held_at(0.2, 0.2, 0.2, 0.2, **fingers_on("object", [1, 0, 1, 1], [0, 1, 1, 1]))
    world.places[TCP] = [(0.5, 0.0, 0.2), (0.5, 0.0, 0.2), (0.5, 0.1 - LITTLE, 0.2), (0.5, 0.1 + LITTLE, 0.2)]
    return world


def at_the_walls(by: float) -> StatedWorld:
    """Return a world of objects that are so far beyond each face of the bin.

    The bin is 18 cm wide inside. On its floor of 8 mm a cube's centre is at 33 mm; 2 cm above that it lies no more.
    """
    by += 0.09
    up = by - 0.09
    sides = [(by, 0, 0.03), (-by, 0, 0.03), (0, by, 0.03), (0, -by, 0.03)]
    return in_bin(*sides, (0, 0, 0.053 + up), (0, 0, -up))


IN, THERE = (0.0, 0.0, 0.033), (0, 0, 0)
LIFT, TOWER, PLACE = LiftObject(PANDA, CUBE), Stack(PANDA), PickAndPlace(PANDA, CUBE)
DISC = PushToGoal(PANDA, CUBE)
RULES = {
    "lifted a tenth of a metre above where it rests": (
        LIFT,
        held_at(0.125 + LITTLE, 0.125 - LITTLE, 0.5),
        [10, None, 10],
    ),
    "held by both fingers near the tool centre point": (LIFT, held_beside(), [None, None, 10, None]),
    "tower 2 cm beside": (TOWER, tower(beside=around(0.02)), [10, None]),
    "tower 6 mm too high": (TOWER, tower(above=around(0.056)), [10, None]),
    "tower 6 mm too low": (TOWER, tower(above=around(0.044)), [None, 10]),
    "tower the wrong way round": (TOWER, tower(above=(-0.05,)), [None]),
    "tower touching": (TOWER, tower(touching={"red_touches_blue": [1, 0]}, num_envs=2), [10, None]),
    "tower leaning": (TOWER, tower(orientations={"blue/body": LEANING}, num_envs=2), [10, None]),
    "a hand 5 cm from the tower": (TOWER, tower(tcp=[(0.5, 0.2, z) for z in around(0.125)]), [None, 10]),
    "red of the tower let go": (TOWER, tower(touching=fingers_on("red", [0, 1], 0), num_envs=2), [10, None]),
    "blue of the tower let go": (TOWER, tower(touching=fingers_on("blue", 0, [0, 1]), num_envs=2), [10, None]),
    "red of the tower at rest": (TOWER, tower(speeds={"red/free": around(0.05)}, num_envs=2), [10, None]),
    "blue of the tower at rest": (TOWER, tower(speeds={"blue/free": around(0.05)}, num_envs=2), [10, None]),
    "within every face of the bin": (PLACE, at_the_walls(-LITTLE), [5] * 6),
    "beyond every face of the bin": (PLACE, at_the_walls(LITTLE), [None] * 6),
    "at rest in the bin": (PLACE, in_bin(IN, IN, speeds={"object/free": around(0.05)}), [5, None]),
    "touching the bin": (PLACE, in_bin(IN, IN, touching={"object_touches_bin": [1, 0]}), [5, None]),
    "let go in the bin": (
        PLACE,
        in_bin(IN, IN, IN, touching=fingers_on("object", [0, 1, 0], [0, 0, 1])),
        [5, None, None],
    ),
    "a hand 6 cm from the bin": (PLACE, in_bin(IN, IN, tcp=[(0.5, 0.25, z) for z in around(0.093)]), [None, 5]),
    "upright bin": (PLACE, in_bin(IN, IN, orientations={"bin/body": LEANING}), [5, None]),
    "3 cm from the middle of the disc": (DISC, pushed((0.03 - LITTLE, 0, 0), (0, -0.03 - LITTLE, 0)), [5, None]),
    "1 cm above the disc": (DISC, pushed(*((0, 0, height) for height in around(0.01))), [5, None]),
    "at rest on the disc": (DISC, pushed(THERE, THERE, speeds={"object/free": around(0.03)}), [5, None]),
    "upright on the disc": (DISC, pushed(THERE, THERE, orientations={"object/body": LEANING}), [5, None]),
    "shoved onto the disc, however it moves": (PushCube(PANDA), shoved(), [5, None]),
    "a button 13.5 mm down below the hand": (PressButton(PANDA), button(), [4, None, None]),
}
"""What is judged, on both sides of a limit, and after how many steps it is solved."""


@pytest.mark.parametrize(("task", "world", "solved"), RULES.values(), ids=RULES)
def test_a_task_is_solved_within_its_limits_for_its_steps(task, world, solved):
    assert first_success(task, world) == solved


def test_an_object_that_is_to_be_pushed_is_lost_when_it_is_lifted_by_3_cm_or_falls_over():
    world = pushed(*((0, 0, height) for height in around(0.03)), THERE, THERE)
    world.orientations["object/body"] = [(1, 0, 0, 0), (1, 0, 0, 0), *LEANING]
    task = PushToGoal(PANDA, CUBE)
    begin(task, world)
    assert judged(task, world).lost.tolist() == [False, True, False, True]


def test_the_reward_of_pushing_is_03_for_a_hand_that_is_near_07_for_the_goal_and_1_for_success():
    world = pushed((0.1, 0, 0), (0, 0, 0))
    world.places[TCP] = [(0.6, 0.2, 0.025), (0.5, 0.05, 0.025)]
    task = PushToGoal(PANDA, CUBE)
    begin(task, world)
    assert judged(task, world).reward.tolist() == pytest.approx([0.5, 0.24 + 0.7])
    assert judged(task, world, steps=4).reward.tolist() == pytest.approx([0.5, 1.94])


def test_the_reward_of_shoving_is_1_on_the_disc_less_what_strains_the_arm_and_1_for_success():
    world, task = pushed(THERE, THERE, THERE), PushCube(PANDA)
    world.orientations["robot/hand"] = [(0, 1, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0)]
    world.ctrl[1, 0] = 0.1
    begin(task, world)
    assert judged(task, world).reward.tolist() == pytest.approx([1.0, 0.95, 0.9 + 0.1 / 101])
    assert judged(task, world, steps=4).reward.tolist() == pytest.approx([2.0, 1.95, 1.9 + 0.1 / 101])


def test_a_tool_is_at_its_target_within_2_cm_for_five_steps():
    tools = [(0.5, 0, 0.3), (0.52 - LITTLE, 0, 0.3), (0.5, 0, 0.32 + LITTLE), (0.5, 0, 0.4)]
    world, task = StatedWorld(4, places={"target/body": (0.5, 0, 0.3), TCP: tools}), Reach(PANDA)
    assert first_success(task, world) == [5, 5, None, None]
    judgement = judged(task, world)
    assert judgement.reward.tolist() == pytest.approx([2.0, 1 + 1 / 1.04, 1 / 1.04, 0.5], abs=1e-5)
    assert judgement.metrics["final_distance_m"].tolist() == pytest.approx([0.0, 0.02, 0.02, 0.1], abs=1e-5)


def opened(joint: str, handle: str, way: list[list[float]], **touching: Any) -> tuple[StatedWorld, torch.Tensor]:
    """Return a world of one joint, and where it is from step to step. Shape: (num_steps, num_envs)."""
    steps = torch.tensor(way, dtype=torch.float64).T
    world = StatedWorld(len(way), places={TCP: FAR, handle: (0.5, 0, 0.2)}, joints={joint: steps[0].tolist()})
    world.sensors = touching
    return world, steps


def successes(task: Any, world: StatedWorld, steps: torch.Tensor, joint: str) -> list[int]:
    """Move the joint, and return in how many steps each env slot was solved."""
    begin(task, world)
    counts = torch.zeros(world.num_envs, dtype=torch.int64)
    for positions in steps[1:]:
        world.joints[joint] = positions.tolist()
        counts += judged(task, world).success
    return counts.tolist()


@pytest.mark.parametrize("finger", ["left", "right"])
def test_a_drawer_is_open_by_15_cm_for_three_steps_with_10_cm_of_it_pulled_by_a_finger(finger):
    way = [
        [0.0, 0.05, 0.1, 0.15 + LITTLE, 0.15 + LITTLE, 0.15 + LITTLE],
        [0.0, 0.05, 0.1, 0.15 - LITTLE, 0.15 - LITTLE, 0.15 - LITTLE],
        [0.06 - LITTLE, 0.11 - LITTLE, 0.16 - LITTLE, 0.16 - LITTLE, 0.16 - LITTLE, 0.16 - LITTLE],
        [0.06 + LITTLE, 0.11, 0.15, 0.15 + 2 * LITTLE, 0.15 + 2 * LITTLE, 0.15 + 2 * LITTLE],
        [0.0, 0.051, 0.1, 0.15, 0.15, 0.15],
        [0.0, 0.05, 0.1, 0.16, 0.16, 0.16],
    ]
    world, steps = opened("cabinet/slide", "cabinet/handle", way, **{f"{finger}_finger_touches_handle": True})
    # The third was open by 6 cm from the start and the fourth is pulled by less than 10; steps over 5 cm are jumps.
    assert successes(OpenDrawer(PANDA), world, steps, "cabinet/slide") == [1, 0, 2, 0, 0, 1]
    world.sensors = {}
    assert successes(OpenDrawer(PANDA), world, steps, "cabinet/slide") == [0] * 6


def test_a_drawer_is_shut_to_1_cm_for_five_steps_with_half_its_way_pushed_by_the_hand():
    way = [
        [0.16, 0.12, 0.08, 0.04, *[0.01 - LITTLE] * 5],
        [0.16, 0.12, 0.08, 0.04, *[0.01 + LITTLE] * 5],
        [0.16, 0.12, 0.08 - LITTLE, *[0.0] * 6],
        [0.16, 0.12, 0.08 + LITTLE, *[0.0] * 6],
        [0.16, 0.109, 0.079, *[0.0] * 6],
    ]
    world, steps = opened("cabinet/slide", "cabinet/handle", way, hand_touches_drawer=True)
    # The last 8 cm of the third and the fourth are one jump: what was pushed is half of the way, or not quite. In
    # the last one what would make it half is faster than 5 cm a step.
    assert successes(CloseDrawer(PANDA), world, steps, "cabinet/slide") == [1, 0, 2, 0, 0]


def test_a_door_is_open_by_1_rad_for_three_steps_with_06_rad_of_it_pulled_by_a_finger():
    way = [
        [0.0, 0.14, 0.28, 0.42, 0.56, 0.7, *[1.0 + LITTLE] * 3],
        [0.0, 0.14, 0.28, 0.42, 0.56, 0.7, *[1.0 - LITTLE] * 3],
        [0.0, 0.14, 0.28, 0.42, 0.56, 0.6 + LITTLE, *[1.2] * 3],
        [0.0, 0.14, 0.28, 0.42, 0.56, 0.6 - LITTLE, *[1.2] * 3],
        [0.0, 0.151, 0.28, 0.42, 0.56, 0.7, *[1.2] * 3],
    ]
    world, steps = opened("microwave/hinge", "microwave/handle", way, left_finger_touches_handle=True)
    assert successes(OpenMicrowave(PANDA), world, steps, "microwave/hinge") == [1, 0, 1, 0, 0]
