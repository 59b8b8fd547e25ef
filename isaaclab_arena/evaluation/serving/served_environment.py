"""Show a policy an environment that is simulated elsewhere: its specs and its words, but no simulation."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions


class ServedEnvironment(Environment):
    """Stands for the environments of clients, in which a served policy acts. Only its attributes mean anything.

    Args:
        real: The environment whose specs it shows; it may be closed afterwards.
        num_envs: Env slots to show.
        shown: Terms that clients send, by group; None for all.
    """

    def __init__(self, real: Environment, *, num_envs: int, shown: Mapping[str, Collection[str]] | None = None) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.observation_spec = real.observation_spec if shown is None else _part_of(real.observation_spec, shown)
        self.action_spec = real.action_spec
        self.task_description = real.task_description
        self.max_episode_length = real.max_episode_length
        self.control_dt = real.control_dt

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Return nothing: whoever simulates knows what an episode starts from."""
        del generator
        return {}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Refuse, because nothing is simulated here.

        Raises:
            PolicyError: Always.
        """
        del env_ids, conditions
        raise PolicyError("a served policy cannot reset the environment, which is simulated elsewhere")

    def step(self, action: torch.Tensor) -> Step:
        """Refuse, because nothing is simulated here.

        Raises:
            PolicyError: Always.
        """
        del action
        raise PolicyError("a served policy cannot step the environment, which is simulated elsewhere")


def _part_of(spec: Mapping[str, Any], shown: Mapping[str, Collection[str]]) -> dict[str, Any]:
    # In the environment's own order, which a network may rely on.
    part = {
        group: {name: term for name, term in terms.items() if name in shown.get(group, ())}
        for group, terms in spec.items()
    }
    return {group: terms for group, terms in part.items() if terms}
