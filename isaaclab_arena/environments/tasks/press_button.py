"""Press a sprung button down to its stop."""

import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.events import Facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.task import TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.articulated import ArticulatedTask, MovedJoint
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend, NamedState
from isaaclab_arena.sim.scene import ContactSensor

TRAVEL_M = 0.015
PRESSED_M = 0.0135
HOLD_STEPS = 4

_TOUCH = "hand_touches_button"
_AREA = ((0.40, -0.20), (0.60, 0.20))
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
            hold_steps=HOLD_STEPS,
            contact_sensors=(ContactSensor(name=_TOUCH, body=embodiment.robot.palm_body, other="button/cap"),),
            sites={"button": "button/top"},
            sizes={"button_travel": TRAVEL_M},
            metrics=(Metric(name="final_press_m", unit="m", better="higher"),),
        )
        area = embodiment.workspace.on_table(*_AREA)
        button = SceneObject(prefix="button", asset="objects/button.xml", position=(0.5, 0.0, 0.0), area=area)
        super().__init__(spec, button, _CAP, embodiment.robot)

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        press = backend.joint_position(self.joint)[:, 0]
        touched = backend.touching(_TOUCH)
        success = self.held(touched & (press >= PRESSED_M), running)
        reward = (
            0.5 * terms.closeness(self.hand_distance(backend), half_at=0.1)
            + 0.5 * touched * terms.progress(press, start=0.0, goal=TRAVEL_M)
            + success
        )
        metrics = {"final_press_m": press}
        return Verdict(reward=reward, success=success, lost=torch.zeros_like(success), metrics=metrics)

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor:
        return state.touching(_TOUCH) & (state.joint_position(self.joint)[:, 0] >= PRESSED_M)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        press, touched = moments.joint_position(self.joint)[:, 0], moments.touching(_TOUCH)
        share = touched * terms.progress(press, start=0.0, goal=PRESSED_M)
        nearly = (2 * PRESSED_M - TRAVEL_M) / PRESSED_M
        return self.moved_facts(moments, touched=touched, share=share, met=share >= 1, nearly=nearly)


PRESS_BUTTON = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: PressButton(embodiment))
