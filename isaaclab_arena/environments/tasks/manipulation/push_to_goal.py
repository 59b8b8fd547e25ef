"""Push an object over the table onto a marked disc, without lifting it."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, body_pose_terms, position_term
from isaaclab_arena.environments.mdp.task import Judgement, Task, draw_uniform, point, upright_pose
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.grasping import OBJECT_BODY, OBJECT_JOINT, object_part
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.math.rotation import norm
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ScenePart

TOLERANCE_M = 0.03
LIFTED_M = 0.03
HOLD_STEPS = 5
GOAL_BODY = "goal/body"

_AT_REST_M_S = 0.03
_ON_TABLE_M = 0.01
_LOW = (0.42, -0.20, -np.pi)
_HIGH = (0.55, -0.08, np.pi)
_GOAL_LOW = (0.42, 0.10)
_GOAL_HIGH = (0.55, 0.22)


@dataclass(frozen=True, kw_only=True)
class PushToGoalConfig(CameraOptions):
    """Options of ``push_to_goal``.

    Attributes:
        embodiment: Registered name of the robot.
        object: Registered name of the object.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    object: str = "cube"
    action_mode: ActionModeName = "joint_position"


class PushToGoal(Task):
    """Solved when the object stands at rest on the table, its centre within 3 cm of the disc's, for 0.25 s.

    Lost when the object falls off the table, falls over, or is lifted by more than 3 cm.
    """

    name = "push_to_goal"
    time_limit_s = 15.0

    def __init__(self, robot: Robot, thing: ObjectAsset, workspace: Workspace) -> None:
        self.robot = robot
        self.area = workspace.on_table(_LOW, _HIGH)
        self.goal_area = workspace.on_table(_GOAL_LOW, _GOAL_HIGH)
        self.thing = thing
        self.instruction = f"push the {thing.words} onto the yellow disc"
        self.parts = (object_part(thing), ScenePart(prefix="goal", asset="objects/disc.xml"))
        self.rigid_objects = {thing.name: OBJECT_JOINT}
        self.landmarks = {"object": OBJECT_BODY, "goal": GOAL_BODY}
        self.sizes = thing.sizes()

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        """Draw where the object stands, on the robot's right, and the disc, on its left."""
        x, y, yaw = draw_uniform(generator, *self.area)
        goal = draw_uniform(generator, *self.goal_area)
        return {
            f"{self.thing.name}.position": (x, y, self.thing.half_height),
            f"{self.thing.name}.yaw": yaw,
            "goal.position": (*goal, 0.0),
        }

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the object upright on the table, and the disc."""
        position, yaw = conditions[f"{self.thing.name}.position"], conditions[f"{self.thing.name}.yaw"]
        return StartState(
            joint_positions={OBJECT_JOINT: upright_pose(position, yaw)},
            mocap_positions={GOAL_BODY: point(conditions["goal.position"])},
        )

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the object's pose and the disc's place."""
        return {
            **body_pose_terms("object", OBJECT_BODY),
            "goal_pos": position_term(lambda backend: backend.body_position(GOAL_BODY)),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by where the object is on the table, how it stands, and its speed."""
        position, goal = backend.body_position(OBJECT_BODY), backend.body_position(GOAL_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        goal_distance = terms.horizontal_distance(position, goal)
        height = position[:, 2] - self.thing.half_height
        upright = terms.upright(backend.body_orientation(OBJECT_BODY))
        at_rest = norm(backend.free_velocity(OBJECT_JOINT)[:, :3]) < _AT_REST_M_S
        on_goal = (goal_distance < TOLERANCE_M) & (height.abs() < _ON_TABLE_M) & upright & at_rest
        self.held_steps = terms.count_while(on_goal, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        return Judgement(
            reward=0.3 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.7 * terms.closeness(goal_distance, half_at=0.1)
            + success,
            success=success,
            lost=terms.off_the_table(position) | ~upright | (height > LIFTED_M),
            metrics={"final_goal_distance_m": goal_distance},
        )


def _make_task(config: PushToGoalConfig, embodiment: Embodiment) -> PushToGoal:
    return PushToGoal(embodiment.robot, OBJECTS.get(config.object), embodiment.workspace)


PUSH_TO_GOAL = TableEnvironmentBuilder(config_class=PushToGoalConfig, make_task=_make_task)
