"""Add noise to a policy's actions, and delay to its observations."""

from collections.abc import Sequence

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.specs import ArraySpec


class ActionNoise:
    """Adds noise to actions, drawn from a stream of the episode's own, so that no other env slot can change it.

    An episode's noise is drawn when it starts, so a control step takes as many operations for any number of env slots.

    Args:
        spec: What an action looks like; elements without bounds have a range of 1.
        num_envs: Number of env slots.
        max_steps: Control steps of the longest episode.
        device: Where actions are.
    """

    def __init__(self, spec: ArraySpec, num_envs: int, *, max_steps: int, device: torch.device) -> None:
        size = spec.shape[0]
        low = np.zeros(size) if spec.low is None else np.asarray(spec.low)
        high = np.ones(size) if spec.high is None else np.asarray(spec.high)
        self._range = np.where(np.isfinite(high - low), high - low, 1.0)
        # One more than there are steps, for an env slot that rests after the last of them.
        self._shape = (num_envs, max_steps + 1, size)
        self._noise: torch.Tensor | None = None
        self._is_noisy = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._num_steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)

    def begin(self, env_ids: torch.Tensor, strengths: Sequence[float], seeds: Sequence[int]) -> None:
        """Start the noise of env slots.

        Args:
            env_ids: The env slots. Shape: (n,), int64.
            strengths: Standard deviation in each of them, as a share of each element's range.
            seeds: Seed of each one's stream.
        """
        device = self._is_noisy.device
        self._num_steps[env_ids] = 0
        self._is_noisy[env_ids] = torch.tensor([strength > 0 for strength in strengths], device=device)
        if not any(strength > 0 for strength in strengths):
            return
        if self._noise is None:
            self._noise = torch.zeros(self._shape, dtype=torch.float64, device=device)
        drawn = np.zeros((len(seeds), *self._shape[1:]))
        for own, strength, seed in zip(drawn, strengths, seeds, strict=True):
            if strength > 0:
                own[:] = np.random.default_rng(seed).standard_normal(own.shape) * self._range * strength
        self._noise[env_ids] = torch.from_numpy(drawn).to(device)

    def added(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return the actions with noise on those of running env slots.

        Args:
            action: Shape: (num_envs, action_dim).
            running: Shape: (num_envs,), bool.
        """
        if self._noise is None:
            return action
        noise = self._noise[self._all_slots, self._num_steps].to(action)
        self._num_steps += running
        return torch.where((running & self._is_noisy)[:, None], action + noise, action)


class ObservationDelay:
    """Hands out what was observed some control steps ago; before that, the first observation of the episode.

    Every env slot counts its own observations, so that neither the resets nor the steps of its neighbours count for it.
    Nothing is remembered before an episode has a delay.

    Args:
        num_envs: Number of env slots.
        device: Where observations are.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._delay = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._latest = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        self._depth = 1
        self._past: dict[tuple[str, str], torch.Tensor] = {}

    @property
    def is_none(self) -> bool:
        """Whether policies see every env slot as it is now."""
        return self._depth == 1

    def begin(self, env_ids: torch.Tensor, delays: Sequence[int]) -> None:
        """Start env slots with delays [control steps]; their next observation is their first.

        Args:
            env_ids: The env slots. Shape: (n,), int64.
            delays: The delay in each of them.
        """
        depth = 1 + max(delays, default=0)
        if depth > self._depth:
            self._deepen(depth)
        env_ids = env_ids.to(self._delay.device)
        self._delay[env_ids] = torch.tensor(delays, device=env_ids.device)
        self._latest[env_ids] = -1

    def delayed(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return what policies see now.

        Args:
            observation: What is observed now, in all env slots.
            moved: Env slots that began or made a step; the others are given what they were given last.
                Shape: (num_envs,), bool.
        """
        if self.is_none:
            return observation
        moved = moved.to(self._delay.device)
        self._latest += moved
        kept_at = self._latest % self._depth
        shown_at = (self._latest - self._delay).clamp(min=0) % self._depth
        is_delayed = self._delay > 0

        def shown(group: str, name: str, now: torch.Tensor) -> torch.Tensor:
            if (group, name) not in self._past:
                self._past[group, name] = now.new_zeros(self._depth, *now.shape)
            past, slots, shape = self._past[group, name], self._all_slots, (-1, *(1,) * (now.dim() - 1))
            past[kept_at, slots] = torch.where(moved.reshape(shape), now, past[kept_at, slots])
            return torch.where(is_delayed.reshape(shape), past[shown_at, slots], now)

        return {
            group: {name: shown(group, name, now) for name, now in terms.items()}
            for group, terms in observation.items()
        }

    def _deepen(self, depth: int) -> None:
        """Remember more observations of every env slot, and keep those that are remembered."""
        kept = self._latest - torch.arange(self._depth, device=self._latest.device)[:, None]
        for term, past in self._past.items():
            deeper = past.new_zeros(depth, *past.shape[1:])
            deeper[kept % depth, self._all_slots] = past[kept % self._depth, self._all_slots]
            self._past[term] = deeper
        self._depth = depth
