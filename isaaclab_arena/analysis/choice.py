"""Choose the best of several policies by half of the episodes, and score it again by the other half."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.results.statistics import Interval, wilson_interval


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
    """

    name: str
    chosen_among: int
    rate_when_chosen: float
    episodes_when_chosen: int
    rate: float
    successes: int
    episodes: int
    interval: Interval

    @property
    def sentence(self) -> str:
        """Both figures in words."""
        low, high = 100 * self.interval.low, 100 * self.interval.high
        return (
            f"'{self.name}' was chosen: the best of {self.chosen_among} over the {self.episodes_when_chosen} episodes "
            f"of even index, {100 * self.rate_when_chosen:.1f} %; scored again over the {self.episodes} of odd index, "
            f"which nothing was chosen by: {100 * self.rate:.1f} % [{low:.1f}, {high:.1f}]"
        )


def choose_best(entries: Mapping[str, Sequence[Arm]]) -> Choice | None:
    """Choose the policy with the highest mean of its tasks' rates over the episodes of even index.

    Equal conditions have equal indices, so no condition is both chosen by and scored by. Of equal policies the first
    is chosen.

    Args:
        entries: Name of a policy to its jobs, one per task.

    Returns:
        None if a job has no episode of even or of odd index that says whether it succeeded.
    """
    chosen_by = {name: [_counts(arm, odd=False) for arm in arms] for name, arms in entries.items()}
    scored_by = {name: [_counts(arm, odd=True) for arm in arms] for name, arms in entries.items()}
    if not all(episodes for tasks in (*chosen_by.values(), *scored_by.values()) for _, episodes in tasks):
        return None
    name = max(entries, key=lambda each: _mean_rate(chosen_by[each]))
    successes, episodes = (sum(each) for each in zip(*scored_by[name], strict=True))
    interval = wilson_interval(successes, episodes)
    if interval is None:
        return None
    return Choice(
        name=name,
        chosen_among=len(entries),
        rate_when_chosen=_mean_rate(chosen_by[name]),
        episodes_when_chosen=sum(episodes for _, episodes in chosen_by[name]),
        rate=_mean_rate(scored_by[name]),
        successes=successes,
        episodes=episodes,
        interval=interval,
    )


def not_chosen_by(arm: Arm) -> Arm:
    """Return a job with its episodes of odd index alone, by which `choose_best` chooses nothing."""
    return replace(
        arm,
        episodes=arm.episodes.at(arm.episodes.index % 2 == 1),
        planned=None if arm.planned is None else arm.planned // 2,
    )


def _counts(arm: Arm, *, odd: bool) -> tuple[int, int]:
    """Return successes, and episodes that say whether they succeeded, of odd or of even index."""
    success = arm.episodes.success[arm.episodes.index % 2 == int(odd)]
    return int((success > 0).sum()), int((success >= 0).sum())


def _mean_rate(counts: Sequence[tuple[int, int]]) -> float:
    return sum(successes / episodes for successes, episodes in counts) / len(counts)
