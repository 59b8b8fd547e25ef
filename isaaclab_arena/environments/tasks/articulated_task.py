"""Tasks in which a hand moves the one joint of a thing that stands on the table."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.conditions import draw_uniform, number
from isaaclab_arena.environments.mdp.observations import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.math import dot, norm
from isaaclab_arena.sim.scene.scene import ContactSensor, Robot

REACH_M = 0.08
NEARLY = 0.8
_MOVED = 0.1

_FINGER_TOUCHES = ("left_finger_touches_handle", "right_finger_touches_handle")


@dataclass(frozen=True, kw_only=True)
class MovedJoint:
    """The joint that a task is about.

    Attributes:
        joint: Its name in the file of the thing.
        called: What observations and conditions call its position.
        unit: Of its position: ``m`` or ``rad``.
        site: Where the hand goes: a site in the file.
        observed_as: Prefix of the site's position in observations.
        starts: Lowest and highest position at the start; None where it starts as in the file.
        bar: From the site to both ends of the handle, in world axes [m].
        thick_m: From the handle's middle line to its surface [m].
    """

    joint: str
    called: str
    unit: str
    site: str
    observed_as: str = "handle"
    starts: tuple[float, float] | None = None
    bar: tuple[tuple[float, float, float], tuple[float, float, float]] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    thick_m: float = 0.008


class ArticulatedTask(Task):
    """A task about one joint of one thing: where both start, and what is observed of them.

    Args:
        spec: The task without its thing.
        thing: What has the joint.
        moved: The joint.
        robot: The robot.
    """

    def __init__(self, spec: TaskSpec, thing: SceneObject, moved: MovedJoint, robot: Robot) -> None:
        self.joint, self.site = f"{thing.prefix}/{moved.joint}", f"{thing.prefix}/{moved.site}"
        asset = ArticulatedAsset(root_body=thing.body, joints=(self.joint,))
        super().__init__(replace(spec, things=(thing,), articulations={thing.name: asset}))
        self.moved = moved
        self.robot = robot
        self._start_condition = f"{thing.name}.{moved.called}"

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the thing stands and, unless it starts as in the file, its joint's position."""
        conditions = dict(super().draw_conditions(generator))
        if self.moved.starts is not None:
            low, high = self.moved.starts
            (conditions[self._start_condition],) = draw_uniform(generator, (low,), (high,))
        return conditions

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the thing at rest in its place."""
        start = super().start_state(conditions)
        if self.moved.starts is None:
            return start
        return replace(start, joint_positions={self.joint: (number(conditions[self._start_condition]),)})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return where the hand has to go, and the joint's position."""
        moved = self.moved
        return {
            f"{moved.observed_as}_pos": position_term(lambda backend: backend.site_position(self.site)),
            moved.called: number_term(moved.called, moved.unit, lambda backend: backend.joint_position(self.joint)),
        }

    def hand_distance(self, backend: NamedState) -> torch.Tensor:
        """Return the distance from the tool centre point to where the hand has to go [m]. Shape: (num_envs,)."""
        return terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(self.site))

    def _handle_distance(self, state: NamedState) -> torch.Tensor:
        """Return the distance from the tool centre point to the middle line of the handle [m]. Shape: (num_envs,)."""
        start, end = (state.qpos.new_tensor(each) for each in self.moved.bar)
        line = end - start
        way = state.site_position(self.robot.tcp_site) - state.site_position(self.site) - start
        share = (dot(way, line) / dot(line, line).clamp(min=1e-12)).clamp(0, 1)
        return norm(way - share[:, None] * line)

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
        """Return what the hand did with the joint: come to its handle, touch it, move it.

        Args:
            moments: The episode.
            touched: Whether the hand touches what moves. Shape: (moments,), bool.
            share: How much of the way the joint has made. Shape: (moments,).
            met: Whether it is where it should be. Shape: (moments,), bool.
            nearly: Share of the way from which on it is nearly there.
            is_pulled: Whether the hand has to stay with it; it may be let go too early then.
        """
        reach_m = self.moved.thick_m + REACH_M
        hand_m = self._handle_distance(moments)
        return Facts(
            stages=(approach(hand_m, reach_m), touched, touched.any() * share),
            arm=arm_facts(moments, self.robot),
            hand_m=hand_m,
            reach_m=reach_m,
            taken=touched,
            # A handle that was only touched was missed.
            carried=touched & (share > _MOVED) if is_pulled else None,
            delivered=met if is_pulled else None,
            met=met,
            nearly=share >= nearly,
        )


