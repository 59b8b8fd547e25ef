"""Compare the jobs of a run with those of another, or with each other: what differs, how surely, and what is open."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from isaaclab_arena.analysis.arms import Arm, EpisodeColumns
from isaaclab_arena.analysis.families import holm, mean_interval, signed_rank_p
from isaaclab_arena.analysis.matching import MatchedEpisodes
from isaaclab_arena.analysis.paired_rates import paired_difference_interval, sign_flip_p
from isaaclab_arena.analysis.planning import PairChances, least_number, pair_chances, paired_power
from isaaclab_arena.interfaces.episode import EVENTS
from isaaclab_arena.results.clusters import design_effect, draws_of, influences, means_of_draws
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.counts import PairCounts

_POWER = 0.8
_MOST_PAIRS = 5_000
_DETECTABLE_STEP = 0.005


class Verdict(StrEnum):
    """What a comparison says of its candidate."""

    BETTER = "better"
    NO_WORSE = "no worse"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        alpha: How often a difference may be found where there is none.
        margin: By how much the candidate may be worse, 0 to 1, where "no worse" is asked; None where "better" is.

    Raises:
        ValueError: If one is out of its range.
    """

    alpha: float = 0.05
    margin: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha must be between 0 and 1, got {self.alpha:g}")
        if self.margin is not None and not 0.0 < self.margin < 1.0:
            raise ValueError(f"the margin must be between 0 and 1, got {self.margin:g}")


@dataclass(frozen=True, kw_only=True)
class MeanDifference:
    """How a measure differs over pairs: the candidate's less the baseline's.

    Attributes:
        num_pairs: Pairs that have it.
        first_mean: The candidate's mean.
        second_mean: The baseline's mean.
        mean: Mean of the differences.
        interval: Its bootstrap interval (BCa), None for fewer than two pairs.
        p_value: Of Wilcoxon's signed-rank test, two-sided.
    """

    num_pairs: int
    first_mean: float
    second_mean: float
    mean: float
    interval: Interval | None
    p_value: float


@dataclass(frozen=True, kw_only=True)
class EventDifference:
    """How often an event happened to the candidate and to the baseline, over pairs in which both tell.

    Attributes:
        event: The event.
        num_pairs: Those pairs.
        first: Episodes of the candidate that had it.
        second: Episodes of the baseline that had it.
        only_first: Pairs in which only the candidate's had it.
        only_second: Pairs in which only the baseline's had it.
        mid_p: Two-sided mid-p value of McNemar's test.
        adjusted_p: That, adjusted by Holm's method for all events of the comparison that happened at all.
    """

    event: str
    num_pairs: int
    first: int
    second: int
    only_first: int
    only_second: int
    mid_p: float
    adjusted_p: float


@dataclass(frozen=True, kw_only=True)
class JobComparison:
    """A candidate against its baseline on one task. Differences are the candidate's less the baseline's.

    Attributes:
        first: The candidate.
        second: The baseline.
        matched: Their pairs.
        counts: How the pairs came out, those with an error left out.
        distinct: How many different conditions these pairs started from.
        num_errors: Pairs in which either episode, or both, ended in an error.
        rates: Success rates over the pairs, candidate and baseline.
        intervals: Their Wilson intervals.
        difference: Difference of the rates.
        interval: Its interval, of confidence 1 - alpha.
        bounds: The difference if every error was a failure of the candidate and a success of the baseline, and the
            other way round.
        mid_p: Two-sided mid-p value of McNemar's test, see `sign_flip_p` for pairs that share conditions.
        exact_p: That of the exact test.
        adjusted_p: ``mid_p`` adjusted for the family that the comparison belongs to.
        verdict: What is to be said of the candidate.
        detectable: The least difference that so many pairs would find in four of five tries, None where none is.
        pairs_needed: How many pairs, each with conditions of its own, would settle the question in four of five tries,
            if the rates are what was seen; None where more than 5,000 would be needed.
        length: Control steps of an episode.
        time_to_success: The same over pairs in which both succeeded.
        episode_return: Sum of the rewards of an episode.
        progress: Share of the task that was done, 0 to 1, where the task measures it.
        events: What happened to either, where the task tells, those first that tell them apart most surely.
    """

    first: Arm
    second: Arm
    matched: MatchedEpisodes
    counts: PairCounts
    distinct: int
    num_errors: int
    rates: tuple[float, float]
    intervals: tuple[Interval, Interval]
    difference: float
    interval: Interval
    bounds: Interval
    mid_p: float
    exact_p: float
    adjusted_p: float
    verdict: Verdict
    detectable: float | None
    pairs_needed: int | None
    length: MeanDifference | None
    time_to_success: MeanDifference | None
    episode_return: MeanDifference | None
    progress: MeanDifference | None
    events: tuple[EventDifference, ...] = ()


