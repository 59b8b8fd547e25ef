"""Push things onto a marked disc: an object over the table, or a cube in any direction, to be learned from states."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import ObjectOptions, TableOptions, TableTask
from isaaclab_arena.environments.catalog import CUBE, OBJECTS, ObjectAsset
from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import ActionModeName, ObservationTerm, offset_term
from isaaclab_arena.environments.mdp.task import TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import OBJECT_BODY, OBJECT_JOINT, REACH_M, ObjectTask
from isaaclab_arena.interfaces.episode import Metric, draw_uniform
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.math import norm

LIFTED_M = 0.03
GOAL_BODY = "goal/body"

_AT_REST_M_S = 0.03


class PushToGoal(ObjectTask):
    """Solved when the object stands at rest on the table, its centre within 3 cm of the disc's, for 0.25 s.

    Lost when the object falls off the table, falls over, or is lifted by more than 3 cm.
    """

    capturable = True
    tolerance_m = 0.03

    def __init__(self, embodiment: Embodiment, thing: ObjectAsset) -> None:
        area = embodiment.workspace.on_table((0.42, 0.10), (0.55, 0.22))
        spec = TaskSpec(
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
            hold_steps=5,
            metrics=(Metric(name="final_goal_distance_m", unit="m", better="lower"),),
            things=(SceneObject(prefix="goal", asset="objects/disc.xml", area=area, observed_as="goal"),),
        )
        super().__init__(embodiment, thing, ((0.42, -0.20, -np.pi), (0.55, -0.08, np.pi)), spec)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position, goal = backend.body_position(OBJECT_BODY), backend.body_position(GOAL_BODY)
        tcp_distance = terms.distance(backend.site_position(self.robot.tcp_site), position)
        goal_distance = terms.horizontal_distance(position, goal)
        height = position[:, 2] - self.thing.half_height
        upright = self._upright(backend)
        success = self.held(self._stands(backend) & (goal_distance < self.tolerance_m), running)
        reward = (
            0.3 * terms.closeness(tcp_distance, half_at=0.1)
            + 0.7 * terms.closeness(goal_distance, half_at=0.1)
            + success
        )
        lost = terms.off_the_table(position) | ~upright | (height > LIFTED_M)
        return Verdict(reward=reward, success=success, lost=lost, metrics={"final_goal_distance_m": goal_distance})

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        distance = terms.horizontal_distance(state.body_position(OBJECT_BODY), state.body_position(GOAL_BODY))
        return self._stands(state) & (distance < self.tolerance_m)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        upright = self._upright(moments)
        position, goal = moments.body_position(OBJECT_BODY), moments.body_position(GOAL_BODY)
        distance = terms.horizontal_distance(position, goal)
        hand_m = terms.distance(moments.site_position(self.robot.tcp_site), position)
        reach_m = self.thing.footprint_radius + REACH_M
        pushed = terms.horizontal_distance(position, position[:1].expand_as(position)) > 0.01
        return Facts(
            stages=(approach(hand_m, reach_m), pushed * approach(distance, self.tolerance_m)),
            arm=arm_facts(moments, self.robot),
            hand_m=hand_m,
            reach_m=reach_m,
            taken=norm(moments.free_velocity(OBJECT_JOINT)[:, :3]) > _AT_REST_M_S,
            # A fallen object counts as pushed away.
            strayed_m=torch.where(upright, distance - distance[:1], 1.0),
            off_table=terms.off_the_table(position),
            lifted=position[:, 2] - self.thing.half_height > LIFTED_M,
            met=self._stands(moments) & (distance < self.tolerance_m),
            nearly=upright & (distance < 2 * self.tolerance_m),
        )

    def _upright(self, state: NamedState) -> torch.Tensor:
        """True where the object has not fallen over. Shape: (num_envs,), bool."""
        return terms.upright(state.body_orientation(OBJECT_BODY))

    def _stands(self, state: NamedState) -> torch.Tensor:
        """True where the object stands upright on the table, at rest. Shape: (num_envs,), bool."""
        height = state.body_position(OBJECT_BODY)[:, 2] - self.thing.half_height
        at_rest = norm(state.free_velocity(OBJECT_JOINT)[:, :3]) < _AT_REST_M_S
        return (height.abs() < 0.01) & self._upright(state) & at_rest


PUSH_TO_GOAL = TableTask(
    config_class=ObjectOptions,
    make_task=lambda options, embodiment: PushToGoal(embodiment, OBJECTS.get(options.object)),
    words="Push an object over the table onto a marked disc, without lifting it.",
)


CUBE_TOLERANCE_M = 0.04
NEAREST_GOAL_M = 0.10
FARTHEST_GOAL_M = 0.18


@dataclass(frozen=True, kw_only=True)
class PushCubeOptions(TableOptions):
    """Options of ``push_cube``, whose actions are small motions of the hand unless asked otherwise."""

    action_mode: ActionModeName = "ee_delta"


class PushCube(PushToGoal):
    """Solved when the cube's centre stays within 4 cm of the disc's, seen from above, for 0.25 s.

    Lost when the cube falls off the table.
    """

    capturable = True
    tolerance_m = CUBE_TOLERANCE_M

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(embodiment, CUBE)
        self.spec = replace(self.spec, name="push_cube", time_limit_s=8.0)
        self.area = embodiment.workspace.on_table((0.50, -0.10, -np.pi), (0.58, 0.10, np.pi))

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        x, y, yaw = draw_uniform(generator, *self.area)
        distance, direction = draw_uniform(generator, (NEAREST_GOAL_M, -np.pi), (FARTHEST_GOAL_M, np.pi))
        return {
            "cube.position": (x, y, self.thing.half_height),
            "cube.yaw": yaw,
            "goal.position": (x + distance * math.cos(direction), y + distance * math.sin(direction), 0.0),
        }

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self._joints, _ = backend.joint_indices(self.robot.arm_joints)
        self._held = backend.actuator_indices(self.robot.arm_actuators)

    def observation_terms(self) -> dict[str, ObservationTerm]:
        return {
            **super().observation_terms(),
            "eef_to_push_point": offset_term(self._hand_to_push_point),
            "object_to_goal": offset_term(
                lambda backend: backend.body_position(GOAL_BODY) - backend.body_position(OBJECT_BODY)
            ),
        }

    def _hand_to_push_point(self, backend: Backend) -> torch.Tensor:
        """Return the offset from the hand to the cube's push point, over the cube [m]. Shape: (num_envs, 3)."""
        hand, cube = backend.site_position(self.robot.tcp_site), backend.body_position(OBJECT_BODY)
        point = terms.push_point(hand, cube, backend.body_position(GOAL_BODY), (0.03, 0.065))
        # The farther the hand is from above that point, the higher the way leads. A cube that does not slide easily
        # tips over if pushed above its middle, so the point is 1 cm below.
        aside = (terms.horizontal_distance(hand, point) - 0.02).clamp(min=0.0)
        height = (4.0 * aside).clamp(max=0.09) - 0.01
        zero = torch.zeros_like(height)
        return point - hand + torch.stack((zero, zero, height), dim=-1)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position, goal = backend.body_position(OBJECT_BODY), backend.body_position(GOAL_BODY)
        goal_distance = terms.horizontal_distance(position, goal)
        on_goal = goal_distance < CUBE_TOLERANCE_M
        hand_distance = norm(self._hand_to_push_point(backend))
        # Each is the mean of a wide and a narrow closeness.
        near_point, near_goal = (
            0.5 * (terms.closeness(distance, half_at=far) + terms.closeness(distance, half_at=well))
            for distance, (far, well) in ((hand_distance, (0.1, 0.025)), (goal_distance, (0.1, 0.03)))
        )
        # A cube on the disc has no push point.
        in_place = torch.where(on_goal, 1.0, near_point)
        tilt = terms.tilt_from_down(backend.body_orientation(self.robot.hand_body))
        pointing_down = terms.closeness(tilt, half_at=0.1)
        if self.robot.gripper_actuator is None:
            closed = torch.ones_like(backend.ctrl[:, 0])
        else:
            control = backend.ctrl[:, backend.names.actuators[self.robot.gripper_actuator]]
            closed = terms.progress(control, start=self.robot.gripper_open, goal=self.robot.gripper_closed)
        # The cube advances by its speed towards the disc, 1 for at least 5 cm/s.
        way, velocity = goal - position, backend.free_velocity(OBJECT_JOINT)
        length = goal_distance.clamp(min=1e-6)
        speed = (way[:, 0] * velocity[:, 0] + way[:, 1] * velocity[:, 1]) / length
        advance = torch.where(length < CUBE_TOLERANCE_M, 0.0, (speed / 0.05).clamp(-1, 1))
        # The joints are far from their targets [rad] if the hand is stuck.
        strain = backend.ctrl[:, self._held] - backend.qpos[:, self._joints]
        success = self.held(on_goal, running)
        reward = (
            0.1 * pointing_down
            + 0.1 * closed
            + 0.3 * in_place
            + 0.5 * near_goal
            + 0.3 * advance
            + success
            - 5.0 * terms.mean_square(strain)
        )
        metrics = {"final_goal_distance_m": goal_distance}
        return Verdict(reward=reward, success=success, lost=terms.off_the_table(position), metrics=metrics)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        return replace(super().facts(moments, env_id), lifted=None)

    def _upright(self, state: NamedState) -> torch.Tensor:
        return torch.ones_like(state.qpos[:, 0], dtype=torch.bool)  # it may lie

    def _stands(self, state: NamedState) -> torch.Tensor:
        return self._upright(state)  # it may move and hang too


PUSH_CUBE = TableTask(
    config_class=PushCubeOptions,
    make_task=lambda _, robot: PushCube(robot),
    words="Push a cube to a marked place in any direction, a task that is made to be learned from states.",
)
