"""GR00T policies that benchmarks name by their class path."""

import dataclasses
from collections.abc import Sequence

import torch

from benchmarks.harness.policies import write_note
from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy


class FirstAnswerPolicy(Gr00tClosedloopPolicy):
    """The GR00T policy, which notes the time of its answer in a run of one control step."""

    name = "first_answer"

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the model's actions. Shape: (num_envs, action_dim)."""
        action = super().get_action(env, observation)
        write_note()
        return action


class SwappedColours(Gr00tClosedloopPolicy):
    """The GR00T policy, which gives its model the other colour."""

    name = "gr00t_closedloop with the other colour"

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin episodes whose instruction names red instead of blue, and blue instead of red."""
        swapped_starts = [
            dataclasses.replace(start, language_instruction=swapped(start.language_instruction)) for start in starts
        ]
        super().start_episodes(env, swapped_starts)


def swapped(instruction: str) -> str:
    """Return the instruction with red and blue exchanged."""
    other = {"red": "blue", "blue": "red"}
    return " ".join(other.get(word, word) for word in instruction.split(" "))
