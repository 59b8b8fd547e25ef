"""Pick an object up from the table and hold it in the air."""

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableTask
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.events import Facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState

LIFT_HEIGHT_M = 0.10
HOLD_STEPS = 10

_AREA = ((0.40, -0.20, -np.pi), (0.60, 0.20, np.pi))


class LiftObject(grasping.ObjectTask):
    """Solved when the object is 0.1 m above its resting height, held between both fingers, for 0.5 s without a break.

    Lost when the object falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        grasping.refuse_too_wide(thing, embodiment.robot)
        super().__init__(
            embodiment,
            thing,
            _AREA,
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
            hold_steps=HOLD_STEPS,
            contact_sensors=grasping.finger_sensors(embodiment.robot),
            metrics=(
                Metric(name="final_height_m", unit="m", better="higher"),
                Metric(name="final_distance_m", unit="m", better="lower"),
            ),
        )

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position = backend.body_position(grasping.OBJECT_BODY)
        distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        height = position[:, 2] - self.thing.half_height
        held = grasping.grasped(backend, self.robot, distance=distance)
        success = self.held(held & (height >= LIFT_HEIGHT_M), running)
        raised = held * terms.progress(height, start=0.0, goal=LIFT_HEIGHT_M)
        reward = 0.3 * terms.closeness(distance, half_at=0.1) + 0.2 * held + 0.5 * raised + success
        metrics = {"final_height_m": height, "final_distance_m": distance}
        return Verdict(reward=reward, success=success, lost=terms.off_the_table(position), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        height = state.body_position(grasping.OBJECT_BODY)[:, 2] - self.thing.half_height
        return grasping.grasped(state, self.robot) & (height >= LIFT_HEIGHT_M)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        grasp = grasping.GraspFacts(moments, self.robot, self.thing)
        raised = grasp.held * terms.progress(grasp.height_m, start=0.0, goal=LIFT_HEIGHT_M)
        met = grasp.held & (grasp.height_m >= LIFT_HEIGHT_M)
        nearly = grasp.held & (grasp.height_m >= grasping.NEARLY * LIFT_HEIGHT_M)
        return grasp.then(raised, met=met, nearly=nearly)


LIFT_OBJECT = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: LiftObject(embodiment, OBJECTS.get(options.object)),
)
