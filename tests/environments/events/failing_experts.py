"""Experts that fail on purpose: the scripted policy, spoilt in one way."""

from collections.abc import Callable

import torch

from isaaclab_arena.environments.arena.table_environment import TableEnvironment
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.policy.scripted import ScriptedPolicy

Spoil = Callable[[TableEnvironment, torch.Tensor, int], torch.Tensor]
"""What an environment of one env slot, the expert's action and the number of the step make of the action."""


class FailingExpert(ScriptedPolicy):
    """Does what the expert does, in an environment of one env slot, and then something else.

    Args:
        spoil: Changes its actions.
        beside_m: How far beside everything it goes, along y [m].
    """

    def __init__(self, spoil: Spoil = lambda env, action, step: action, *, beside_m: float = 0.0) -> None:
        super().__init__()
        self._spoil, self._beside_m, self._step = spoil, beside_m, 0

    def start_episodes(self, env, starts) -> None:
        known = self._player is not None
        super().start_episodes(env, starts)
        self._step = 0
        if not known:
            self._player_of(env).tables.offset[:, 1] += self._beside_m

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        assert isinstance(env, TableEnvironment)
        assert env.num_envs == 1
        self._step += 1
        return self._spoil(env, super().get_action(env, observation), self._step)


def standing_still(env: TableEnvironment, action: torch.Tensor, step: int) -> torch.Tensor:
    """Stay where the episode began."""
    del step
    arm = env.backend.ctrl[:, env.action_mode.arm_controls]
    return torch.cat((arm.float(), action[:, -1:]), dim=1)


def open_at(height_m: float, thing: str = "object") -> Spoil:
    """Open the gripper for good once a thing is that high."""
    opened: list[bool] = []

    def spoil(env: TableEnvironment, action: torch.Tensor, step: int) -> torch.Tensor:
        if step == 1:
            opened.clear()
        if opened or env.backend.body_position(f"{thing}/body")[0, 2] > height_m:
            opened.append(True)
            action = action.clone()
            action[0, -1] = 0.08
        return action

    return spoil


def stopping_at(height_m: float, thing: str = "object") -> Spoil:
    """Stay where the hand is once a thing is that high."""
    kept: list[torch.Tensor] = []

    def spoil(env: TableEnvironment, action: torch.Tensor, step: int) -> torch.Tensor:
        if step == 1:
            kept.clear()
        if not kept and env.backend.body_position(f"{thing}/body")[0, 2] > height_m:
            kept.append(action.clone())
        return kept[0] if kept else action

    return spoil
