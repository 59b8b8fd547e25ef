"""Define the common parts of tasks with a red cube beside a blue one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from isaaclab_arena.environments.mdp.conditions import draw_uniform
from isaaclab_arena.environments.mdp.task import Task, TaskSpec
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.objects import BLUE_CUBE, CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.manipulation.grasping import finger_sensors, object_thing, refuse_too_wide
from isaaclab_arena.interfaces.episode import ConditionValue
from isaaclab_arena.sim.scene.scene import ContactSensor

COLOURS = ("red", "blue")
CUBES = tuple(
    object_thing(cube, prefix=colour, called=f"{colour}_cube", observed_as=f"{colour}_cube")
    for colour, cube in zip(COLOURS, (CUBE, BLUE_CUBE), strict=True)
)

_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.10, -np.pi), (0.58, -0.07, np.pi)
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.07, -np.pi), (0.58, 0.10, np.pi)


class TwoCubesTask(Task):
    """A task with two cubes: ``red`` and ``blue``, called ``red_cube`` and ``blue_cube`` in conditions and recordings.

    Args:
        embodiment: The robot.
        things: What else stands in the scene.
        contact_sensors: Contacts that it wants to know of, besides those of the fingers with each cube.
        sizes: Lengths that a scripted policy needs besides those of the cubes [m].
        words_and_limits: Name, instruction, time limit and hold steps of the `TaskSpec`.

    Raises:
        ConfigError: If the gripper cannot take a cube.
    """

    def __init__(
        self,
        embodiment: Embodiment,
        *,
        things: tuple[SceneObject, ...] = (),
        contact_sensors: tuple[ContactSensor, ...] = (),
        sizes: Mapping[str, float] | None = None,
        **words_and_limits: Any,
    ) -> None:
        refuse_too_wide(CUBE, embodiment.robot)
        fingers = (sensor for colour in COLOURS for sensor in finger_sensors(embodiment.robot, colour))
        super().__init__(
            TaskSpec(
                things=(*CUBES, *things),
                contact_sensors=(*fingers, *contact_sensors),
                sizes={**CUBE.sizes(), **(sizes or {})},
                **words_and_limits,
            )
        )
        self.robot = embodiment.robot
        self.right = embodiment.workspace.on_table(_RIGHT_LOW, _RIGHT_HIGH)
        self.left = embodiment.workspace.on_table(_LEFT_LOW, _LEFT_HIGH)

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cubes stand, either one on either side, and then everything else."""
        places = [draw_uniform(generator, *self.right), draw_uniform(generator, *self.left)]
        if generator.uniform() < 0.5:
            places.reverse()
        conditions: dict[str, ConditionValue] = {}
        for cube, (x, y, yaw) in zip(CUBES, places, strict=True):
            conditions |= cube.placed(x, y, yaw)
        return {**conditions, **super().draw_conditions(generator)}
