"""Tasks in which a hand moves the one joint of a thing on the table: drawer, door, button; and what they share."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableTask
from isaaclab_arena.environments.events import Facts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import ArticulatedAsset, SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Metric, draw_uniform, number
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.math import dot, norm
from isaaclab_arena.sim.scene import ContactSensor, Robot

REACH_M = 0.08
NEARLY = 0.8

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
        conditions = dict(super().draw_conditions(generator))
        if self.moved.starts is not None:
            low, high = self.moved.starts
            (conditions[self._start_condition],) = draw_uniform(generator, (low,), (high,))
        return conditions

    def start_state(self, conditions: Conditions) -> StartState:
        start = super().start_state(conditions)
        if self.moved.starts is None:
            return start
        return replace(start, joint_positions={self.joint: (number(conditions[self._start_condition]),)})

    def observation_terms(self) -> dict[str, ObservationTerm]:
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
        # The joint is nearly there from a share of ``nearly`` on. The hand has to stay with a joint that ``is_pulled``,
        # so it may let go too early.
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
            carried=touched & (share > 0.1) if is_pulled else None,
            delivered=met if is_pulled else None,
            met=met,
            nearly=share >= nearly,
        )


class MovedByHandTask(ArticulatedTask):
    """An articulated task that counts how far the hand moves the joint, in the joint's unit."""

    cleared = (*Task.cleared, "by_hand")
    # After the last step, (num_envs,). Motion without the hand, or faster than a hand moves, does not count.
    position: torch.Tensor
    by_hand: torch.Tensor  # counted way so far, (num_envs,)

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self.position = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self.by_hand = torch.zeros_like(self.position)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        super().begin(backend, env_ids)
        self.position[env_ids] = backend.joint_position(self.joint)[env_ids, 0]

    def count_way(
        self, position: torch.Tensor, running: torch.Tensor, touched: torch.Tensor, *, sign: int, fastest: float
    ) -> None:
        """Add a step's way to the way by hand; ``sign`` is 1 for a growing position, -1 for a shrinking one."""
        # Only the way under a touch counts, and at most ``fastest`` in one step.
        by_hand = terms.moved_by_hand(self.by_hand, sign * (position - self.position), touched, fastest)
        self.by_hand = torch.where(running, by_hand, self.by_hand)
        self.position = torch.where(running, position, self.position)


class OpenByHandle(MovedByHandTask):
    """A door or a drawer that a finger has to pull open at its handle; ConfigError for a robot without fingers."""

    capturable = True
    quantity: str  # the joint's position, in the name of a metric
    open_from: float  # position from which it is open, in the joint's unit
    pulled: float  # least way pulled by a finger, in the joint's unit
    fastest: float  # longest way of a pull in one step, in the joint's unit

    def __init__(self, spec: TaskSpec, thing: SceneObject, moved: MovedJoint, robot: Robot) -> None:
        sensors = tuple(
            ContactSensor(name=name, body=finger, other=f"{thing.prefix}/{moved.site}", other_is_geom=True)
            for name, finger in zip(_FINGER_TOUCHES, robot.fingers, strict=True)
        )
        self.final = f"final_{self.quantity}_{moved.unit}"
        metrics = (Metric(name=self.final, unit=moved.unit, better="higher"),)
        super().__init__(replace(spec, contact_sensors=sensors, metrics=metrics), thing, moved, robot)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        position = backend.joint_position(self.joint)[:, 0]
        at_handle = backend.touching(_FINGER_TOUCHES[0]) | backend.touching(_FINGER_TOUCHES[1])
        self.count_way(position, running, at_handle, sign=1, fastest=self.fastest)
        success = self.held((position >= self.open_from) & (self.by_hand >= self.pulled), running)
        reward = (
            0.3 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.2 * at_handle
            + 0.5 * terms.progress(self.by_hand, start=0.0, goal=self.open_from)
            + success
        )
        metrics = {self.final: position, f"pulled_{self.moved.unit}": self.by_hand}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return state.joint_position(self.joint)[:, 0] >= self.open_from

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        position = moments.joint_position(self.joint)[:, 0]
        share = terms.progress(position, start=float(position[0]), goal=self.open_from)
        met = position >= self.open_from
        touched = moments.touching(_FINGER_TOUCHES[0]) | moments.touching(_FINGER_TOUCHES[1])
        return self.moved_facts(moments, touched=touched, share=share, met=met, is_pulled=True)


