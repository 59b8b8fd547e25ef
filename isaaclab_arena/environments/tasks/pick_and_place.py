"""Put an object into a bin and let go of it."""

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableTask
from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.events import Facts, approach
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks import grasping
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

HOLD_STEPS = 5

_BIN_BODY = "bin/body"
_BIN_TOUCH = "object_touches_bin"
_AWAY_M = 0.06
_AREA = ((0.42, -0.22, -np.pi), (0.58, -0.03, np.pi))
_BIN_AREA = ((0.42, 0.20, -0.15), (0.56, 0.27, 0.15))


class PickAndPlace(grasping.ObjectTask):
    """Solved when the object rests on the floor of the upright bin, and no finger is on or near it, for 0.25 s.

    Lost when the object or the bin falls off the table.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        grasping.refuse_too_wide(thing, embodiment.robot)
        if thing.footprint_radius > grasping.BIN_INSIDE_M:
            too_wide = f"{2 * thing.footprint_radius:.2f} m across and does not fit into the bin"
            message = f"object '{thing.name}' is {too_wide}, which is {2 * grasping.BIN_INSIDE_M:.2f} m wide inside"
            raise ConfigError(Problem(message, key="object"))
        super().__init__(
            embodiment,
            thing,
            _AREA,
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
            things=(grasping.bin_thing("bin", y=0.25, area=embodiment.workspace.on_table(*_BIN_AREA)),),
            contact_sensors=(
                *grasping.finger_sensors(embodiment.robot),
                ContactSensor(name=_BIN_TOUCH, body=grasping.OBJECT_BODY, other=_BIN_BODY),
            ),
            sizes=grasping.BIN_SIZES,
            metrics=(Metric(name="final_bin_distance_m", unit="m", better="lower"),),
        )

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position, bin_position = backend.body_position(grasping.OBJECT_BODY), backend.body_position(_BIN_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        inside = grasping.inside_bin(backend, grasping.OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~grasping.touched(backend) & (tcp_distance > _AWAY_M)
        success = self.held(_placed(backend, inside, let_go), running)
        bin_distance = terms.distance(position, bin_position)
        held = grasping.grasped(backend, self.robot, distance=tcp_distance)
        # An object inside the bin keeps the reward of the grasp, so that a release costs nothing.
        reward = (
            0.2 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.2 * (held | inside)
            + 0.4 * (held | inside) * terms.closeness(bin_distance, half_at=0.15)
            + 0.2 * (inside & let_go)
            + success
        )
        lost = terms.off_the_table(position) | terms.off_the_table(bin_position)
        metrics = {"final_bin_distance_m": bin_distance}
        return Verdict(reward=reward, success=success, lost=lost, metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        inside = grasping.inside_bin(state, grasping.OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        let_go = ~grasping.touched(state) & (grasping.tool_distance(state, self.robot) > _AWAY_M)
        return _placed(state, inside, let_go)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        grasp = grasping.GraspFacts(moments, self.robot, self.thing)
        inside = grasping.inside_bin(moments, grasping.OBJECT_BODY, _BIN_BODY, half_height=self.thing.half_height)
        bin_position = moments.body_position(_BIN_BODY)
        bin_distance = terms.horizontal_distance(grasp.position, bin_position)
        brought = grasp.carried * approach(bin_distance, grasping.BIN_INSIDE_M)
        return grasp.then(
            brought,
            inside,
            placed=inside,
            delivered=inside,
            off_table=grasp.off_table | terms.off_the_table(bin_position),
            met=_placed(moments, inside, ~grasping.touched(moments) & (grasp.hand_m > _AWAY_M)),
            nearly=inside,
        )


def _placed(state: NamedState, inside: torch.Tensor, let_go: torch.Tensor) -> torch.Tensor:
    """True where the object rests in the bin, released. Shape: (num_envs,), bool."""
    return inside & grasping.at_rest(state) & state.touching(_BIN_TOUCH) & let_go


PICK_AND_PLACE = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: PickAndPlace(embodiment, OBJECTS.get(options.object)),
)
