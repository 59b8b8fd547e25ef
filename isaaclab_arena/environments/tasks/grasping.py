"""Reach a marker, lift an object, put it into a bin, and the common parts of tasks in which objects are grasped."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableTask
from isaaclab_arena.environments.catalog import OBJECTS, ObjectAsset
from isaaclab_arena.environments.events import Facts, approach, arm_facts, strayed
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Area, Embodiment
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.math import norm, rotate_inverse
from isaaclab_arena.sim.scene import ContactSensor, Robot

OBJECT_BODY = "object/body"
OBJECT_JOINT = "object/free"

CARRIED_M = 0.02
REACH_M = 0.08
NEARLY = 0.8

_REACH_OF_GRASP_M = 0.10
_AT_REST_M_S = 0.05


def object_thing(
    thing: ObjectAsset, *, prefix: str = "object", called: str = "", area: Area | None = None, observed_as: str = ""
) -> SceneObject:
    """Return an object on the table as a thing of a task's scene; see `SceneObject`."""
    return SceneObject(
        prefix=prefix,
        asset=thing.asset,
        position=(0.5, 0.0, thing.half_height),
        called=called or thing.name,
        area=area,
        loose=True,
        observed_as=observed_as or prefix,
    )


def finger_sensors(robot: Robot, prefix: str = "object") -> tuple[ContactSensor, ...]:
    """Return the contact sensors of the left and the right finger with an object."""
    return tuple(
        ContactSensor(name=_touch(side, prefix), body=finger, other=f"{prefix}/body")
        for side, finger in zip(("left", "right"), robot.fingers, strict=True)
    )


def touched(backend: NamedState, prefix: str = "object") -> torch.Tensor:
    """True where any finger touches an object. Shape: (num_envs,), bool."""
    return backend.touching(_touch("left", prefix)) | backend.touching(_touch("right", prefix))


def grasped(
    backend: NamedState, robot: Robot, prefix: str = "object", distance: torch.Tensor | None = None
) -> torch.Tensor:
    """True where both fingers touch an object at the fingertips; ``distance`` saves `tool_distance`. (num_envs,)."""
    both = backend.touching(_touch("left", prefix)) & backend.touching(_touch("right", prefix))
    return both & ((tool_distance(backend, robot, prefix) if distance is None else distance) < _REACH_OF_GRASP_M)


def tool_distance(backend: NamedState, robot: Robot, prefix: str = "object") -> torch.Tensor:
    """Return the distance from the tool centre point to a thing's centre [m]. Shape: (num_envs,)."""
    return terms.distance(backend.site_position(robot.tcp_site), backend.body_position(f"{prefix}/body"))


class ObjectTask(Task):
    """A task with one object of the user's choice, called ``object`` in the scene."""

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset, area: Area, spec: TaskSpec) -> None:
        # ``area`` is that of the object's starts on the reference table. ``spec`` lacks the object.
        placed = object_thing(thing, area=embodiment.workspace.on_table(*area))
        super().__init__(replace(spec, things=(placed, *spec.things), sizes={**thing.sizes(), **spec.sizes}))
        self.robot, self.thing = embodiment.robot, thing


class GraspFacts:
    """The hand's facts with one object in each moment of an episode, each (moments,); see `Facts`."""

    def __init__(self, moments: NamedState, robot: Robot, thing: ObjectAsset, prefix: str = "object") -> None:
        self.moments, self.robot = moments, robot
        self.position = moments.body_position(f"{prefix}/body")  # of the object's centre [m], (moments, 3)
        self.height_m = self.position[:, 2] - thing.half_height  # above its rest on the table [m]
        self.hand_m = tool_distance(moments, robot, prefix)  # from the tool centre point to its centre [m]
        self.reach_m = thing.half_height + REACH_M  # distance of the hand at which it is reached [m]
        self.held = grasped(moments, robot, prefix)  # between the fingers, bool
        self.carried = self.held & (self.height_m > CARRIED_M)  # held above the table, bool
        self.off_table = terms.off_the_table(self.position)

    def then(self, *stages: torch.Tensor, placed: torch.Tensor | bool = False, **more: Any) -> Facts:
        """Return the facts of a grasp, and of further stages; ``more`` adds facts or replaces some."""
        # An object that lies where it is to be (``placed``) does not stray.
        common: dict[str, Any] = {
            "stages": (approach(self.hand_m, self.reach_m), self.held, *stages),
            "arm": arm_facts(self.moments, self.robot),
            "taken": self.held,
            "strayed_m": strayed(self.position, self.held | placed),
            **{name: getattr(self, name) for name in ("hand_m", "reach_m", "carried", "off_table")},
        }
        return Facts(**{**common, **more})


def at_rest(backend: NamedState, prefix: str = "object") -> torch.Tensor:
    """True where an object moves more slowly than 5 cm/s. Shape: (num_envs,), bool."""
    return norm(backend.free_velocity(f"{prefix}/free")[:, :3]) < _AT_REST_M_S


