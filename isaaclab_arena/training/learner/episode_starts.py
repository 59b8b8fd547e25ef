"""Draws the conditions that training episodes start from, in random streams that belong to the rank."""

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions, Episode

_JOB = "training"


class EpisodeStarts:
    """Gives each new episode of a rank its conditions, in the order in which they begin.

    Args:
        environment: Draws them.
        seed: Seed of the rank: that of the run plus the rank.
        group_size: How many env slots begin alike where all env slots begin together.

    Attributes:
        group_size: As given; it may change before the next episodes begin.
        num_drawn: Conditions drawn so far.
    """

    def __init__(self, environment: Environment, *, seed: int, group_size: int = 1) -> None:
        self._environment = environment
        self._seed = seed
        self.group_size = group_size
        self.num_drawn = 0

    def next_conditions(self, count: int) -> list[Conditions]:
        """Return what the next episodes start from, each differently."""
        first, self.num_drawn = self.num_drawn, self.num_drawn + count
        return [self._draw(index) for index in range(first, first + count)]

    def next_groups(self, num_envs: int) -> list[Conditions]:
        """Return what all env slots start from, groups of consecutive env slots alike.

        Args:
            num_envs: Number of env slots, a multiple of the group's size.
        """
        drawn = self.next_conditions(num_envs // self.group_size)
        return [conditions for conditions in drawn for _ in range(self.group_size)]

    def _draw(self, index: int) -> Conditions:
        episode = Episode(job=_JOB, episode_index=index, seed=self._seed)
        conditions = self._environment.draw_conditions(episode.conditions_generator())
        return self._environment.vary_conditions(conditions, episode)
