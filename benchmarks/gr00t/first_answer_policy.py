"""The GR00T policy, which writes down when its model has answered, in a run that has a single control step."""

import torch

from benchmarks.runs.first_step_policy import write_note
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy


class FirstAnswerPolicy(Gr00tClosedloopPolicy):
    """Writes down when it has answered."""

    name = "first_answer"

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the model's actions. Shape: (num_envs, action_dim)."""
        action = super().get_action(env, observation)
        write_note()
        return action
