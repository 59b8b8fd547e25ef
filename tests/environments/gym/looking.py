"""A policy that looks at every third picture of an episode, and does until the next one what it made of it."""

from collections.abc import Sequence

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits

PERIOD = 3


class LooksNowAndThen(PolicyBase[PolicyCfg]):
    """Acts as the brightness of what the camera ``front`` saw last says."""

    config_class = PolicyCfg
    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def __init__(self, config: PolicyCfg | None = None) -> None:
        super().__init__(config)
        self._steps: dict[int, int] = {}
        self._actions: dict[int, torch.Tensor] = {}

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self._steps.update({start.env_id: 0 for start in starts})

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            del self._steps[env_id]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        action = torch.zeros(env.num_envs, *env.action_spec.shape)
        for env_id, steps in self._steps.items():
            if steps % PERIOD == 0:
                colours = observation["camera_obs"]["front"][env_id].to(torch.float64).mean(dim=(0, 1))
                self._actions[env_id] = torch.sin(colours[:2]).to(torch.float32)
            action[env_id] = self._actions[env_id]
            self._steps[env_id] += 1
        return action

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        return [*starting, *(env_id for env_id, steps in self._steps.items() if steps % PERIOD == 0)]
