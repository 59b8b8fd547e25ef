"""Push an open drawer shut."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Judgement, Task, draw_uniform, number, point
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

SHUT_M = 0.01
HOLD_STEPS = 5

_CABINET = "cabinet/body"
_SLIDE = "cabinet/slide"
_HANDLE = "cabinet/handle"
_TOUCH = "hand_touches_drawer"
_FASTEST_PUSH_M = 0.05
_SHARE_BY_HAND = 0.5
_LOW = (0.72, -0.10, 0.12)
_HIGH = (0.76, 0.10, 0.18)


@dataclass(frozen=True, kw_only=True)
class CloseDrawerConfig(CameraOptions):
    """Options of ``close_drawer``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class CloseDrawer(Task):
    """Solved when the drawer has been shut, to 1 cm, for 0.25 s, at least half of its way pushed by the hand.

    Way that the drawer makes without the hand on it, or faster than a hand pushes (1 m/s), is not pushed.
    """

    name = "close_drawer"
    instruction = "close the drawer"
    time_limit_s = 10.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        del workspace
        self.robot = robot
        self.parts = (ScenePart(prefix="cabinet", asset="objects/cabinet.xml", position=(0.74, 0.0, 0.0)),)
        self.contact_sensors = (ContactSensor(name=_TOUCH, body=robot.palm_body, other="cabinet/drawer"),)
        self.articulations = {"cabinet": ArticulatedAsset(root_body=_CABINET, joints=(_SLIDE,))}
        self.landmarks = {"handle": _HANDLE, "closed_handle": "cabinet/closed_handle"}

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the cabinet stands and how far its drawer is open."""
        x, y, opening = draw_uniform(generator, _LOW, _HIGH)
        return {"cabinet.position": (x, y, 0.0), "cabinet.drawer_opening": opening}

    def start_state(self, conditions: Conditions) -> StartState:
        """Return cabinet and drawer at rest."""
        return StartState(
            joint_positions={_SLIDE: (number(conditions["cabinet.drawer_opening"]),)},
            mocap_positions={_CABINET: point(conditions["cabinet.position"])},
        )

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the handle's position and the drawer's opening."""
        return {
            "handle_pos": position_term(lambda backend: backend.site_position(_HANDLE)),
            "drawer_opening": number_term("drawer_opening", "m", lambda backend: backend.joint_position(_SLIDE)),
        }

    def attach(self, backend: Backend) -> None:
        """Make the counters, and room for how far each drawer was open and was pushed [m]."""
        super().attach(backend)
        self._first_m = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self._opening_m = torch.zeros_like(self._first_m)
        self._pushed_m = torch.zeros_like(self._first_m)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget how far the drawer was pushed. Shape: (n,), int64."""
        super().begin(backend, env_ids)
        self._pushed_m[env_ids] = 0
        self._opening_m[env_ids] = backend.joint_position(_SLIDE)[env_ids, 0]
        self._first_m[env_ids] = self._opening_m[env_ids]

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the drawer's opening and by how much of its way the hand pushed it."""
        opening = backend.joint_position(_SLIDE)[:, 0]
        handle_distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(_HANDLE))
        touched = backend.touching(_TOUCH)
        pushed = terms.moved_by_hand(self._pushed_m, self._opening_m - opening, touched, _FASTEST_PUSH_M)
        self._pushed_m = torch.where(running, pushed, self._pushed_m)
        self._opening_m = torch.where(running, opening, self._opening_m)
        is_shut = (opening <= SHUT_M) & (self._pushed_m >= _SHARE_BY_HAND * self._first_m)
        self.held_steps = terms.count_while(is_shut, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        reward = (
            0.3 * terms.closeness(handle_distance, half_at=0.1)
            + 0.7 * (self._pushed_m / self._first_m.clamp(min=SHUT_M)).clamp(max=1.0)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_opening_m": opening, "pushed_m": self._pushed_m},
        )


def _make_task(config: CloseDrawerConfig, embodiment: Embodiment) -> CloseDrawer:
    del config
    return CloseDrawer(embodiment.robot, embodiment.workspace)


CLOSE_DRAWER = TableEnvironmentBuilder(config_class=CloseDrawerConfig, make_task=_make_task)
