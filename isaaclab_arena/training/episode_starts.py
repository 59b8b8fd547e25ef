"""What training episodes start from: the environment's own draws, of streams that belong to the rank."""

from collections.abc import Sequence

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions, Episode

_JOB = "training"


class EpisodeStarts:
    """Gives each new episode of a rank its conditions, in the order in which they begin.

    Args:
        environment: Draws them.
        seed: Seed of the rank: that of the run plus the rank.
        group_size: How many consecutive episodes start alike.

    Attributes:
        group_size: As given; it may change before the next episodes begin.
        num_started: Episodes that have begun.
    """

    def __init__(self, environment: Environment, *, seed: int, group_size: int = 1) -> None:
        self._environment = environment
        self._seed = seed
        self.group_size = group_size
        self.num_started = 0

    def next_conditions(self, count: int) -> Sequence[Conditions]:
        """Return what the next episodes start from.

        Args:
            count: How many begin; a multiple of the group's size where groups start alike.
        """
        first, self.num_started = self.num_started, self.num_started + count
        drawn: list[Conditions] = []
        for index in range(first, first + count):
            if drawn and index % self.group_size:
                drawn.append(drawn[-1])
                continue
            episode = Episode(job=_JOB, episode_index=index // self.group_size, seed=self._seed)
            conditions = self._environment.draw_conditions(episode.conditions_generator())
            drawn.append(self._environment.vary_conditions(conditions, episode))
        return drawn