def refuse_too_wide(thing: ObjectAsset, robot: Robot) -> None:
    """Raise ConfigError for an object wider than the open gripper less a clearance, or without a gripper."""
    _ = robot.fingers  # raises without a gripper
    width, widest = thing.grasp_width, robot.gripper_width - 0.008
    if width > widest:
        takes = f"the gripper of '{robot.name}' takes at most {widest:.3f} m"
        raise ConfigError(Problem(f"object '{thing.name}' is {width:.3f} m wide, but {takes}", key="object"))


def _touch(finger: str, prefix: str) -> str:
    return f"{finger}_finger_touches_{prefix}"


# Define the bin of ``objects/bin.xml``, and the condition of an object inside it.

BIN_INSIDE_M = 0.09
BIN_FLOOR_M = 0.008
BIN_SIZES: Mapping[str, float] = {"bin_floor": BIN_FLOOR_M, "bin_rim": 0.07}


def bin_thing(prefix: str, *, y: float, area: Area) -> SceneObject:
    """Return a bin that starts in an area of the table; the scene is compiled with it at ``y`` [m]."""
    return SceneObject(
        prefix=prefix, asset="objects/bin.xml", position=(0.5, y, 0.0), area=area, loose=True, observed_as=prefix
    )


def inside_bin(backend: NamedState, body: str, bin_body: str, *, half_height: float) -> torch.Tensor:
    """True where a body lies in an upright bin, not above its floor's level. Shape: (num_envs,), bool."""
    orientation = backend.body_orientation(bin_body)
    local = rotate_inverse(orientation, backend.body_position(body) - backend.body_position(bin_body))
    highest = BIN_FLOOR_M + half_height + 0.02  # 2 cm of tolerance [m]
    in_bin = terms.inside_box(local, (-BIN_INSIDE_M, -BIN_INSIDE_M, 0.0), (BIN_INSIDE_M, BIN_INSIDE_M, highest))
    return in_bin & terms.upright(orientation)


REACHED_M = 0.02
REACHED_STEPS = 5


class Reach(Task):
    """Solved when the tool centre point stays within 2 cm of the target for 0.25 s."""

    moment_fields = ("qpos", "ctrl", "site_xpos")
    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        area = embodiment.workspace.in_space((0.35, -0.25, 0.10), (0.60, 0.25, 0.45))
        spec = TaskSpec(
            name="reach",
            instruction="move the gripper to the green marker",
            paraphrases=(
                "please move the gripper to the green marker",
                "bring the gripper to the green marker",
                "take your gripper to where the green marker is",
                "your fingers should be at the green ball",
                "reach out and touch that green ball",
            ),
            time_limit_s=6.0,
            hold_steps=REACHED_STEPS,
            things=(SceneObject(prefix="target", asset="objects/target.xml", area=area, observed_as="target"),),
            metrics=(Metric(name="final_distance_m", unit="m", better="lower"),),
        )
        super().__init__(spec)
        self.robot = embodiment.robot

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        distance = tool_distance(backend, self.robot, "target")
        success = self.held(distance < REACHED_M, running)
        reward = terms.closeness(distance, half_at=0.1) + success
        metrics = {"final_distance_m": distance}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return tool_distance(state, self.robot, "target") < REACHED_M

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        distance = tool_distance(moments, self.robot, "target")
        met = distance < REACHED_M
        return Facts(
            stages=(approach(distance, REACHED_M),),
            arm=arm_facts(moments, self.robot),
            hand_m=distance,
            reach_m=REACH_M,
            taken=met,
            met=met,
            nearly=distance < 2 * REACHED_M,
        )


REACH = TableTask(make_task=lambda _, robot: Reach(robot), words="Bring the tool centre point to a marked position.")


LIFT_HEIGHT_M = 0.10
LIFTED_STEPS = 10