OPEN_M = 0.15
PULLED_M = 0.10

_DRAWER = MovedJoint(
    joint="slide",
    called="drawer_opening",
    unit="m",
    site="handle",
    starts=(0.0, 0.02),
    bar=((0.0, -0.065, 0.0), (0.0, 0.065, 0.0)),
)
_FASTEST_M = 0.05


_CABINET = partial(SceneObject, prefix="cabinet", asset="objects/cabinet.xml")


class OpenDrawer(OpenByHandle):
    """Solved when the drawer has been open by 0.15 m for 0.15 s, at least 0.1 m of it pulled by a finger at the handle.

    Way that the drawer makes without a finger at its handle, or faster than a hand pulls (1 m/s), is not pulled: a
    drawer that is knocked or squeezed open does not count.
    """

    quantity, open_from, pulled, fastest = "opening", OPEN_M, PULLED_M, _FASTEST_M

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
            name="open_drawer",
            instruction="open the drawer",
            paraphrases=(
                "please open the drawer",
                "pull the drawer wide open",
                "pull out the drawer by its handle",
                "take the handle and draw it towards you until something slides out of the cabinet",
                "slide out what is inside that cabinet",
            ),
            time_limit_s=10.0,
            hold_steps=3,
            sites={"handle": "cabinet/handle"},
            sizes={"drawer_threshold": OPEN_M},
        )
        cabinet = _CABINET(position=(0.7, 0.0, 0.0), area=((0.68, -0.10), (0.74, 0.10)))
        super().__init__(spec, cabinet, _DRAWER, embodiment.robot)


OPEN_DRAWER = TableTask(make_task=lambda _, robot: OpenDrawer(robot), words="Pull a drawer open by its handle.")


SHUT_M = 0.01

_TOUCH = "hand_touches_drawer"


