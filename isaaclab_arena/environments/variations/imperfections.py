"""Add noise to a policy's actions, and delay to its observations."""

from collections.abc import Sequence

import numpy as np
import torch

from isaaclab_arena.device_reads import on_device
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.specs import ArraySpec

NOISE_STEPS = 64
"""Control steps whose noise is drawn at once. That of whole episodes would be gigabytes for thousands of env slots."""


class ActionNoise:
    """Adds noise to actions, drawn from a stream of the episode's own, so that no other env slot can change it.

    Noise is drawn for some control steps at a time, and a step takes as many operations for any number of env slots. An
    env slot that rests goes on with its noise; on a GPU, where nobody waits to learn who rests, only with that of its
    next episode.

    Args:
        spec: What an action looks like; elements without bounds have a range of 1.
        num_envs: Number of env slots.
        device: Where actions are.
    """

    def __init__(self, spec: ArraySpec, num_envs: int, *, device: torch.device) -> None:
        size = spec.shape[0]
        low = np.zeros(size) if spec.low is None else np.asarray(spec.low)
        high = np.ones(size) if spec.high is None else np.asarray(spec.high)
        self._range = np.where(np.isfinite(high - low), high - low, 1.0)
        self._shape = (num_envs, NOISE_STEPS, size)
        self._noise: torch.Tensor | None = None
        self._is_noisy = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._num_steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        self._streams: dict[int, tuple[np.random.Generator, float]] = {}
        self._draws = np.zeros(num_envs, bool)
        self._num_used = np.zeros(num_envs, np.int64)

    def begin(self, env_ids: Sequence[int], strengths: Sequence[float], seeds: Sequence[int]) -> None:
        """Start the noise of env slots.

        Args:
            env_ids: The env slots.
            strengths: Standard deviation in each of them, as a share of each element's range.
            seeds: Seed of each one's stream.
        """
        are_noisy = [strength > 0 for strength in strengths]
        if self._noise is None:
            if not any(are_noisy):
                return
            self._noise = torch.zeros(self._shape, dtype=torch.float64, device=self._is_noisy.device)
        begun = torch.tensor([*env_ids]), torch.tensor(are_noisy)
        slots, is_noisy = on_device(begun, self._is_noisy.device)
        self._num_steps[slots] = 0
        self._is_noisy[slots] = is_noisy
        self._num_used[[*env_ids]], self._draws[[*env_ids]] = 0, are_noisy
        for env_id, strength, seed in zip(env_ids, strengths, seeds, strict=True):
            self._streams[env_id] = np.random.default_rng(seed), strength
        self._draw(self._noise, [env_id for env_id, is_noisy in zip(env_ids, are_noisy, strict=True) if is_noisy])

    def added(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return the actions with noise on those of running env slots.

        Args:
            action: Shape: (num_envs, action_dim).
            running: Shape: (num_envs,), bool.
        """
        if self._noise is None:
            return action
        noise = self._noise[self._all_slots, self._num_steps % NOISE_STEPS].to(action)
        self._num_steps += running
        moved = running.numpy() if running.is_cpu else np.ones_like(self._draws)
        self._num_used += moved
        used_up = np.flatnonzero(self._draws & moved & (self._num_used % NOISE_STEPS == 0))
        self._draw(self._noise, used_up.tolist())
        return torch.where((running & self._is_noisy)[:, None], action + noise, action)

    def _draw(self, noise: torch.Tensor, env_ids: Sequence[int]) -> None:
        """Draw what the next control steps of env slots need."""
        if not env_ids:
            return
        drawn = np.empty((len(env_ids), *self._shape[1:]))
        for own, env_id in zip(drawn, env_ids, strict=True):
            stream, strength = self._streams[env_id]
            own[:] = stream.standard_normal(own.shape) * self._range * strength
        slots, there = on_device((torch.tensor(env_ids), torch.from_numpy(drawn)), noise.device)
        noise[slots] = there


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
        self._delay[env_ids] = torch.tensor(delays).to(env_ids.device, non_blocking=True)
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
