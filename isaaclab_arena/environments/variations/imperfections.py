"""What lies between a policy and its robot: noise on the way out, delay on the way in."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.specs import ArraySpec


class ActionNoise:
    """Adds noise to actions, drawn from a stream of the episode's own, so that no other env slot can change it.

    Args:
        spec: What an action looks like; elements without bounds have a range of 1.
        num_envs: Number of env slots.
    """

    def __init__(self, spec: ArraySpec, num_envs: int) -> None:
        size = spec.shape[0]
        low = np.zeros(size) if spec.low is None else np.asarray(spec.low)
        high = np.ones(size) if spec.high is None else np.asarray(spec.high)
        self._range = np.where(np.isfinite(high - low), high - low, 1.0)
        self._strength = np.zeros(num_envs)
        self._streams = [np.random.default_rng(0) for _ in range(num_envs)]

    def begin(self, env_id: int, strength: float, seed: int) -> None:
        """Start an env slot's noise: its standard deviation as a share of each element's range, and its stream."""
        self._strength[env_id] = strength
        self._streams[env_id] = np.random.default_rng(seed)

    def added(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return the actions with noise on those of running env slots.

        Args:
            action: Shape: (num_envs, action_dim).
            running: Shape: (num_envs,), bool.
        """
        noisy = action.clone()
        for env_id in running.nonzero()[:, 0].tolist():
            if self._strength[env_id] > 0:
                noise = self._streams[env_id].standard_normal(len(self._range)) * self._range * self._strength[env_id]
                noisy[env_id] += torch.from_numpy(noise).to(action)
        return noisy


class ObservationDelay:
    """Hands out what was observed some control steps ago; before that, the first observation of the episode.

    Every env slot remembers for itself, so that neither the resets nor the steps of its neighbours count as its own.

    Args:
        num_envs: Number of env slots.
    """

    def __init__(self, num_envs: int) -> None:
        self._past: list[deque[Observation]] = [deque(maxlen=1) for _ in range(num_envs)]

    def begin(self, env_id: int, delay: int) -> None:
        """Start an env slot with a delay [control steps]; its next observation is its first."""
        self._past[env_id] = deque(maxlen=delay + 1)

    def delayed(self, observation: Observation, moved: Sequence[int]) -> Observation:
        """Return what policies see now.

        Args:
            observation: What is observed now, in all env slots.
            moved: Env slots that began or made a step; the others are given what they were given last.
        """
        for env_id in moved:
            self._past[env_id].append(_slot(observation, env_id))
        given = {group: {name: value.clone() for name, value in terms.items()} for group, terms in observation.items()}
        for env_id, past in enumerate(self._past):
            if past:
                _put(given, past[0], env_id)
        return given


def _slot(observation: Observation, env_id: int) -> Observation:
    return {
        group: {name: value[env_id].clone() for name, value in terms.items()} for group, terms in observation.items()
    }


def _put(observation: Observation, slot: Observation, env_id: int) -> None:
    for group, terms in slot.items():
        for name, value in terms.items():
            observation[group][name][env_id] = value
