"""Sort two cubes into two bins, by their colour."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, body_pose_terms
from isaaclab_arena.environments.mdp.task import Judgement, Task, draw_uniform, upright_pose
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.bins import BIN_FLOOR_M, BIN_RIM_M, inside_bin
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    at_rest,
    grasped,
    refuse_too_wide,
    tool_distance,
    touched,
)
from isaaclab_arena.environments.tasks.manipulation.two_cubes import TwoCubes
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ScenePart

HOLD_STEPS = 5

_BIN_OF = {"red": "left_bin", "blue": "right_bin"}
_AWAY_M = 0.06
_BIN_OUTSIDE_M = 0.108
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.27, -0.1), (0.52, 0.30, 0.1)
_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.30, -0.1), (0.52, -0.27, 0.1)


@dataclass(frozen=True, kw_only=True)
class SortTwoConfig(CameraOptions):
    """Options of ``sort_two``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class SortTwo(Task):
    """Solved when the red cube rests in the left bin and the blue one in the right, and both are let go, for 0.25 s.

    Left is the robot's left. ``progress`` is the share of the cubes that are where they belong, let go. Lost when a
    cube or a bin falls off the table.
    """

    name = "sort_two"
    instruction = "put the red cube into the left bin and the blue cube into the right bin"
    time_limit_s = 20.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        self.robot = robot
        self.cubes = TwoCubes(workspace)
        self.bin_areas = {
            "left_bin": workspace.on_table(_LEFT_LOW, _LEFT_HIGH),
            "right_bin": workspace.on_table(_RIGHT_LOW, _RIGHT_HIGH),
        }
        self.parts = (
            *self.cubes.parts,
            ScenePart(prefix="left_bin", asset="objects/bin.xml", position=(0.5, 0.28, 0.0)),
            ScenePart(prefix="right_bin", asset="objects/bin.xml", position=(0.5, -0.28, 0.0)),
        )
        self.contact_sensors = self.cubes.finger_sensors(robot)
        self.rigid_objects = {
            **self.cubes.rigid_objects,
            "left_bin": "left_bin/free",
            "right_bin": "right_bin/free",
        }
        self.landmarks = {
            **self.cubes.landmarks,
            "left_bin": "left_bin/body",
            "right_bin": "right_bin/body",
        }
        self.sizes = {**CUBE.sizes(), "bin_floor": BIN_FLOOR_M, "bin_rim": BIN_RIM_M}

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cubes stand, and the bins on both sides of them."""
        conditions = self.cubes.draw(generator)
        for name, area in self.bin_areas.items():
            x, y, yaw = draw_uniform(generator, *area)
            conditions[f"{name}.position"] = (x, y, 0.0)
            conditions[f"{name}.yaw"] = yaw
        return conditions

    def start_state(self, conditions: Conditions) -> StartState:
        """Return cubes and bins, upright on the table."""
        bins = {
            f"{name}/free": upright_pose(conditions[f"{name}.position"], conditions[f"{name}.yaw"])
            for name in self.bin_areas
        }
        return StartState(joint_positions={**self.cubes.joint_positions(conditions), **bins})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the poses of cubes and bins."""
        return {
            **self.cubes.observation_terms(),
            **body_pose_terms("left_bin", "left_bin/body"),
            **body_pose_terms("right_bin", "right_bin/body"),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge each cube by where it is in its bin, its speed, and the fingers."""
        sorted_in = {colour: self._is_sorted(backend, colour) for colour in _BIN_OF}
        self.held_steps = terms.count_while(sorted_in["red"] & sorted_in["blue"], self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        things = ("red/body", "blue/body", "left_bin/body", "right_bin/body")
        off = torch.stack([terms.off_the_table(backend.body_position(body)) for body in things])
        reward = 0.5 * (self._reward(backend, "red", sorted_in) + self._reward(backend, "blue", sorted_in)) + success
        done = {f"progress.{colour}_in_{place}": sorted_in[colour].double() for colour, place in _BIN_OF.items()}
        return Judgement(
            reward=reward,
            success=success,
            lost=off.any(dim=0),
            metrics={"progress": sum(done.values(), torch.zeros_like(reward)) / len(done), **done},
        )

    def _is_sorted(self, backend: Backend, colour: str) -> torch.Tensor:
        body = f"{colour}/body"
        inside = inside_bin(backend, body, f"{_BIN_OF[colour]}/body", half_height=CUBE.half_height)
        let_go = ~touched(backend, colour) & (tool_distance(backend, self.robot, colour) > _AWAY_M)
        return inside & at_rest(backend, colour) & let_go

    def _reward(self, backend: Backend, colour: str, sorted_in: dict[str, torch.Tensor]) -> torch.Tensor:
        position, place = backend.body_position(f"{colour}/body"), backend.body_position(f"{_BIN_OF[colour]}/body")
        near = terms.closeness(tool_distance(backend, self.robot, colour), half_at=0.1)
        held = grasped(backend, self.robot, colour)
        on_the_way = 0.2 * near + held * (0.2 + 0.4 * terms.closeness(terms.distance(position, place), half_at=0.15))
        return torch.where(sorted_in[colour], 1.0, on_the_way)


def _make_task(config: SortTwoConfig, embodiment: Embodiment) -> SortTwo:
    del config
    refuse_too_wide(CUBE, embodiment.robot)
    task = SortTwo(embodiment.robot, embodiment.workspace)
    cubes_end, bins_begin = task.cubes.left[1][1], task.bin_areas["left_bin"][0][1]
    if bins_begin - cubes_end < _BIN_OUTSIDE_M + CUBE.footprint_radius:
        message = f"the table of '{embodiment.robot.name}' is too small for two cubes between two bins"
        raise ConfigError(Problem(message, key="embodiment"))
    return task


SORT_TWO = TableEnvironmentBuilder(config_class=SortTwoConfig, make_task=_make_task)