def compare_pairs(first: Arm, second: Arm, matched: MatchedEpisodes, question: Question) -> JobComparison:
    """Compare a candidate with its baseline over their pairs, as if that were all that is asked.

    Raises:
        ValueError: If no pair tells a success from a failure.
    """
    counts, pairs = matched.counts, matched.without_errors()
    conditions = pairs.conditions
    draws = draws_of(conditions)
    effect = design_effect(pairs.differences, conditions)
    interval = paired_difference_interval(counts, confidence=1.0 - question.alpha, design_effect=effect)
    intervals = [side.scored.wilson() for side in (pairs.first, pairs.second)]
    if interval is None or counts.difference is None or intervals[0] is None or intervals[1] is None:
        raise ValueError("no pair tells a success from a failure")
    exact_p, mid_p = sign_flip_p(pairs.differences, draws)
    both_succeed = (pairs.first.success > 0) & (pairs.second.success > 0)
    num_errors = len(matched) - len(pairs)
    return JobComparison(
        first=first,
        second=second,
        matched=matched,
        counts=counts,
        distinct=len({*draws.tolist()}),
        num_errors=num_errors,
        rates=(counts.successes[0] / counts.total, counts.successes[1] / counts.total),
        intervals=(intervals[0], intervals[1]),
        difference=counts.difference,
        interval=interval,
        bounds=_bounds(matched),
        mid_p=mid_p,
        exact_p=exact_p,
        adjusted_p=mid_p,
        verdict=verdict_of(counts.difference, interval, mid_p, question),
        detectable=_detectable(counts, question, num_pairs=max(1, round(counts.total / effect))),
        pairs_needed=_pairs_needed(counts, question),
        length=_mean_difference(pairs.first.length, pairs.second.length, draws),
        time_to_success=_mean_difference(
            *(each[both_succeed] for each in (pairs.first.length, pairs.second.length, draws))
        ),
        episode_return=_mean_difference(pairs.first.episode_return, pairs.second.episode_return, draws),
        progress=_mean_difference(_progress(pairs.first), _progress(pairs.second), draws),
        events=event_differences(pairs.first.events, pairs.second.events, draws),
    )


def event_differences(first: np.ndarray, second: np.ndarray, draws: np.ndarray) -> tuple[EventDifference, ...]:
    """Return how often each event happened to either side of some pairs, the surest difference first.

    Args:
        first: What happened to the candidate, as JSON; None where that is not told. Shape: (num_pairs,).
        second: What happened to the baseline. Shape: (num_pairs,).
        draws: What each pair started from, see `draws_of`. Shape: (num_pairs,), int.
    """
    both = np.array([_is_text(a) and _is_text(b) for a, b in zip(first, second, strict=True)], bool)
    told = [(json.loads(a), json.loads(b)) for a, b in zip(first[both], second[both], strict=True)]
    counts = {name: Counter((name in mine, name in other) for mine, other in told) for name in EVENTS}
    happened = {name: count for name, count in counts.items() if count[False, False] < len(told)}
    p_values = [
        sign_flip_p(np.array([(name in mine) - (name in other) for mine, other in told]), draws[both])[1]
        for name in happened
    ]
    found = (
        EventDifference(
            event=name,
            num_pairs=len(told),
            first=count[True, False] + count[True, True],
            second=count[False, True] + count[True, True],
            only_first=count[True, False],
            only_second=count[False, True],
            mid_p=p_value,
            adjusted_p=adjusted,
        )
        for (name, count), p_value, adjusted in zip(happened.items(), p_values, holm(p_values), strict=True)
    )
    return tuple(sorted(found, key=lambda each: each.mid_p))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def as_family(comparisons: Sequence[JobComparison], question: Question) -> tuple[JobComparison, ...]:
    """Return comparisons as one family: p-values are adjusted by Holm's method, and so are the verdicts."""
    adjusted = holm([each.mid_p for each in comparisons])
    return tuple(
        replace(each, adjusted_p=p_value, verdict=verdict_of(each.difference, each.interval, p_value, question))
        for each, p_value in zip(comparisons, adjusted, strict=True)
    )


