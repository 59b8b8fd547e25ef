"""Experts that fail on purpose: the scripted policy, spoilt in one way."""

from collections.abc import Callable

import torch

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.policy.scripted import ScriptedPolicy

Spoil = Callable[[TableEnvironment, torch.Tensor, int], torch.Tensor]
"""What an environment of one env slot, the expert's action and the number of the step make of the action."""


class FailingExpert(ScriptedPolicy):
    """Does what the expert does, in an environment of one env slot, but with spoilt actions.

    It goes ``beside_m`` beside everything, along y, and takes two ``swapped`` landmarks of its plan for one another.
    """

    def __init__(
        self,
        spoil: Spoil = lambda env, action, step: action,
        *,
        beside_m: float = 0.0,
        swapped: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._spoil, self._beside_m, self._swapped, self._step = spoil, beside_m, swapped, 0

    def start_episodes(self, env, starts) -> None:
        known = self._player is not None
        super().start_episodes(env, starts)
        self._step = 0
        player = self._player_of(env)
        if self._swapped is not None and player.script.candidates:
            player.named[:] = 1 - player.named
        if known:
            return
        player.tables["offset"][:, 1] += self._beside_m
        if self._swapped is not None and not player.script.candidates:
            first, second = (player.roles.index(role) for role in self._swapped)
            for roles in (player.tables[each] for each in ("role", "carries", "toward")):
                firsts, seconds = roles == first, roles == second
                roles[firsts], roles[seconds] = second, first

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        assert isinstance(env, TableEnvironment)
        assert env.num_envs == 1
        self._step += 1
        return self._spoil(env, super().get_action(env, observation), self._step)


def standing_still(env: TableEnvironment, action: torch.Tensor, step: int) -> torch.Tensor:
    """Stay where the episode began."""
    del step
    if env.action_mode_name == "ee_delta":
        return torch.cat((torch.zeros_like(action[:, :-1]), action[:, -1:]), dim=1)
    arm = env.backend.ctrl[:, env.action_mode.arm_controls]
    return torch.cat((arm.float(), action[:, -1:]), dim=1)


When = Callable[[TableEnvironment], bool]
"""Whether it is time, in an environment of one env slot."""


def once(when: When, *moves: tuple[tuple[float, float, float], float, int]) -> Spoil:
    """Make moves of one's own from some time on: steps of the hand [m], the fingers' distance [m], and how often.

    The last one is made until the end. Actions must be end-effector deltas.
    """
    begun: list[int] = []

    def spoil(env: TableEnvironment, action: torch.Tensor, step: int) -> torch.Tensor:
        if step == 1:
            begun.clear()
        if not begun and not when(env):
            return action
        begun.append(step)
        ends = torch.tensor([each[2] for each in moves]).cumsum(0)
        way_m, width_m, _ = moves[min(int((ends < len(begun)).sum()), len(moves) - 1)]
        return torch.tensor([[*way_m, 0.0, 0.0, 0.0, width_m]])

    return spoil


def higher_than(height_m: float, thing: str = "object") -> When:
    """Whether an object is that high."""
    return lambda env: bool(env.backend.body_position(f"{thing}/body")[0, 2] > height_m)


def joint_beyond(joint: str, position: float, sign: int = 1) -> When:
    """Whether a joint is beyond a position, or below it."""
    return lambda env: bool(sign * (env.backend.joint_position(joint)[0, 0] - position) > 0)


def pushed_near(distance_m: float) -> When:
    """Whether the object is that near to the disc."""

    def near(env: TableEnvironment) -> bool:
        way = env.backend.body_position("object/body")[0, :2] - env.backend.body_position("goal/body")[0, :2]
        return bool(torch.linalg.vector_norm(way) < distance_m)

    return near
