"""Put an object into a bin and let go of it."""

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableTask
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.events import Facts, approach, arm_facts, strayed
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Task, TaskSpec, Verdict
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import (
    BIN_INSIDE_M,
    BIN_SIZES,
    OBJECT_BODY,
    REACH_M,
    at_rest,
    bin_thing,
    finger_sensors,
    grasp_facts,
    grasped,
    inside_bin,
    object_thing,
    refuse_too_wide,
    refuse_wider_than_bin,
    tool_distance,
    touched,
)
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

HOLD_STEPS = 5

_BIN_BODY = "bin/body"
_BIN_TOUCH = "object_touches_bin"
_AWAY_M = 0.06
_LOW = (0.42, -0.22, -np.pi)
_HIGH = (0.58, -0.03, np.pi)
_BIN_LOW = (0.42, 0.20, -0.15)
_BIN_HIGH = (0.56, 0.27, 0.15)


class PickAndPlace(Task):
    """Solved when the object rests on the floor of the upright bin, and no finger is on or near it, for 0.25 s.

    Lost when the object or the bin falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        refuse_too_wide(thing, embodiment.robot)
        refuse_wider_than_bin(thing)
        on_table = embodiment.workspace.on_table
        super().__init__(
            TaskSpec(
                name="pick_and_place",
                instruction=f"put the {thing.words} into the blue bin",
                paraphrases=(
                    f"please put the {thing.words} into the blue bin",
                    f"place the {thing.words} in the blue bin",
                    f"the {thing.words} belongs in the blue bin, so take it there",
                    f"move the {thing.words} over to the blue bin and drop it there",
                    f"make sure that the blue container is where the {thing.words} ends up",
                ),
                time_limit_s=12.0,
                hold_steps=HOLD_STEPS,
                things=(
                    object_thing(thing, area=on_table(_LOW, _HIGH)),
                    bin_thing("bin", y=0.25, area=on_table(_BIN_LOW, _BIN_HIGH)),
                ),
                contact_sensors=(
                    *finger_sensors(embodiment.robot),
                    ContactSensor(name=_BIN_TOUCH, body=OBJECT_BODY, other=_BIN_BODY),
                ),
                sizes={**thing.sizes(), **BIN_SIZES},
            )
        )
        self.robot = embodiment.robot
        self.thing = thing

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        """Judge by the object's place in the bin's frame, its speed, and the fingers."""
        position, bin_position = backend.body_position(OBJECT_BODY), backend.body_position(_BIN_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        inside = inside_bin(backend, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~touched(backend) & (tcp_distance > _AWAY_M)
        success = self.held(_placed(backend, inside, let_go), running)
        bin_distance = terms.distance(position, bin_position)
        held = grasped(backend, self.robot, distance=tcp_distance)
        # An object inside the bin keeps the reward of the grasp, so that a release costs nothing.
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | inside)
            + 0.4 * (held | inside) * terms.closeness(bin_distance, half_at=0.15)
            + 0.2 * (inside & let_go)
            + success
        )
        return Verdict(
            reward=reward,
            success=success,
            lost=terms.off_the_table(position) | terms.off_the_table(bin_position),
            metrics={"final_bin_distance_m": bin_distance},
        )

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        """True where the object rests in the bin, released."""
        del env_ids
        inside = inside_bin(state, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~touched(state) & (tool_distance(state, self.robot) > _AWAY_M)
        return _placed(state, inside, let_go)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return the hand's facts with the object: approach, hold, carry to the bin, put in."""
        del env_id
        grasp, reach_m = grasp_facts(moments, self.robot, self.thing), self.thing.half_height + REACH_M
        inside = inside_bin(moments, OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        bin_position = moments.body_position(_BIN_BODY)
        brought = grasp.carried * approach(terms.horizontal_distance(grasp.position, bin_position), BIN_INSIDE_M)
        let_go = ~touched(moments) & (grasp.hand_m > _AWAY_M)
        return Facts(
            stages=(approach(grasp.hand_m, reach_m), grasp.held, brought, inside),
            arm=arm_facts(moments, self.robot),
            hand_m=grasp.hand_m,
            reach_m=reach_m,
            taken=grasp.held,
            carried=grasp.carried,
            delivered=inside,
            strayed_m=strayed(grasp.position, grasp.held | inside),
            off_table=grasp.off_table | terms.off_the_table(bin_position),
            met=_placed(moments, inside, let_go),
            nearly=inside,
        )


def _placed(state: NamedState, inside: torch.Tensor, let_go: torch.Tensor) -> torch.Tensor:
    """True where the object rests in the bin, released. Shape: (num_envs,), bool."""
    return inside & at_rest(state) & state.touching(_BIN_TOUCH) & let_go


PICK_AND_PLACE = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: PickAndPlace(embodiment, OBJECTS.get(options.object)),
)
