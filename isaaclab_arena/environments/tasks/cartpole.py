"""Balance a pole on a cart, or swing it up first."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import FloorEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import ViewportOptions
from isaaclab_arena.environments.events import BRIEF_S, FloorFacts, ever, streak
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import ObservationTerm, number_term
from isaaclab_arena.environments.mdp.task import FloorTask, TaskSpec, Verdict
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.episode import Conditions, draw_uniform, number
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.scene import CameraPose, FloorRobot

Start = Literal["upright", "hanging"]

RAIL_M = 1.0
UPRIGHT_COS = math.cos(0.2)
FALLEN_COS = math.cos(0.8)

_TWICE_AS_FAR_COS = 2 * UPRIGHT_COS**2 - 1

_SLIDER, _HINGE, _POLE = "robot/slider", "robot/hinge", "robot/pole"

CARTPOLE_ROBOT = FloorRobot(
    name="cartpole",
    asset="robots/cartpole.xml",
    root_body="robot/rail",
    free_joint=None,
    joints=(_SLIDER, _HINGE),
    default_joint_position=(0.0, 0.0),
    actuators=("robot/push",),
    default_control=(0.0,),
    action_scale=(20.0,),
    action_bound=1.0,
    holds_targets=False,
    viewport=CameraPose(name="viewport", position=(0.9, -3.6, 1.8), target=(0.0, 0.0, 1.15), fovy_deg=42.0),
)


@dataclass(frozen=True, kw_only=True)
class CartpoleConfig(ViewportOptions):
    """Options of ``cartpole``.

    Attributes:
        start: Whether the pole stands at the start and is to be balanced, or hangs and is to be swung up.
    """

    start: Start = "upright"


class Cartpole(FloorTask):
    """Solved when pole and cart have been in place for the last 2 s of the time, or, if they began so, for all of it.

    In place means that the pole is within 0.2 rad of upright and the cart within 1 m of the middle of its rail. Lost
    when the cart is more than 1 m from the middle, or, with a pole that stood at the start, when it leans by 0.8 rad.
    """

    robot = CARTPOLE_ROBOT
    control_dt = 0.02
    cleared = (*FloorTask.cleared, "_length")
    moment_fields = ("qpos",)
    capturable = True

    def __init__(self, start: Start) -> None:
        if start not in get_args(Start):
            message = f"no start called '{start}'{did_you_mean(str(start), get_args(Start))}"
            raise ConfigError(Problem(message, key="start"))
        self.starts_upright = start == "upright"
        instruction = "balance the pole" if self.starts_upright else "swing the pole up and balance it"
        super().__init__(TaskSpec(name="cartpole", instruction=instruction, time_limit_s=10.0))
        self._episode_length = round(self.spec.time_limit_s / self.control_dt)
        self._held_steps = self._episode_length if self.starts_upright else round(2.0 / self.control_dt)

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self._length = torch.zeros_like(self.held_steps)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        position, lean, speed, rate = draw_uniform(generator, (-0.3, -0.1, -0.2, -0.2), (0.3, 0.1, 0.2, 0.2))
        return {
            "cart.position": position,
            "pole.angle": lean if self.starts_upright else math.pi + lean,
            "cart.velocity": speed,
            "pole.angular_velocity": rate,
        }

    def start_state(self, conditions: Conditions) -> StartState:
        place, speed, angle, rate = (
            (number(conditions[name]),)
            for name in ("cart.position", "cart.velocity", "pole.angle", "pole.angular_velocity")
        )
        return StartState(
            joint_positions={_SLIDER: place, _HINGE: angle}, joint_velocities={_SLIDER: speed, _HINGE: rate}
        )

    def observation_terms(self) -> dict[str, ObservationTerm]:
        return {
            "cart_pos": number_term("x", "m", lambda backend: backend.joint_position(_SLIDER)),
            "pole_angle": ObservationTerm(spec=ArraySpec(shape=(2,), names=("cos", "sin")), read=_cos_and_sin),
            "cart_vel": number_term("x", "m/s", lambda backend: backend.joint_velocity(_SLIDER)),
            "pole_vel": number_term("y", "rad/s", lambda backend: backend.joint_velocity(_HINGE)),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        upright = _cos_and_sin(backend)[:, 0]
        position = backend.joint_position(_SLIDER)[:, 0]
        self.held_steps = terms.count_while(_in_place(upright, position), self.held_steps, running)
        self._length = self._length + running
        # The reward is a product of upright, centred, slow and gentle; it is 1 per second if all are ideal.
        action = self.actions.last(backend)[:, 0]
        centred = terms.closeness(position, half_at=1.0)
        calm = terms.closeness(backend.joint_velocity(_HINGE)[:, 0], half_at=8.0)
        gentle = 1 - 0.1 * action * action
        reward = self.control_dt * (0.5 * (1 + upright) * centred * calm * gentle)
        success = (self._length >= self._episode_length) & (self.held_steps >= self._held_steps)
        lost = (abs(position) > RAIL_M) | ((upright < FALLEN_COS) & self.starts_upright)
        metrics = {"upright_s": self.held_steps * self.control_dt}
        return Verdict(reward=reward, success=success, lost=lost, metrics=metrics)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        angle, position = (moments.joint_position(joint).numpy()[:, 0] for joint in (_HINGE, _SLIDER))
        upright = np.cos(angle)
        in_place, off_rail = _in_place(upright, position), abs(position) > RAIL_M
        nearly_in_place = _in_place(upright, position, _TWICE_AS_FAR_COS)
        stands = streak(in_place)
        if self.starts_upright:
            # One moment out of place loses the episode.
            steps = np.arange(len(upright))
            lost = stands < steps
            return FloorFacts(
                dt_s=self.control_dt,
                share=steps / self._episode_length,
                lost=lost,
                fallen=upright < FALLEN_COS,
                nearly=lost & nearly_in_place.all(),
                strayed=lost,
                off_rail=off_rail,
            )

        # A pole that hung rises, and then stands; the last third is for success.
        risen = ((upright + 1) / (UPRIGHT_COS + 1)).clip(0, 1)
        stages = np.where(stands > 0, 1 + np.minimum(stands / self._held_steps, 1.0), risen)
        stood = ever(stands >= round(BRIEF_S / self.control_dt))
        return FloorFacts(
            dt_s=self.control_dt,
            share=stages / 3,
            lost=ever(off_rail),
            fallen=stood & (upright < FALLEN_COS),
            nearly=streak(nearly_in_place) >= self._held_steps,
            met=in_place,
            moved=upright > -math.cos(0.3),
            off_rail=off_rail,
        )


def _in_place(upright: Any, position: Any, least: float = UPRIGHT_COS) -> Any:
    """True where the pole's cosine exceeds ``least`` and the cart is on its rail; tensors or arrays (n,)."""
    return (upright > least) & (abs(position) <= RAIL_M)


def _cos_and_sin(backend: Backend) -> torch.Tensor:
    """Return the pole's angle from upright as cosine and sine. Shape: (num_envs, 2)."""
    w, _, y, _ = backend.body_orientation(_POLE).unbind(-1)
    return torch.stack((1 - 2 * y * y, 2 * w * y), dim=-1)


CARTPOLE = FloorEnvironmentBuilder(config_class=CartpoleConfig, make_task=lambda config: Cartpole(config.start))
