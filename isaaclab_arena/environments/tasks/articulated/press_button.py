"""Press a sprung button down to its stop."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Judgement, Task, draw_uniform, point
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

TRAVEL_M = 0.015
PRESSED_M = 0.0135
HOLD_STEPS = 4

_BODY = "button/body"
_CAP = "button/cap"
_PRESS = "button/press"
_TOP = "button/top"
_TOUCH = "hand_touches_button"
_LOW = (0.40, -0.20)
_HIGH = (0.60, 0.20)


@dataclass(frozen=True, kw_only=True)
class PressButtonConfig(CameraOptions):
    """Options of ``press_button``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class PressButton(Task):
    """Solved when the hand has held the button down at its stop for 0.2 s without a break.

    The spring pushes back with 1.5 to 5 N. The last 1.5 mm of the way count as the stop.
    """

    name = "press_button"
    instruction = "press the red button"
    time_limit_s = 8.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        self.robot = robot
        self.area = workspace.on_table(_LOW, _HIGH)
        self.parts = (ScenePart(prefix="button", asset="objects/button.xml", position=(0.5, 0.0, 0.0)),)
        self.contact_sensors = (ContactSensor(name=_TOUCH, body=robot.palm_body, other=_CAP),)
        self.articulations = {"button": ArticulatedAsset(root_body=_BODY, joints=(_PRESS,))}
        self.landmarks = {"button": _TOP}
        self.sizes = {"button_travel": TRAVEL_M}

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, float | tuple[float, ...]]:
        """Draw where the button stands."""
        return {"button.position": (*draw_uniform(generator, *self.area), 0.0)}

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the button in its place, up."""
        return StartState(mocap_positions={_BODY: point(conditions["button.position"])})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the top of the button and how far it is down."""
        return {
            "button_pos": position_term(lambda backend: backend.site_position(_TOP)),
            "button_press": number_term("button_press", "m", lambda backend: backend.joint_position(_PRESS)),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by how far the button is down and by what touches it."""
        press = backend.joint_position(_PRESS)[:, 0]
        distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(_TOP))
        touched = backend.touching(_TOUCH)
        self.held_steps = terms.count_while(touched & (press >= PRESSED_M), self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        return Judgement(
            reward=0.5 * terms.closeness(distance, half_at=0.1)
            + 0.5 * touched * terms.progress(press, start=0.0, goal=TRAVEL_M)
            + success,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_press_m": press},
        )


def _make_task(config: PressButtonConfig, embodiment: Embodiment) -> PressButton:
    del config
    return PressButton(embodiment.robot, embodiment.workspace)


PRESS_BUTTON = TableEnvironmentBuilder(config_class=PressButtonConfig, make_task=_make_task)
