"""Put one cube on top of another and let go of it."""

import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts, approach
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.objects import CUBE
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

HOLD_STEPS = 10

_CUBE_M = 2 * CUBE.half_height
_BESIDE_M = 0.02
_HEIGHT_TOLERANCE_M = 0.006
_AWAY_M = 0.05
_TOUCH = "red_touches_blue"


class Stack(grasping.TwoCubesTask):
    """Solved when the red cube stands on the blue one, both at rest and no finger on or near it, for 0.5 s.

    Its centre is within 2 cm of straight above the other's. Lost when a cube falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        touch = ContactSensor(name=_TOUCH, body="red/body", other="blue/body")
        super().__init__(
            embodiment,
            name="stack",
            instruction="stack the red cube on the blue cube",
            paraphrases=(
                "please stack the red cube on the blue cube",
                "put the red cube on the blue cube",
                "place the red cube on top of the blue cube",
                "build a tower with the blue cube below and the red cube above",
                "build a tower, blue block below and red block above",
            ),
            time_limit_s=12.0,
            hold_steps=HOLD_STEPS,
            contact_sensors=(touch,),
            metrics=(Metric(name="final_beside_m", unit="m", better="lower"),),
        )

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        red, blue = backend.body_position("red/body"), backend.body_position("blue/body")
        beside = terms.horizontal_distance(red, blue)
        above = red[:, 2] - blue[:, 2]
        on_top = _on_top(backend)
        tcp_distance = grasping.tool_distance(backend, self.robot, "red")
        let_go = self._let_go(backend, tcp_distance)
        stands = on_top & grasping.at_rest(backend, "red") & grasping.at_rest(backend, "blue")
        success = self.held(stands & let_go, running)
        held = grasping.grasped(backend, self.robot, "red", tcp_distance)
        # A cube that is already on top keeps the reward of the grasp, so that a release costs nothing.
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | on_top)
            + 0.4 * (held | on_top) * terms.closeness(beside, half_at=0.1)
            + 0.2 * (stands & let_go)
            + success
        )
        lost = terms.off_the_table(red) | terms.off_the_table(blue)
        metrics = {"final_beside_m": beside, "final_above_m": above}
        return Verdict(reward=reward, success=success, lost=lost, metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        rests = grasping.at_rest(state, "red") & grasping.at_rest(state, "blue")
        return _on_top(state) & rests & self._let_go(state, grasping.tool_distance(state, self.robot, "red"))

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        red, blue = (grasping.GraspFacts(moments, self.robot, CUBE, colour) for colour in ("red", "blue"))
        beside, above = terms.horizontal_distance(red.position, blue.position), red.height_m - blue.height_m
        on_top = _on_top(moments)
        rests = grasping.at_rest(moments, "red") & grasping.at_rest(moments, "blue")
        return red.then(
            red.carried * approach(beside, _BESIDE_M),
            on_top,
            placed=on_top,
            delivered=on_top,
            wrong_object=blue.carried,
            other_m=blue.hand_m,
            wrong_order=(beside < _BESIDE_M) & (above < -_CUBE_M + _HEIGHT_TOLERANCE_M) & moments.touching(_TOUCH),
            off_table=red.off_table | blue.off_table,
            met=on_top & rests & self._let_go(moments, red.hand_m),
            nearly=_on_top(moments, tolerance=2.0),
        )

    def _let_go(self, state: NamedState, tcp_distance: torch.Tensor) -> torch.Tensor:
        """True where no finger is on or near the cubes. Shape: (num_envs,), bool."""
        return ~grasping.touched(state, "red") & ~grasping.touched(state, "blue") & (tcp_distance > _AWAY_M)


def _on_top(state: NamedState, tolerance: float = 1.0) -> torch.Tensor:
    """True where the red cube stands on the blue one, within ``tolerance`` times the limits. Shape: (num_envs,)."""
    red, blue = state.body_position("red/body"), state.body_position("blue/body")
    is_above = terms.horizontal_distance(red, blue) < tolerance * _BESIDE_M
    is_above &= (red[:, 2] - blue[:, 2] - _CUBE_M).abs() < tolerance * _HEIGHT_TOLERANCE_M
    return is_above & state.touching(_TOUCH) & terms.upright(state.body_orientation("blue/body"))


STACK = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: Stack(embodiment))