def verdict_of(difference: float, interval: Interval, p_value: float, question: Question) -> Verdict:
    """Return what is to be said of a candidate.

    With a margin, the interval of the difference decides: above minus the margin it is no worse, below it worse.

    Args:
        difference: Its rate less the baseline's.
        interval: The interval of that.
        p_value: Of the test that they differ.
        question: What is asked.
    """
    if question.margin is not None:
        if interval.low > -question.margin:
            return Verdict.NO_WORSE
        return Verdict.WORSE if interval.high < -question.margin else Verdict.UNDECIDED
    if p_value > question.alpha:
        return Verdict.UNDECIDED
    return Verdict.BETTER if difference > 0 else Verdict.WORSE


def _bounds(matched: MatchedEpisodes) -> Interval:
    first, second = matched.first.success, matched.second.success
    low = np.nan_to_num(first, nan=0.0).mean() - np.nan_to_num(second, nan=1.0).mean()
    high = np.nan_to_num(first, nan=1.0).mean() - np.nan_to_num(second, nan=0.0).mean()
    return Interval(low=float(low), high=float(high))


def _mean_difference(first: np.ndarray, second: np.ndarray, draws: np.ndarray) -> MeanDifference | None:
    """Return how a measure differs over the pairs that have it on both sides, None where none has."""
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        return None
    differences = (first - second)[both]
    return MeanDifference(
        num_pairs=len(differences),
        first_mean=float(first[both].mean()),
        second_mean=float(second[both].mean()),
        mean=sum(differences.tolist()) / len(differences),
        interval=mean_interval(influences(differences, draws[both]).tolist()),
        p_value=signed_rank_p(means_of_draws(differences, draws[both]).tolist()),
    )


def _progress(episodes: EpisodeColumns) -> np.ndarray:
    """Return how much of the task each episode has done, 0 to 1; NaN where that is not measured."""
    # One document for all of them is read in half the time of one for each.
    said = (metrics.get("progress") for metrics in json.loads(f"[{','.join(episodes.metrics)}]"))
    return np.array([np.nan if value is None else float(value) for value in said], float)


def _detectable(counts: PairCounts, question: Question, *, num_pairs: int) -> float | None:
    """Return the least difference that a number of pairs would show, with outcomes that agree as these do."""
    rate, agreement = counts.successes[1] / counts.total, _agreement(counts)
    # Where the baseline is near one end, only a difference towards the other can be seen.
    direction = 1.0 if rate <= 0.5 else -1.0

    def power(step: int) -> float:
        other = rate + direction * step * _DETECTABLE_STEP
        chances = pair_chances(min(max(other, 0.0), 1.0), rate, agreement=agreement)
        return paired_power(num_pairs, chances, alpha=question.alpha)

    low, high = 0, int(max(rate, 1.0 - rate) / _DETECTABLE_STEP)
    if power(high) < _POWER:
        return None
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= _POWER else (middle, high)
    return high * _DETECTABLE_STEP


def _agreement(counts: PairCounts) -> float:
    """Return how much the outcomes of pairs agree; see `pair_chances`."""
    first, second = (successes / counts.total for successes in counts.successes)
    most = min(first, second) - first * second
    return min(max((counts.both / counts.total - first * second) / most, 0.0), 1.0) if most > 0.0 else 0.0


def _pairs_needed(counts: PairCounts, question: Question) -> int | None:
    total = counts.total
    chances = PairChances(only_first=counts.only_first / total, only_second=counts.only_second / total)
    if question.margin is not None:
        return _first_number(lambda number: _is_within(counts, number, question))
    if chances.only_first == chances.only_second:
        return None
    return least_number(
        lambda number: paired_power(number, chances, alpha=question.alpha), power=_POWER, at_most=_MOST_PAIRS
    )


def _is_within(counts: PairCounts, number: int, question: Question) -> bool:
    """Whether so many pairs that come out as these did would decide about the margin."""
    scaled = PairCounts(
        both=round(counts.both * number / counts.total),
        only_first=round(counts.only_first * number / counts.total),
        only_second=round(counts.only_second * number / counts.total),
        neither=round(counts.neither * number / counts.total),
    )
    interval, margin = paired_difference_interval(scaled, confidence=1.0 - question.alpha), question.margin or 0.0
    return interval is not None and (interval.low > -margin or interval.high < -margin)


def _first_number(holds: Callable[[int], bool]) -> int | None:
    number = 8
    while not holds(number):
        number += max(1, number // 20)
        if number > _MOST_PAIRS:
            return None
    return number
