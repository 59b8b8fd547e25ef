"""A policy with a small network that looks at two pictures, and says how often it was called."""

from collections.abc import Sequence

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits

_POOL = 16
_HIDDEN = 512


class GlancePolicy(PolicyBase[None]):
    """Makes of all pictures of an env slot what a random network makes of them; its first number counts its calls."""

    traits = PolicyTraits(reproducible=True)

    def __init__(self, config: None = None) -> None:
        super().__init__(config)
        self._layers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._calls = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every env slot. Shape: (num_envs, action_dim)."""
        return self.act_in_some(env, observation, range(env.num_envs))

    @torch.no_grad()
    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as `get_action` does: nothing is remembered of any env slot."""
        del env_ids
        pictures = torch.stack([each.movedim(-1, 1).float() for each in observation[CAMERAS].values()], dim=1)
        seen = torch.nn.functional.avg_pool2d(pictures.flatten(0, 1), _POOL).reshape(env.num_envs, -1) / 255
        if self._layers is None:
            generator = torch.Generator().manual_seed(0)
            sizes = (seen.shape[1], _HIDDEN), (_HIDDEN, *env.action_spec.shape)
            first, second = (torch.randn(size, generator=generator) / size[0] ** 0.5 for size in sizes)
            self._layers = first, second
        first, second = self._layers
        action = torch.tanh(torch.tanh(seen @ first) @ second)
        self._calls += 1
        action[:, 0] = self._calls
        return action