class LiftObject(ObjectTask):
    """Solved when the object is 0.1 m above its resting height, held between both fingers, for 0.5 s without a break.

    Lost when the object falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        refuse_too_wide(thing, embodiment.robot)
        spec = TaskSpec(
            name="lift_object",
            instruction=f"pick up the {thing.words} and lift it",
            paraphrases=(
                f"please pick up the {thing.words} and lift it",
                f"pick the {thing.words} up and raise it",
                f"grab the {thing.words} and raise it above the table",
                f"get hold of the {thing.words} so that it is in the air",
                f"the {thing.words} should hang in your gripper, well above where it stands now",
            ),
            time_limit_s=8.0,
            hold_steps=LIFTED_STEPS,
            contact_sensors=finger_sensors(embodiment.robot),
            metrics=(
                Metric(name="final_height_m", unit="m", better="higher"),
                Metric(name="final_distance_m", unit="m", better="lower"),
            ),
        )
        super().__init__(embodiment, thing, ((0.40, -0.20, -np.pi), (0.60, 0.20, np.pi)), spec)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position = backend.body_position(OBJECT_BODY)
        distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        height = position[:, 2] - self.thing.half_height
        held = grasped(backend, self.robot, distance=distance)
        success = self.held(held & (height >= LIFT_HEIGHT_M), running)
        raised = held * terms.progress(height, start=0.0, goal=LIFT_HEIGHT_M)
        reward = 0.3 * terms.closeness(distance, half_at=0.1) + 0.2 * held + 0.5 * raised + success
        metrics = {"final_height_m": height, "final_distance_m": distance}
        return Verdict(reward=reward, success=success, lost=terms.off_the_table(position), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        height = state.body_position(OBJECT_BODY)[:, 2] - self.thing.half_height
        return grasped(state, self.robot) & (height >= LIFT_HEIGHT_M)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        grasp = GraspFacts(moments, self.robot, self.thing)
        raised = grasp.held * terms.progress(grasp.height_m, start=0.0, goal=LIFT_HEIGHT_M)
        met = grasp.held & (grasp.height_m >= LIFT_HEIGHT_M)
        return grasp.then(raised, met=met, nearly=grasp.held & (grasp.height_m >= NEARLY * LIFT_HEIGHT_M))


LIFT_OBJECT = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: LiftObject(embodiment, OBJECTS.get(options.object)),
    words="Pick an object up from the table and hold it in the air.",
)


_BIN_BODY = "bin/body"
_BIN_TOUCH = "object_touches_bin"
_AWAY_M = 0.06


class PickAndPlace(ObjectTask):
    """Solved when the object rests on the floor of the upright bin, and no finger is on or near it, for 0.25 s.

    Lost when the object or the bin falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        refuse_too_wide(thing, embodiment.robot)
        if thing.footprint_radius > BIN_INSIDE_M:
            too_wide = f"{2 * thing.footprint_radius:.2f} m across and does not fit into the bin"
            message = f"object '{thing.name}' is {too_wide}, which is {2 * BIN_INSIDE_M:.2f} m wide inside"
            raise ConfigError(Problem(message, key="object"))
        bin_area = embodiment.workspace.on_table((0.42, 0.20, -0.15), (0.56, 0.27, 0.15))
        spec = TaskSpec(
            name="pick_and_place",
            instruction=f"put the {thing.words} into the blue bin",
            paraphrases=(
                f"please put the {thing.words} into the blue bin",
                f"place the {thing.words} in the blue bin",
                f"the {thing.words} belongs in the blue bin, so take it there",
                f"move the {thing.words} over to the blue bin and drop it there",
                f"make sure that the blue container is where the {thing.words} ends up",
            ),
            time_limit_s=12.0,
            hold_steps=5,
            things=(bin_thing("bin", y=0.25, area=bin_area),),
            contact_sensors=(
                *finger_sensors(embodiment.robot),
                ContactSensor(name=_BIN_TOUCH, body=OBJECT_BODY, other=_BIN_BODY),
            ),
            sizes=BIN_SIZES,
            metrics=(Metric(name="final_bin_distance_m", unit="m", better="lower"),),
        )
        super().__init__(embodiment, thing, ((0.42, -0.22, -np.pi), (0.58, -0.03, np.pi)), spec)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position, bin_position = backend.body_position(OBJECT_BODY), backend.body_position(_BIN_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        inside = inside_bin(backend, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~touched(backend) & (tcp_distance > _AWAY_M)
        success = self.held(_placed(backend, inside, let_go), running)
        bin_distance = terms.distance(position, bin_position)
        held = grasped(backend, self.robot, distance=tcp_distance)
        # An object inside the bin keeps the reward of the grasp, so that a release costs nothing.
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | inside)
            + 0.4 * (held | inside) * terms.closeness(bin_distance, half_at=0.15)
            + 0.2 * (inside & let_go)
            + success
        )
        lost = terms.off_the_table(position) | terms.off_the_table(bin_position)
        return Verdict(reward=reward, success=success, lost=lost, metrics={"final_bin_distance_m": bin_distance})

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        inside = inside_bin(state, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        return _placed(state, inside, ~touched(state) & (tool_distance(state, self.robot) > _AWAY_M))

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        grasp = GraspFacts(moments, self.robot, self.thing)
        inside = inside_bin(moments, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        bin_position = moments.body_position(_BIN_BODY)
        bin_distance = terms.horizontal_distance(grasp.position, bin_position)
        brought = grasp.carried * approach(bin_distance, BIN_INSIDE_M)
        return grasp.then(
            brought,
            inside,
            placed=inside,
            delivered=inside,
            off_table=grasp.off_table | terms.off_the_table(bin_position),
            met=_placed(moments, inside, ~touched(moments) & (grasp.hand_m > _AWAY_M)),
            nearly=inside,
        )


def _placed(state: NamedState, inside: torch.Tensor, let_go: torch.Tensor) -> torch.Tensor:
    """True where the object rests in the bin, released. Shape: (num_envs,), bool."""
    return inside & at_rest(state) & state.touching(_BIN_TOUCH) & let_go


PICK_AND_PLACE = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: PickAndPlace(embodiment, OBJECTS.get(options.object)),
    words="Put an object into a bin and let go of it.",
)
