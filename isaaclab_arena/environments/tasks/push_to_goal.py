"""Push an object over the table onto a marked disc, without lifting it."""

from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableTask
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import OBJECT_BODY, OBJECT_JOINT, REACH_M, ObjectTask
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.math import norm

TOLERANCE_M = 0.03
LIFTED_M = 0.03
HOLD_STEPS = 5
GOAL_BODY = "goal/body"

_AT_REST_M_S = 0.03
_ON_TABLE_M = 0.01
_PUSHED_M = 0.01
_AREA = ((0.42, -0.20, -np.pi), (0.55, -0.08, np.pi))
_GOAL_AREA = ((0.42, 0.10), (0.55, 0.22))


class PushToGoal(ObjectTask):
    """Solved when the object stands at rest on the table, its centre within 3 cm of the disc's, for 0.25 s.

    Lost when the object falls off the table, falls over, or is lifted by more than 3 cm.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        area = embodiment.workspace.on_table(*_GOAL_AREA)
        super().__init__(
            embodiment,
            thing,
            _AREA,
            name="push_to_goal",
            instruction=f"push the {thing.words} onto the yellow disc",
            paraphrases=(
                f"please push the {thing.words} onto the yellow disc",
                f"slide the {thing.words} onto the yellow disc",
                f"shove the {thing.words} over to the yellow circle",
                f"move the {thing.words} along the table until it covers the yellow circle",
                f"without lifting it, bring the {thing.words} to where that round yellow spot is",
            ),
            time_limit_s=15.0,
            hold_steps=HOLD_STEPS,
            metrics=(Metric(name="final_goal_distance_m", unit="m", better="lower"),),
            things=(SceneObject(prefix="goal", asset="objects/disc.xml", area=area, observed_as="goal"),),
        )

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position, goal = backend.body_position(OBJECT_BODY), backend.body_position(GOAL_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        goal_distance = terms.horizontal_distance(position, goal)
        height = position[:, 2] - self.thing.half_height
        upright = terms.upright(backend.body_orientation(OBJECT_BODY))
        on_goal = self._stands(backend) & (goal_distance < TOLERANCE_M)
        success = self.held(on_goal, running)
        reward = (
            0.3 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.7 * terms.closeness(goal_distance, half_at=0.1)
            + success
        )
        lost = terms.off_the_table(position) | ~upright | (height > LIFTED_M)
        metrics = {"final_goal_distance_m": goal_distance}
        return Verdict(reward=reward, success=success, lost=lost, metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        distance = terms.horizontal_distance(state.body_position(OBJECT_BODY), state.body_position(GOAL_BODY))
        return self._stands(state) & (distance < TOLERANCE_M)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        upright = terms.upright(moments.body_orientation(OBJECT_BODY))
        stands = self._stands(moments)
        facts = self._push_facts(moments, tolerance_m=TOLERANCE_M, upright=upright, stands=stands)
        return replace(facts, lifted=self._height_m(moments) > LIFTED_M)

    def _push_facts(
        self, moments: NamedState, *, tolerance_m: float, upright: torch.Tensor, stands: torch.Tensor
    ) -> Facts:
        """Return the facts of a push to within ``tolerance_m`` [m] of the disc's middle; masks are (moments,), bool."""
        position, goal = moments.body_position(OBJECT_BODY), moments.body_position(GOAL_BODY)
        distance = terms.horizontal_distance(position, goal)
        hand_m = terms.distance(moments.site_position(self.robot.tcp_site), position)
        reach_m = self.thing.footprint_radius + REACH_M
        pushed = terms.horizontal_distance(position, position[:1].expand_as(position)) > _PUSHED_M
        return Facts(
            stages=(approach(hand_m, reach_m), pushed * approach(distance, tolerance_m)),
            arm=arm_facts(moments, self.robot),
            hand_m=hand_m,
            reach_m=reach_m,
            taken=norm(moments.free_velocity(OBJECT_JOINT)[:, :3]) > _AT_REST_M_S,
            # A fallen object counts as pushed away.
            strayed_m=torch.where(upright, distance - distance[:1], 1.0),
            off_table=terms.off_the_table(position),
            met=stands & (distance < tolerance_m),
            nearly=upright & (distance < 2 * tolerance_m),
        )

    def _height_m(self, state: NamedState) -> torch.Tensor:
        """Return the object's height above its rest on the table [m]. Shape: (num_envs,)."""
        return state.body_position(OBJECT_BODY)[:, 2] - self.thing.half_height

    def _stands(self, state: NamedState) -> torch.Tensor:
        """True where the object stands upright on the table, at rest. Shape: (num_envs,), bool."""
        height = self._height_m(state)
        at_rest = norm(state.free_velocity(OBJECT_JOINT)[:, :3]) < _AT_REST_M_S
        return (height.abs() < _ON_TABLE_M) & terms.upright(state.body_orientation(OBJECT_BODY)) & at_rest


PUSH_TO_GOAL = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: PushToGoal(embodiment, OBJECTS.get(options.object)),
)
