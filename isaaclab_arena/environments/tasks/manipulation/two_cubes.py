"""What tasks share in which a red cube and a blue one stand side by side."""

import numpy as np

from isaaclab_arena.environments.mdp.observations import ObservationTerm, body_pose_terms
from isaaclab_arena.environments.mdp.task import draw_uniform, upright_pose
from isaaclab_arena.environments.objects import BLUE_CUBE, CUBE
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.grasping import finger_sensors, object_part
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

COLOURS = ("red", "blue")

_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.10, -np.pi), (0.58, -0.07, np.pi)
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.07, -np.pi), (0.58, 0.10, np.pi)


class TwoCubes:
    """The two cubes: parts ``red`` and ``blue``, called ``red_cube`` and ``blue_cube`` in conditions and recordings.

    Args:
        workspace: Where the robot works.
    """

    parts: tuple[ScenePart, ...] = (object_part(CUBE, "red"), object_part(BLUE_CUBE, "blue"))

    def __init__(self, workspace: Workspace) -> None:
        self.right = workspace.on_table(_RIGHT_LOW, _RIGHT_HIGH)
        self.left = workspace.on_table(_LEFT_LOW, _LEFT_HIGH)
        self.rigid_objects = {"red_cube": "red/free", "blue_cube": "blue/free"}
        self.landmarks = {"red": "red/body", "blue": "blue/body"}

    def finger_sensors(self, robot: Robot) -> tuple[ContactSensor, ...]:
        """Return the sensors that tell whether each finger touches each cube."""
        return (*finger_sensors(robot, "red"), *finger_sensors(robot, "blue"))

    def draw(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cubes stand, either one on either side."""
        places = [draw_uniform(generator, *self.right), draw_uniform(generator, *self.left)]
        if generator.uniform() < 0.5:
            places.reverse()
        conditions: dict[str, ConditionValue] = {}
        for colour, (x, y, yaw) in zip(COLOURS, places, strict=True):
            conditions[f"{colour}_cube.position"] = (x, y, CUBE.half_height)
            conditions[f"{colour}_cube.yaw"] = yaw
        return conditions

    def joint_positions(self, conditions: Conditions) -> dict[str, tuple[float, ...]]:
        """Return the cubes, upright on the table."""
        return {
            f"{colour}/free": upright_pose(conditions[f"{colour}_cube.position"], conditions[f"{colour}_cube.yaw"])
            for colour in COLOURS
        }

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the poses of both cubes."""
        return {**body_pose_terms("red_cube", "red/body"), **body_pose_terms("blue_cube", "blue/body")}
