"""Tasks in which a hand moves the one joint of a thing that stands on the table."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, draw_uniform, number
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.math import dot, norm
from isaaclab_arena.sim.scene import ContactSensor, Robot

REACH_M = 0.08
NEARLY = 0.8
_MOVED = 0.1

_FINGER_TOUCHES = ("left_finger_touches_handle", "right_finger_touches_handle")


@dataclass(frozen=True, kw_only=True)
class MovedJoint:
    """The joint that a task moves."""

    joint: str  # name in the thing's file
    called: str  # name of its position in observations and conditions
    unit: str  # of its position: m or rad
    site: str  # goal of the hand: a site in the file
    observed_as: str = "handle"  # prefix of the site's position in observations
    starts: tuple[float, float] | None = None  # lowest and highest start; None: as in the file
    # from the site to both ends of the handle, in world axes [m]
    bar: tuple[tuple[float, float, float], tuple[float, float, float]] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    thick_m: float = 0.008  # from the handle's middle line to its surface [m]


class ArticulatedTask(Task):
    """A task that moves one joint of one thing: its start and its observation terms."""

    def __init__(self, spec: TaskSpec, thing: SceneObject, moved: MovedJoint, robot: Robot) -> None:
        self.joint, self.site = f"{thing.prefix}/{moved.joint}", f"{thing.prefix}/{moved.site}"
        asset = ArticulatedAsset(root_body=thing.body, joints=(self.joint,))
        super().__init__(replace(spec, things=(thing,), articulations={thing.name: asset}))
        self.moved = moved
        self.robot = robot
        self._start_condition = f"{thing.name}.{moved.called}"

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw the start of the thing and, unless its file sets it, the joint's position."""
        conditions = dict(super().draw_conditions(generator))
        if self.moved.starts is not None:
            low, high = self.moved.starts
            (conditions[self._start_condition],) = draw_uniform(generator, (low,), (high,))
        return conditions

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the start of the thing and its joint, at rest."""
        start = super().start_state(conditions)
        if self.moved.starts is None:
            return start
        return replace(start, joint_positions={self.joint: (number(conditions[self._start_condition]),)})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the goal of the hand and the joint's position."""
        moved = self.moved
        return {
            f"{moved.observed_as}_pos": position_term(lambda backend: backend.site_position(self.site)),
            moved.called: number_term(moved.called, moved.unit, lambda backend: backend.joint_position(self.joint)),
        }

    def hand_distance(self, backend: NamedState) -> torch.Tensor:
        """Return the distance from the tool centre point to the site [m]. Shape: (num_envs,)."""
        return terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(self.site))

    def moved_facts(
        self,
        moments: NamedState,
        *,
        touched: torch.Tensor,
        share: torch.Tensor,
        met: torch.Tensor,
        nearly: float = NEARLY,
        is_pulled: bool = False,
    ) -> Facts:
        """Return the hand's facts: its approach to the handle, its touch, and the joint's ``share`` of its way."""
        # ``nearly`` is the share from which the joint is nearly there. ``is_pulled``: the hand has to stay with the
        # joint, so it may let go too early.
        reach_m = self.moved.thick_m + REACH_M
        # The hand's distance is that of the tool centre point from the handle's middle line.
        start, end = (moments.qpos.new_tensor(each) for each in self.moved.bar)
        line = end - start
        way = moments.site_position(self.robot.tcp_site) - moments.site_position(self.site) - start
        along = (dot(way, line) / dot(line, line).clamp(min=1e-12)).clamp(0, 1)
        hand_m = norm(way - along[:, None] * line)
        return Facts(
            stages=(approach(hand_m, reach_m), touched, touched.any() * share),
            arm=arm_facts(moments, self.robot),
            hand_m=hand_m,
            reach_m=reach_m,
            taken=touched,
            # A handle that was touched but not moved counts as missed.
            carried=touched & (share > _MOVED) if is_pulled else None,
            delivered=met if is_pulled else None,
            met=met,
            nearly=share >= nearly,
        )


class MovedByHandTask(ArticulatedTask):
    """An articulated task that counts how far the hand moves the joint, in the joint's unit."""

    # After the last step, (num_envs,). Motion without the hand, or faster than a hand moves, does not count.
    position: torch.Tensor
    by_hand: torch.Tensor  # counted way so far, (num_envs,)

    def attach(self, backend: Backend) -> None:
        """Create the counters, and the tensors for position and way."""
        super().attach(backend)
        self.position = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self.by_hand = torch.zeros_like(self.position)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Reset the way of env slots (n,), int64."""
        super().begin(backend, env_ids)
        self.by_hand[env_ids] = 0
        self.position[env_ids] = backend.joint_position(self.joint)[env_ids, 0]

    def count_way(
        self, position: torch.Tensor, running: torch.Tensor, touched: torch.Tensor, *, sign: int, fastest: float
    ) -> None:
        """Add a step's way to the way by hand; ``sign`` is 1 for a growing position, -1 for a shrinking one."""
        # Only the way under a touch counts, and at most ``fastest`` in one step.
        by_hand = terms.moved_by_hand(self.by_hand, sign * (position - self.position), touched, fastest)
        self.by_hand = torch.where(running, by_hand, self.by_hand)
        self.position = torch.where(running, position, self.position)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The condition under which a door or drawer is open; lengths are in its joint's unit."""

    quantity: str  # name of the position in the metrics
    open: float  # open from this position on
    pulled: float  # least way pulled by a finger at the handle
    fastest: float  # longest way of a pull in one step


class OpenByHandle(MovedByHandTask):
    """A door or a drawer that a finger has to pull open at its handle; ConfigError for a robot without fingers."""

    capturable = True

    def __init__(self, spec: TaskSpec, thing: SceneObject, moved: MovedJoint, opening: Opening, robot: Robot) -> None:
        handle = f"{thing.prefix}/{moved.site}"
        sensors = tuple(
            ContactSensor(name=name, body=finger, other=handle, other_is_geom=True)
            for name, finger in zip(_FINGER_TOUCHES, robot.fingers, strict=True)
        )
        super().__init__(replace(spec, contact_sensors=sensors), thing, moved, robot)
        self.opening = opening

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        """Judge by the opening and by the part of it that a finger pulled."""
        opening, unit = self.opening, self.moved.unit
        position = backend.joint_position(self.joint)[:, 0]
        at_handle = _at_handle(backend)
        self.count_way(position, running, at_handle, sign=1, fastest=opening.fastest)
        success = self.held((position >= opening.open) & (self.by_hand >= opening.pulled), running)
        reward = (
            0.3 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.2 * at_handle
            + 0.5 * terms.progress(self.by_hand, start=0.0, goal=opening.open)
            + success
        )
        metrics = {f"final_{opening.quantity}_{unit}": position, f"pulled_{unit}": self.by_hand}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        """True where it is open."""
        del env_ids
        return state.joint_position(self.joint)[:, 0] >= self.opening.open

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return the hand's facts with the door or drawer."""
        del env_id
        position = moments.joint_position(self.joint)[:, 0]
        share = terms.progress(position, start=float(position[0]), goal=self.opening.open)
        met = position >= self.opening.open
        return self.moved_facts(moments, touched=_at_handle(moments), share=share, met=met, is_pulled=True)


def _at_handle(state: NamedState) -> torch.Tensor:
    """True where a finger touches the handle. Shape: (num_envs,), bool."""
    left, right = _FINGER_TOUCHES
    return state.touching(left) | state.touching(right)
