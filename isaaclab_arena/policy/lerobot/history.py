"""What env slots showed a policy in the last control steps of their episodes."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, in_colours
from isaaclab_arena.policy.lerobot.fitting import Inputs


class ObservationHistory:
    """The last observations of each env slot. One that begins has shown what it shows first for ever, as in LeRobot.

    Args:
        inputs: What a policy is shown.
        length: How many observations.
    """

    def __init__(self, inputs: Inputs, length: int) -> None:
        self._inputs, self._length = inputs, length
        self._seen: dict[int, deque[Mapping[str, np.ndarray]]] = {}

    def restart(self, env_ids: Sequence[int]) -> None:
        """Forget what these env slots showed."""
        for env_id in env_ids:
            self._seen.pop(env_id, None)

    def push(self, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take what some env slots show now; the others are not looked at before their next observation."""
        for env_id, shown in zip(env_ids, self._shown(observation, env_ids), strict=True):
            if env_id not in self._seen:
                self._seen[env_id] = deque([shown] * self._length, maxlen=self._length)
            else:
                self._seen[env_id].append(shown)

    def frames(self, env_ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the last observations of some env slots, oldest first, by input. Shape: (n, length, ...)."""
        names = (*self._inputs.cameras, *self._inputs.terms)
        return {name: np.stack([[each[name] for each in self._seen[env_id]] for env_id in env_ids]) for name in names}

    def _shown(self, observation: Observation, env_ids: Sequence[int]) -> list[dict[str, np.ndarray]]:
        slots = list(env_ids)
        pictures = {name: observation[CAMERAS][camera][slots] for name, camera in self._inputs.cameras.items()}
        for name in self._inputs.in_colours:
            pictures[name] = in_colours(pictures[name])
        states = {
            name: torch.cat([observation["policy"][term][slots].to(torch.float32).flatten(1) for term in terms], dim=1)
            for name, terms in self._inputs.terms.items()
        }
        named = {**pictures, **states}
        arrays = {name: part.numpy() for name, part in zip(named, on_cpu(list(named.values())), strict=True)}
        return [{name: array[place] for name, array in arrays.items()} for place in range(len(slots))]
