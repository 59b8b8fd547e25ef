"""Sort two cubes into two bins, by their colour."""

import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder, TableOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Judgement
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.manipulation.bins import BIN_SIZES, bin_thing, inside_bin
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    at_rest,
    grasped,
    tool_distance,
    touched,
)
from isaaclab_arena.environments.tasks.manipulation.two_cubes import TwoCubesTask
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.sim.backend import Backend

HOLD_STEPS = 5

_BIN_OF = {"red": "left_bin", "blue": "right_bin"}
_AWAY_M = 0.06
_BIN_OUTSIDE_M = 0.108
_LEFT_LOW, _LEFT_HIGH = (0.42, 0.27, -0.1), (0.52, 0.30, 0.1)
_RIGHT_LOW, _RIGHT_HIGH = (0.42, -0.30, -0.1), (0.52, -0.27, 0.1)


class SortTwo(TwoCubesTask):
    """Solved when the red cube rests in the left bin and the blue one in the right, and both are let go, for 0.25 s.

    Left is the robot's left. ``progress`` is the share of the cubes that are where they belong, let go. Lost when a
    cube or a bin falls off the table.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        on_table = embodiment.workspace.on_table
        left_area = on_table(_LEFT_LOW, _LEFT_HIGH)
        super().__init__(
            embodiment,
            name="sort_two",
            instruction="put the red cube into the left bin and the blue cube into the right bin",
            time_limit_s=20.0,
            hold_steps=HOLD_STEPS,
            things=(
                bin_thing("left_bin", y=0.28, area=left_area),
                bin_thing("right_bin", y=-0.28, area=on_table(_RIGHT_LOW, _RIGHT_HIGH)),
            ),
            sizes=BIN_SIZES,
        )
        cubes_end, bins_begin = self.left[1][1], left_area[0][1]
        if bins_begin - cubes_end < _BIN_OUTSIDE_M + CUBE.footprint_radius:
            message = f"the table of '{embodiment.robot.name}' is too small for two cubes between two bins"
            raise ConfigError(Problem(message, key="embodiment"))

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge each cube by where it is in its bin, its speed, and the fingers."""
        sorted_in = {colour: self._is_sorted(backend, colour) for colour in _BIN_OF}
        success = self.held(sorted_in["red"] & sorted_in["blue"], running)
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


SORT_TWO = TableEnvironmentBuilder(
    config_class=TableOptions,
    make_task=lambda _, embodiment: SortTwo(embodiment),
)
