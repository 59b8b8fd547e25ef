"""A GR00T policy that tells its model the other colour."""

import dataclasses
from collections.abc import Sequence

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy


class SwappedColours(Gr00tClosedloopPolicy):
    """Tells the model the other colour."""

    name = "gr00t_closedloop with the other colour"

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin episodes whose instruction names red instead of blue, and blue instead of red."""
        told = [
            dataclasses.replace(start, language_instruction=swapped(start.language_instruction)) for start in starts
        ]
        super().start_episodes(env, told)


def swapped(instruction: str) -> str:
    """Return the instruction with red and blue exchanged."""
    other = {"red": "blue", "blue": "red"}
    return " ".join(other.get(word, word) for word in instruction.split(" "))