class MovedByHandTask(ArticulatedTask):
    """An articulated task that counts how far the hand moves the joint.

    Way without the hand, or faster than a hand moves, does not count. Lengths are in the joint's unit.

    Attributes:
        position: The joint's position after the last step. Shape: (num_envs,).
        by_hand: Way that counted so far. Shape: (num_envs,).
    """

    position: torch.Tensor
    by_hand: torch.Tensor

    def attach(self, backend: Backend) -> None:
        """Make the counters, and the tensors for position and way."""
        super().attach(backend)
        self.position = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self.by_hand = torch.zeros_like(self.position)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget the way of the episode before. Shape: (n,), int64."""
        super().begin(backend, env_ids)
        self.by_hand[env_ids] = 0
        self.position[env_ids] = backend.joint_position(self.joint)[env_ids, 0]

    def count_way(
        self, position: torch.Tensor, running: torch.Tensor, touched: torch.Tensor, *, sign: int, fastest: float
    ) -> None:
        """Add the way of a step to what the hand moved.

        Args:
            position: The joint's position now. Shape: (num_envs,).
            running: Env slots that made the step. Shape: (num_envs,), bool.
            touched: Whether the hand touches what moves. Shape: (num_envs,), bool.
            sign: 1 where the position is to grow, -1 where it is to shrink.
            fastest: Longest way that counts in one step.
        """
        by_hand = terms.moved_by_hand(self.by_hand, sign * (position - self.position), touched, fastest)
        self.by_hand = torch.where(running, by_hand, self.by_hand)
        self.position = torch.where(running, position, self.position)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """When a door or a drawer counts as opened. Lengths are in the unit of its joint.

    Attributes:
        quantity: What the metrics call the joint's position.
        open: Position from which on it is open.
        pulled: Least way that a finger at the handle has to pull.
        fastest: Longest way of a pull in one step.
    """

    quantity: str
    open: float
    pulled: float
    fastest: float


class OpenByHandle(MovedByHandTask):
    """A door or a drawer that a finger has to pull open at its handle.

    Args:
        spec: The task without its thing.
        thing: What has the door or the drawer.
        moved: Its joint.
        opening: When it counts as opened.
        robot: The robot.

    Raises:
        ConfigError: If the robot has no fingers.
    """

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
        """Judge by how far it is open and by how much of that a finger pulled."""
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
        return Verdict(
            reward=reward,
            success=success,
            lost=torch.zeros_like(success),
            metrics={f"final_{opening.quantity}_{unit}": position, f"pulled_{unit}": self.by_hand},
        )

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        """Return whether it is open."""
        del env_ids
        return state.joint_position(self.joint)[:, 0] >= self.opening.open

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return what the hand did with the door or the drawer."""
        del env_id
        position = moments.joint_position(self.joint)[:, 0]
        share = terms.progress(position, start=float(position[0]), goal=self.opening.open)
        met = position >= self.opening.open
        return self.moved_facts(moments, touched=_at_handle(moments), share=share, met=met, is_pulled=True)


def _at_handle(state: NamedState) -> torch.Tensor:
    """Return whether a finger touches the handle. Shape: (num_envs,), bool."""
    left, right = _FINGER_TOUCHES
    return state.touching(left) | state.touching(right)
