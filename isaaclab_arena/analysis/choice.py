"""Choose the best of several policies by half of the episodes, and score it again by the other half."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.results.clusters import ScoredEpisodes, draws_of, together
from isaaclab_arena.results.rows import of_conditions
from isaaclab_arena.results.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best of several policies. The best of many looks too good on the episodes that it was chosen by.

    Attributes:
        name: The policy.
        chosen_among: Of how many it is the best.
        rate_when_chosen: Mean of the tasks' success rates over the episodes of even index, by which it was chosen.
        episodes_when_chosen: Those of them that say whether they succeeded.
        rate: The same mean over the episodes of odd index, by which nothing was chosen.
        successes: Successes among these.
        episodes: Those of them that say whether they succeeded.
        interval: Wilson interval of the rate over all of these.
        distinct_conditions: How many different conditions these started from.
    """

    name: str
    chosen_among: int
    rate_when_chosen: float
    episodes_when_chosen: int
    rate: float
    successes: int
    episodes: int
    interval: Interval
    distinct_conditions: int

    @property
    def sentence(self) -> str:
        """Both figures in words."""
        low, high = 100 * self.interval.low, 100 * self.interval.high
        scored = f"{self.episodes} of odd index{of_conditions(self.distinct_conditions, self.episodes)}"
        return (
            f"'{self.name}' was chosen: the best of {self.chosen_among} over the {self.episodes_when_chosen} episodes "
            f"of even index, {100 * self.rate_when_chosen:.1f} %; scored again over the {scored}, "
            f"which nothing was chosen by: {100 * self.rate:.1f} % [{low:.1f}, {high:.1f}]"
        )


def choose_best(entries: Mapping[str, Sequence[Arm]]) -> Choice | None:
    """Choose the policy with the highest mean of its tasks' rates over the episodes of even index.

    Equal conditions have equal indices, so no condition is both chosen by and scored by. A job that repeats some is not
    scored by those of its even episodes. Of equal policies the first is chosen.

    Args:
        entries: Name of a policy to its jobs, one per task.

    Returns:
        None if a job has no episode of even or of odd index that says whether it succeeded.
    """
    chosen_by = {
        name: [arm.episodes.at(arm.episodes.index % 2 == 0).scored for arm in arms] for name, arms in entries.items()
    }
    scored_by = {name: [not_chosen_by(arm).episodes.scored for arm in arms] for name, arms in entries.items()}
    if not all(map(len, (task for tasks in (*chosen_by.values(), *scored_by.values()) for task in tasks))):
        return None
    name = max(entries, key=lambda each: _mean_rate(chosen_by[each]))
    scored = together(scored_by[name])
    interval = scored.wilson()
    if interval is None:
        return None
    return Choice(
        name=name,
        chosen_among=len(entries),
        rate_when_chosen=_mean_rate(chosen_by[name]),
        episodes_when_chosen=sum(map(len, chosen_by[name])),
        rate=_mean_rate(scored_by[name]),
        successes=scored.successes,
        episodes=len(scored),
        interval=interval,
        distinct_conditions=scored.num_distinct,
    )


def not_chosen_by(arm: Arm) -> Arm:
    """Return a job with those of its episodes alone by which `choose_best` chooses nothing."""
    episodes = arm.episodes.at(_is_not_chosen_by(arm))
    if arm.planned is None:
        return replace(arm, episodes=episodes)
    return replace(arm, episodes=episodes, planned=arm.planned // 2 if arm.num_missing else len(episodes))


def _is_not_chosen_by(arm: Arm) -> np.ndarray:
    """Return which episodes have an odd index, and conditions that none of even index has. Shape: (num_episodes,)."""
    is_odd, drawn = arm.episodes.index % 2 == 1, arm.episodes.drawn
    return is_odd & ~np.isin(draws_of(drawn), draws_of(drawn)[~is_odd])


def _mean_rate(tasks: Sequence[ScoredEpisodes]) -> float:
    return sum(task.rate or 0.0 for task in tasks) / len(tasks)
