"""Pull a drawer open by its handle."""

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
from isaaclab_arena.environments.tasks.manipulation.grasping import refuse_without_gripper
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

OPEN_M = 0.15
PULLED_M = 0.10
HOLD_STEPS = 3

_CABINET = "cabinet/body"
_SLIDE = "cabinet/slide"
_HANDLE = "cabinet/handle"
_LEFT_TOUCH = "left_finger_touches_handle"
_RIGHT_TOUCH = "right_finger_touches_handle"
_FASTEST_PULL_M = 0.05
_LOW = (0.68, -0.10, 0.0)
_HIGH = (0.74, 0.10, 0.02)


@dataclass(frozen=True, kw_only=True)
class OpenDrawerConfig(CameraOptions):
    """Options of ``open_drawer``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class OpenDrawer(Task):
    """Solved when the drawer has been open by 0.15 m for 0.15 s, at least 0.1 m of it pulled by a finger at the handle.

    Way that the drawer makes without a finger at its handle, or faster than a hand pulls (1 m/s), is not pulled: a
    drawer that is knocked or squeezed open does not count.
    """

    name = "open_drawer"
    instruction = "open the drawer"
    time_limit_s = 10.0

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.parts = (ScenePart(prefix="cabinet", asset="objects/cabinet.xml", position=(0.7, 0.0, 0.0)),)
        left, right = robot.fingers
        self.contact_sensors = (
            ContactSensor(name=_LEFT_TOUCH, body=left, other=_HANDLE, other_is_geom=True),
            ContactSensor(name=_RIGHT_TOUCH, body=right, other=_HANDLE, other_is_geom=True),
        )
        self.articulations = {"cabinet": ArticulatedAsset(root_body=_CABINET, joints=(_SLIDE,))}
        self.landmarks = {"handle": _HANDLE}
        self.sizes = {"drawer_threshold": OPEN_M}

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
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
        """Make the counters, and room for how far each drawer was open and was pulled [m]."""
        super().attach(backend)
        self._opening_m = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self._pulled_m = torch.zeros_like(self._opening_m)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget how far the drawer was pulled. Shape: (n,), int64."""
        super().begin(backend, env_ids)
        self._pulled_m[env_ids] = 0
        self._opening_m[env_ids] = backend.joint_position(_SLIDE)[env_ids, 0]

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the drawer's opening and by how much of it a finger pulled."""
        opening = backend.joint_position(_SLIDE)[:, 0]
        handle_distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(_HANDLE))
        at_handle = backend.touching(_LEFT_TOUCH) | backend.touching(_RIGHT_TOUCH)
        pulled = terms.moved_by_hand(self._pulled_m, opening - self._opening_m, at_handle, _FASTEST_PULL_M)
        self._pulled_m = torch.where(running, pulled, self._pulled_m)
        self._opening_m = torch.where(running, opening, self._opening_m)
        is_open = (opening >= OPEN_M) & (self._pulled_m >= PULLED_M)
        self.held_steps = terms.count_while(is_open, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        reward = (
            0.3 * terms.closeness(handle_distance, half_at=0.1)
            + 0.2 * at_handle
            + 0.5 * terms.progress(self._pulled_m, start=0.0, goal=OPEN_M)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_opening_m": opening, "pulled_m": self._pulled_m},
        )


def _make_task(config: OpenDrawerConfig, embodiment: Embodiment) -> OpenDrawer:
    del config
    refuse_without_gripper(embodiment.robot)
    return OpenDrawer(embodiment.robot)


OPEN_DRAWER = TableEnvironmentBuilder(config_class=OpenDrawerConfig, make_task=_make_task)
