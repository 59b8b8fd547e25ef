"""Put one cube on top of another and let go of it."""

import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder, TableOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Judgement
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.manipulation.grasping import (
    at_rest,
    grasped,
    tool_distance,
    touched,
)
from isaaclab_arena.environments.tasks.manipulation.two_cubes import TwoCubesTask
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.scene.scene import ContactSensor

HOLD_STEPS = 10

_CUBE_M = 2 * CUBE.half_height
_BESIDE_M = 0.02
_HEIGHT_TOLERANCE_M = 0.006
_AWAY_M = 0.05
_TOUCH = "red_touches_blue"


class Stack(TwoCubesTask):
    """Solved when the red cube stands on the blue one, both at rest and no finger on or near it, for 0.5 s.

    Its centre is within 2 cm of straight above the other's. Lost when a cube falls off the table.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        touch = ContactSensor(name=_TOUCH, body="red/body", other="blue/body")
        super().__init__(
            embodiment,
            name="stack",
            instruction="stack the red cube on the blue cube",
            time_limit_s=12.0,
            hold_steps=HOLD_STEPS,
            contact_sensors=(touch,),
        )

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by where the red cube is above the blue one, how both stand, their speeds, and the fingers."""
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        beside = terms.horizontal_distance(red, blue)
        above = red[:, 2] - blue[:, 2]
        on_top = (beside < _BESIDE_M) & ((above - _CUBE_M).abs() < _HEIGHT_TOLERANCE_M) & backend.touching(_TOUCH)
        on_top &= terms.upright(backend.body_orientation("blue/body"))
        tcp_distance = tool_distance(backend, self.robot, "red")
        let_go = ~touched(backend, "red") & ~touched(backend, "blue") & (tcp_distance > _AWAY_M)
        stands = on_top & at_rest(backend, "red") & at_rest(backend, "blue")
        success = self.held(stands & let_go, running)
        held = grasped(backend, self.robot, "red")
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | on_top)
            + 0.4 * (held | on_top) * terms.closeness(beside, half_at=0.1)
            + 0.2 * (stands & let_go)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=terms.off_the_table(red) | terms.off_the_table(blue),
            metrics={"final_beside_m": beside, "final_above_m": above},
        )


STACK = TableEnvironmentBuilder(
    config_class=TableOptions,
    make_task=lambda _, embodiment: Stack(embodiment),
)