class CloseDrawer(MovedByHandTask):
    """Solved when the drawer has been shut, to 1 cm, for 0.25 s, at least half of its way pushed by the hand.

    Way that the drawer makes without the hand on it, or faster than a hand pushes (1 m/s), is not pushed.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
            name="close_drawer",
            instruction="close the drawer",
            paraphrases=(
                "please close the drawer",
                "push the drawer shut",
                "push the drawer back until it is shut",
                "the cabinet should not be left with its drawer out",
                "slide everything back inside that cabinet",
            ),
            time_limit_s=10.0,
            hold_steps=5,
            sites={"handle": "cabinet/handle", "closed_handle": "cabinet/closed_handle"},
            contact_sensors=(ContactSensor(name=_TOUCH, body=embodiment.robot.palm_body, other="cabinet/drawer"),),
            metrics=(Metric(name="final_opening_m", unit="m", better="lower"),),
        )
        cabinet = _CABINET(position=(0.74, 0.0, 0.0), area=((0.72, -0.10), (0.76, 0.10)))
        super().__init__(spec, cabinet, replace(_DRAWER, starts=(0.12, 0.18)), embodiment.robot)

    def attach(self, backend: Backend) -> None:
        """Create the counters, and the initial opening of each drawer [m]."""
        super().attach(backend)
        self.first_m = torch.zeros_like(self.position)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        super().begin(backend, env_ids)
        self.first_m[env_ids] = self.position[env_ids]

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        opening = backend.joint_position(self.joint)[:, 0]
        self.count_way(opening, running, backend.touching(_TOUCH), sign=-1, fastest=_FASTEST_M)
        success = self.held((opening <= SHUT_M) & (self.by_hand >= 0.5 * self.first_m), running)
        reward = (
            0.3 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.7 * (self.by_hand / self.first_m.clamp(min=SHUT_M)).clamp(max=1.0)
            + success
        )
        metrics = {"final_opening_m": opening, "pushed_m": self.by_hand}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return state.joint_position(self.joint)[:, 0] <= SHUT_M

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        opening = moments.joint_position(self.joint)[:, 0]
        first = float(opening[0])
        share = terms.progress(opening, start=first, goal=SHUT_M)
        nearly = (first - 2 * SHUT_M) / (first - SHUT_M)
        touched = moments.touching(_TOUCH)
        return self.moved_facts(moments, touched=touched, share=share, met=opening <= SHUT_M, nearly=nearly)


CLOSE_DRAWER = TableTask(make_task=lambda _, robot: CloseDrawer(robot), words="Push an open drawer shut.")


OPEN_RAD = 1.0
PULLED_RAD = 0.6
NUM_WAYPOINTS = 5


class OpenMicrowave(OpenByHandle):
    """Solved when the door has been open by 1 rad for 0.15 s, at least 0.6 rad of it pulled by a finger at the handle.

    Way that the door makes without a finger at its handle, or faster than a hand pulls (3 rad/s), is not pulled.
    """

    quantity, open_from, pulled, fastest = "angle", OPEN_RAD, PULLED_RAD, 0.15

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
            name="open_microwave",
            instruction="open the microwave",
            paraphrases=(
                "please open the microwave",
                "pull the microwave wide open",
                "pull the door of the microwave towards you",
                "swing the door of the oven aside",
                "I want to look inside that oven",
            ),
            time_limit_s=12.0,
            hold_steps=3,
            sites={
                "handle": "microwave/handle",
                **{f"way_{number}": f"microwave/way_{number}" for number in range(1, NUM_WAYPOINTS + 1)},
            },
        )
        microwave = SceneObject(
            prefix="microwave",
            asset="objects/microwave.xml",
            position=(0.7, 0.0, 0.0),
            area=((0.66, -0.05), (0.72, 0.05)),
        )
        bar = ((0.0, 0.0, -0.135), (0.0, 0.0, 0.018))
        door = MovedJoint(joint="hinge", called="door_angle", unit="rad", site="handle", bar=bar)
        super().__init__(spec, microwave, door, embodiment.robot)


OPEN_MICROWAVE = TableTask(
    make_task=lambda _, robot: OpenMicrowave(robot), words="Open the door of a microwave oven by its handle."
)


TRAVEL_M = 0.015
PRESSED_M = 0.0135

_BUTTON_TOUCH = "hand_touches_button"
_CAP = MovedJoint(joint="press", called="button_press", unit="m", site="top", observed_as="button", thick_m=0.032)


class PressButton(ArticulatedTask):
    """Solved when the hand has held the button down at its stop for 0.2 s without a break.

    The spring pushes back with 1.5 to 5 N. The last 1.5 mm of the way count as the stop.
    """

    capturable = True

    def __init__(self, embodiment: Embodiment) -> None:
        spec = TaskSpec(
            name="press_button",
            instruction="press the red button",
            paraphrases=(
                "please press the red button",
                "push the red button",
                "push the red button down with your gripper",
                "hold the round red switch down",
                "with your gripper, trigger that red switch",
            ),
            time_limit_s=8.0,
            hold_steps=4,
            contact_sensors=(ContactSensor(name=_BUTTON_TOUCH, body=embodiment.robot.palm_body, other="button/cap"),),
            sites={"button": "button/top"},
            sizes={"button_travel": TRAVEL_M},
            metrics=(Metric(name="final_press_m", unit="m", better="higher"),),
        )
        area = embodiment.workspace.on_table((0.40, -0.20), (0.60, 0.20))
        button = SceneObject(prefix="button", asset="objects/button.xml", position=(0.5, 0.0, 0.0), area=area)
        super().__init__(spec, button, _CAP, embodiment.robot)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        press = backend.joint_position(self.joint)[:, 0]
        touched = backend.touching(_BUTTON_TOUCH)
        success = self.held(touched & (press >= PRESSED_M), running)
        reward = (
            0.5 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.5 * touched * terms.progress(press, start=0.0, goal=TRAVEL_M)
            + success
        )
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics={"final_press_m": press})

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return state.touching(_BUTTON_TOUCH) & (state.joint_position(self.joint)[:, 0] >= PRESSED_M)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        press, touched = moments.joint_position(self.joint)[:, 0], moments.touching(_BUTTON_TOUCH)
        share = touched * terms.progress(press, start=0.0, goal=PRESSED_M)
        nearly = (2 * PRESSED_M - TRAVEL_M) / PRESSED_M
        return self.moved_facts(moments, touched=touched, share=share, met=share >= 1, nearly=nearly)


PRESS_BUTTON = TableTask(make_task=lambda _, robot: PressButton(robot), words="Press a sprung button down to its stop.")
