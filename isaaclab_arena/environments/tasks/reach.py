"""Bring the tool centre point to a marked position."""

import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import REACH_M
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState

TOLERANCE_M = 0.02
HOLD_STEPS = 5

_TARGET = "target/body"
_AREA = ((0.35, -0.25, 0.10), (0.60, 0.25, 0.45))


class Reach(Task):
    """Solved when the tool centre point stays within 2 cm of the target for 0.25 s."""

    moment_fields = ("qpos", "ctrl", "site_xpos")
    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        area = embodiment.workspace.in_space(*_AREA)
        target = SceneObject(prefix="target", asset="objects/target.xml", area=area, observed_as="target")
        super().__init__(
            TaskSpec(
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
                hold_steps=HOLD_STEPS,
                things=(target,),
                metrics=(Metric(name="final_distance_m", unit="m", better="lower"),),
            )
        )
        self.robot = embodiment.robot

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        distance = self._distance(backend)
        success = self.held(distance < TOLERANCE_M, running)
        reward = terms.closeness(distance, half_at=0.1) + success
        metrics = {"final_distance_m": distance}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return self._distance(state) < TOLERANCE_M

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        distance = self._distance(moments)
        met = distance < TOLERANCE_M
        return Facts(
            stages=(approach(distance, TOLERANCE_M),),
            arm=arm_facts(moments, self.robot),
            hand_m=distance,
            reach_m=REACH_M,
            taken=met,
            met=met,
            nearly=distance < 2 * TOLERANCE_M,
        )

    def _distance(self, state: NamedState) -> torch.Tensor:
        return terms.distance(state.site_position(self.robot.tcp_site), state.body_position(_TARGET))


REACH = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: Reach(embodiment))
