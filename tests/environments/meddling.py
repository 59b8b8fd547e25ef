"""Robots on a floor that a hand of fate moves about, to fail in a way that a test wants."""

from collections.abc import Callable

import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy

Meddle = Callable[[FloorEnvironment, int], None]
"""What is done to an environment of one env slot before a control step, given the number of the step."""


class Meddled(ZeroActionPolicy):
    """Does nothing, or the same all the time, while something else moves the robot."""

    def __init__(self, meddle: Meddle = lambda env, step: None, *, action: float = 0.0) -> None:
        super().__init__()
        self._meddle, self._action, self._step = meddle, action, 0

    def start_episodes(self, env, starts) -> None:
        super().start_episodes(env, starts)
        self._step = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        assert isinstance(env, FloorEnvironment)
        self._step += 1
        self._meddle(env, self._step)
        return super().get_action(env, observation) + self._action


def put_pole(angle: float, *, at: int, until: int | None = None) -> Meddle:
    """Put the pole at an angle, and the cart in the middle, from one step to another."""

    def meddle(env: FloorEnvironment, step: int) -> None:
        if at <= step <= (at if until is None else until):
            env.backend.qpos[0] = torch.tensor([0.0, angle], dtype=env.backend.qpos.dtype)
            env.backend.qvel[0] = 0

    return meddle


def balance_pole(*, leaning: float, at: int) -> Meddle:
    """Hold the pole upright, but for one step in which it leans."""

    def meddle(env: FloorEnvironment, step: int) -> None:
        put_pole(leaning if step == at else 0.0, at=step)(env, step)

    return meddle


def glide(ahead_m_s: float, aside_m_s: float = 0.0, *, until: int = 1000) -> Meddle:
    """Carry a robot over the floor, upright as it started, in the direction in which it looked."""
    first: list[torch.Tensor] = []

    def meddle(env: FloorEnvironment, step: int) -> None:
        if step == 1:
            first[:] = [env.backend.qpos[0].clone()]
        (start,) = first
        w, _, _, z = start[3:7]
        ahead = torch.stack((1 - 2 * z * z, 2 * w * z))
        aside = torch.stack((-ahead[1], ahead[0]))
        env.backend.qpos[0] = start
        env.backend.qpos[0, :2] += min(step, until) * env.control_dt * (ahead_m_s * ahead + aside_m_s * aside)
        env.backend.qvel[0] = 0

    return meddle


def spin(rad_s: float, *, at: int) -> Meddle:
    """Turn a robot that stands, suddenly, about the vertical."""

    def meddle(env: FloorEnvironment, step: int) -> None:
        if step == at:
            env.backend.qvel[0, 5] = rad_s

    return meddle
