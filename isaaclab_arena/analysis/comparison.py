"""Comparisons of jobs: each task, all tasks together, and the best of several policies."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import compress
from pathlib import Path

import numpy as np

from isaaclab_arena.analysis.arms import (
    Arm,
    MatchedEpisodes,
    PairedDifference,
    ReadRun,
    differences_of_tasks,
    match,
    named_arm,
    paired_difference,
    read_run,
    same_tasks,
)
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.interfaces.episode import EVENTS
from isaaclab_arena.results import statistics
from isaaclab_arena.results.rows import of_conditions, percent_text
from isaaclab_arena.results.stopping import PairCounts
from isaaclab_arena.storage.contents import changed_facts

# Compare the jobs of a run with those of another, or with each other: difference, confidence, and open questions.

_POWER = 0.8
_MOST_PAIRS = 5_000
_DETECTABLE_STEP = 0.005
_MOST_EXAMINED = 200


class Verdict(StrEnum):
    """The conclusion about a candidate."""

    BETTER = "better"
    NO_WORSE = "no worse"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a comparison; see `check_shares` for values from outside."""

    alpha: float = 0.05  # probability of a difference that does not exist
    # Non-inferiority margin, 0 to 1, for the question "no worse"; None for the question "better".
    margin: float | None = None


def check_shares(*, prefix: str = "", **shares: float | None) -> None:
    """Refuse by ConfigError shares, such as a question's, that are not between 0 and 1; `prefix` precedes their key."""
    for name, value in shares.items():
        if value is not None and not 0.0 < value < 1.0:
            raise ConfigError(f"must be between 0 and 1, got {value:g}", key=f"{prefix}{name}")


@dataclass(frozen=True, kw_only=True)
class MeanDifference:
    """The difference of a measure over pairs, candidate minus baseline."""

    num_pairs: int  # pairs that have the measure on both sides
    first_mean: float  # mean of the candidate
    second_mean: float  # mean of the baseline
    mean: float  # mean of the differences
    interval: statistics.Interval | None  # bootstrap interval (BCa); None for fewer than two pairs
    p_value: float  # Wilcoxon's signed-rank test, two-sided

    @property
    def in_words(self) -> str:
        """The mean of the differences with its interval: ``-3.2 [-4, -2.4]``."""
        ends = "" if self.interval is None else f" [{self.interval.low:+.4g}, {self.interval.high:+.4g}]"
        return f"{self.mean:+.4g}{ends}"


@dataclass(frozen=True, kw_only=True)
class EventDifference:
    """The frequency of an event on both sides, over pairs in which both sides report events."""

    event: str
    num_pairs: int  # pairs in which both sides report events
    first: int  # episodes of the candidate with the event
    second: int  # episodes of the baseline with the event
    only_first: int  # pairs with the event on the candidate's side only
    only_second: int  # pairs with the event on the baseline's side only
    mid_p: float  # two-sided mid-p value of McNemar's test
    adjusted_p: float  # the same, Holm-adjusted for all events that occurred in the comparison


@dataclass(frozen=True, kw_only=True)
class JobComparison(PairedDifference):
    """A candidate against its baseline on one task. Differences are candidate minus baseline, at level alpha."""

    first: Arm  # candidate
    second: Arm  # baseline
    matched: MatchedEpisodes
    num_errors: int  # pairs with an error in at least one episode
    rates: tuple[float, float]  # success rates over the pairs, candidate and baseline
    intervals: tuple[statistics.Interval, statistics.Interval]  # Wilson intervals of the rates
    # The difference if every error were a failure of the candidate and a success of the baseline, and vice versa.
    bounds: statistics.Interval
    adjusted_p: float  # mid_p adjusted for the family of the comparison
    verdict: Verdict
    # The least difference that as many pairs detect with power 0.8, None if there is none.
    detectable: float | None
    # The number of pairs with distinct conditions that settles the question with power 0.8 at the observed rates. None
    # if it exceeds 5,000.
    pairs_needed: int | None
    length: MeanDifference | None  # control steps of an episode
    time_to_success: MeanDifference | None  # the same, over pairs in which both sides succeed
    episode_return: MeanDifference | None  # sum of the rewards of an episode
    # The completed share of the task, 0 to 1, if the task measures it, and the metrics that both sides declare.
    metrics: Mapping[str, MeanDifference]
    events: tuple[EventDifference, ...] = ()  # if the task reports events; the smallest p-value first

    @property
    def progress(self) -> MeanDifference | None:
        """The difference of the completed share of the task, None if the task does not measure it."""
        return self.metrics.get("progress")


def compare_pairs(first: Arm, second: Arm, matched: MatchedEpisodes, question: Question) -> JobComparison:
    """Compare a candidate with its baseline over their pairs, as a family of one. ValueError if none has a result."""
    pairs, success = matched.without_errors(), paired_difference([matched], confidence=1.0 - question.alpha)
    intervals = [side.scored.wilson() for side in (pairs.first, pairs.second)]
    if success is None or intervals[0] is None or intervals[1] is None:
        raise ValueError("no pair tells a success from a failure")
    counts, draws = success.counts, statistics.draws_of(pairs.conditions)
    both_succeed = (pairs.first.success > 0) & (pairs.second.success > 0)
    # Errors are NaN: each becomes the worst or the best result of its side.
    one, other = matched.first.success, matched.second.success
    low = np.nan_to_num(one, nan=0.0).mean() - np.nan_to_num(other, nan=1.0).mean()
    high = np.nan_to_num(one, nan=1.0).mean() - np.nan_to_num(other, nan=0.0).mean()
    # One JSON document for all episodes parses in half the time of one per episode.
    sides = [json.loads(f"[{','.join(side.metrics)}]") for side in (pairs.first, pairs.second)]
    metrics: dict[str, MeanDifference] = {}
    for name in dict.fromkeys(["progress", *(each for each in first.metrics if each in second.metrics)]):
        one, other = (
            np.array([np.nan if (value := each.get(name)) is None else float(value) for each in side], float)
            for side in sides
        )
        if (found := mean_difference(one, other, draws)) is not None:
            metrics[name] = found

    # Events, the smallest p-value first. Only pairs with a report on both sides count: a missing report is not an
    # episode without events.
    reports = [*zip(pairs.first.events, pairs.second.events, strict=True)]
    both = np.array([isinstance(mine, str) and isinstance(its, str) for mine, its in reports], bool)
    told = [(json.loads(mine), json.loads(its)) for mine, its in compress(reports, both)]
    occurred = {name: Counter((name in mine, name in its) for mine, its in told) for name in EVENTS}
    # An event that never occurred is not tested, so it does not weaken the adjustment of the others.
    happened = {name: count for name, count in occurred.items() if count[False, False] < len(told)}
    p_values = [
        statistics.sign_flip_p(np.array([(name in mine) - (name in its) for mine, its in told]), draws[both])[1]
        for name in happened
    ]
    events = [
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
        for (name, count), p_value, adjusted in zip(happened.items(), p_values, statistics.holm(p_values), strict=True)
    ]
    return JobComparison(
        **vars(success),
        first=first,
        second=second,
        matched=matched,
        num_errors=len(matched) - len(pairs),
        rates=(counts.successes[0] / counts.total, counts.successes[1] / counts.total),
        intervals=(intervals[0], intervals[1]),
        bounds=statistics.Interval(low=float(low), high=float(high)),
        adjusted_p=success.mid_p,
        verdict=verdict_of(success.difference, success.interval, success.mid_p, question),
        detectable=_detectable(counts, question, num_pairs=max(1, round(counts.total / success.design_effect))),
        pairs_needed=pairs_needed(counts, question),
        length=mean_difference(pairs.first.length, pairs.second.length, draws),
        time_to_success=mean_difference(
            *(each[both_succeed] for each in (pairs.first.length, pairs.second.length, draws))
        ),
        episode_return=mean_difference(pairs.first.episode_return, pairs.second.episode_return, draws),
        metrics=metrics,
        events=tuple(sorted(events, key=lambda each: each.mid_p)),
    )


def verdict_of(difference: float, interval: statistics.Interval, p_value: float, question: Question) -> Verdict:
    """Return the conclusion about a candidate, from the difference of the rates or from its interval."""
    # With a margin the interval decides: above minus the margin is no worse, below it is worse.
    if question.margin is not None:
        if interval.low > -question.margin:
            return Verdict.NO_WORSE
        return Verdict.WORSE if interval.high < -question.margin else Verdict.UNDECIDED
    if p_value > question.alpha:
        return Verdict.UNDECIDED
    return Verdict.BETTER if difference > 0 else Verdict.WORSE


def verdicts_of(family: Sequence[PairedDifference], question: Question) -> list[tuple[float, Verdict]]:
    """Return the Holm-adjusted p-value and the verdict of each difference of a family."""
    return [
        (p_value, verdict_of(each.difference, each.interval, p_value, question))
        for each, p_value in zip(family, statistics.holm([each.mid_p for each in family]), strict=True)
    ]


def mean_difference(first: np.ndarray, second: np.ndarray, draws: np.ndarray) -> MeanDifference | None:
    """Return the difference of a measure over the pairs that have it on both sides, None if there is no such pair."""
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        return None
    differences = (first - second)[both]
    return MeanDifference(
        num_pairs=len(differences),
        first_mean=float(first[both].mean()),
        second_mean=float(second[both].mean()),
        mean=sum(differences.tolist()) / len(differences),
        interval=statistics.mean_interval(statistics.influences(differences, draws[both]).tolist()),
        p_value=statistics.signed_rank_p(statistics.means_of_draws(differences, draws[both]).tolist()),
    )


def beside_success(length: MeanDifference | None, returns: MeanDifference | None, question: Question) -> str:
    """Return in words the length and return that surely differ, empty if neither does; for an undecided success."""
    # Both the interval and the test, adjusted for the two measures, must agree.
    known = {name: each for name, each in {"length": length, "return": returns}.items() if each and each.interval}
    told = [
        f"{name} {each.first_mean:.4g} against {each.second_mean:.4g}, {each.in_words}"
        for (name, each), p_value in zip(
            known.items(), statistics.holm([each.p_value for each in known.values()]), strict=True
        )
        if p_value <= question.alpha and each.interval and each.interval.low * each.interval.high > 0
    ]
    return f"success aside, they differ: {'; '.join(told)} (95 %)" if told else ""


def _detectable(counts: PairCounts, question: Question, *, num_pairs: int) -> float | None:
    """Return the least difference that `num_pairs` pairs detect, if their outcomes agree like those of `counts`."""
    # Agreement of the outcomes, 0 to 1; see `pair_chances`.
    first, rate = (successes / counts.total for successes in counts.successes)
    most = min(first, rate) - first * rate
    agreement = min(max((counts.both / counts.total - first * rate) / most, 0.0), 1.0) if most > 0.0 else 0.0
    # If the baseline is near one end, only a difference towards the other end is detectable.
    direction = 1.0 if rate <= 0.5 else -1.0

    def power(step: int) -> float:
        other = rate + direction * step * _DETECTABLE_STEP
        chances = statistics.pair_chances(min(max(other, 0.0), 1.0), rate, agreement=agreement)
        return statistics.paired_power(num_pairs, chances, alpha=question.alpha)

    low, high = 0, int(max(rate, 1.0 - rate) / _DETECTABLE_STEP)
    if power(high) < _POWER:
        return None
    # Power grows with the difference, so bisect over steps.
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= _POWER else (middle, high)
    return high * _DETECTABLE_STEP


def pairs_needed(counts: PairCounts, question: Question) -> int | None:
    """Return the number of pairs that settles the question at the shares of `counts`, None beyond 5,000."""
    total = counts.total
    if question.margin is None:
        chances = statistics.PairChances(only_first=counts.only_first / total, only_second=counts.only_second / total)
        if chances.only_first == chances.only_second:
            return None
        return statistics.least_number(
            lambda number: statistics.paired_power(number, chances, alpha=question.alpha),
            power=_POWER,
            at_most=_MOST_PAIRS,
        )
    # With a margin, scale the outcomes up until the interval of their difference is on one side of it.
    number = 8
    while number <= _MOST_PAIRS:
        scaled = PairCounts(**{name: round(count * number / total) for name, count in vars(counts).items()})
        interval = statistics.paired_difference_interval(scaled, confidence=1.0 - question.alpha)
        if interval is not None and (interval.low > -question.margin or interval.high < -question.margin):
            return number
        number += max(1, number // 20)
    return None


# Choose the best of several policies by half of the episodes, and score it on the other half.


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best of several policies, scored on episodes that did not choose it: the others are biased upward."""

    name: str
    chosen_among: int  # number of candidates
    rate_when_chosen: float  # mean success rate of the tasks over the episodes of even index, which chose
    episodes_when_chosen: int  # episodes of even index with a result
    rate: float  # the same mean over the episodes of odd index
    successes: int  # successes of odd index
    episodes: int  # episodes of odd index with a result
    interval: statistics.Interval  # Wilson interval over all of these
    distinct_conditions: int  # distinct conditions of these
    tied: tuple[str, ...] = ()  # other candidates that did as well when it was chosen; it stands first in the run

    @property
    def sentence(self) -> str:
        """Both rates, as a sentence."""
        rate = percent_text(self.rate, self.interval.low, self.interval.high, unit=" %")
        tied = f", as good as {', '.join(self.tied)}, and first in the run" if self.tied else ""
        scored = f"{self.episodes} of odd index{of_conditions(self.distinct_conditions, self.episodes)}"
        return (
            f"'{self.name}' was chosen: the best of {self.chosen_among} over the {self.episodes_when_chosen} episodes "
            f"of even index, {100 * self.rate_when_chosen:.1f} %{tied}; scored again over the {scored}, "
            f"which nothing was chosen by: {rate}"
        )


def choose_best(entries: Mapping[str, Sequence[Arm]]) -> Choice | None:
    """Choose the policy with the highest mean task rate over episodes of even index. None if a job lacks results."""
    # Equal conditions have equal indices, so no condition both chooses and scores. A job that repeats conditions is not
    # scored on those of its even episodes. Of equal policies the first wins.
    chosen_by = {
        name: [arm.episodes.at(arm.episodes.index % 2 == 0).scored for arm in arms] for name, arms in entries.items()
    }
    scored_by = {name: [not_chosen_by(arm).episodes.scored for arm in arms] for name, arms in entries.items()}
    if not all(map(len, (task for tasks in (*chosen_by.values(), *scored_by.values()) for task in tasks))):
        return None
    rates = {name: mean_rate(tasks) for name, tasks in chosen_by.items()}
    name = max(rates, key=lambda each: rates[each])
    scored = statistics.together(scored_by[name])
    interval = scored.wilson()
    if interval is None:
        return None
    return Choice(
        name=name,
        chosen_among=len(entries),
        rate_when_chosen=rates[name],
        episodes_when_chosen=sum(map(len, chosen_by[name])),
        rate=mean_rate(scored_by[name]),
        successes=scored.successes,
        episodes=len(scored),
        interval=interval,
        distinct_conditions=scored.num_distinct,
        tied=tuple(each for each, rate in rates.items() if each != name and math.isclose(rate, rates[name])),
    )


def not_chosen_by(arm: Arm) -> Arm:
    """Return a job with only the episodes that `choose_best` does not choose by."""
    # These are the episodes of odd index with conditions that no episode of even index has.
    is_odd, draws = arm.episodes.index % 2 == 1, statistics.draws_of(arm.episodes.drawn)
    episodes = arm.episodes.at(is_odd & ~np.isin(draws, draws[~is_odd]))
    if arm.planned is None:
        return replace(arm, episodes=episodes)
    return replace(arm, episodes=episodes, planned=arm.planned // 2 if arm.num_missing else len(episodes))


def mean_rate(tasks: Sequence[statistics.ScoredEpisodes]) -> float:
    """Return the mean of the tasks' success rates with equal weights; a task without a rate counts as 0."""
    return sum(task.rate or 0.0 for task in tasks) / len(tasks)


# The result of one comparison: the tasks, all of them together, and the pairs that could not be compared.

BEST = "best"
"""Stands for a baseline that is chosen: the best of a run's jobs."""

_OPTION = "--baseline"


class NotComparableError(ArenaError):
    """The jobs have nothing in common, or are not finished."""


@dataclass(frozen=True, kw_only=True)
class Together(PairedDifference):
    """All tasks of a comparison together: the difference over all of their pairs, and its mean over the tasks."""

    mean_of_tasks: float  # mean of the tasks' differences, with equal weights
    mean_of_tasks_interval: statistics.Interval  # bootstrap interval, stratified by task


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Two jobs that were not compared."""

    first: str  # candidate
    second: str  # baseline
    reason: str


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """The result of a comparison."""

    question: Question
    tasks: tuple[JobComparison, ...]  # compared pairs of jobs, their p-values adjusted as one family
    family: str  # the family in words
    together: Together | None  # None for a single pair of jobs
    refused: tuple[Refusal, ...]  # pairs of jobs that were not compared
    notes: tuple[str, ...]  # caveats for the reader: the same checkpoint on both sides, versions that differ
    # The choice of the baseline; None if it was named. All figures then use the other episodes.
    choice: Choice | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict over all tasks: worse if any is worse, better if any is better, no worse if all are no worse."""
        verdicts = {each.verdict for each in self.tasks}
        if Verdict.WORSE in verdicts:
            return Verdict.WORSE
        if self.question.margin is not None:
            return Verdict.NO_WORSE if verdicts == {Verdict.NO_WORSE} else Verdict.UNDECIDED
        return Verdict.BETTER if Verdict.BETTER in verdicts else Verdict.UNDECIDED


def compare_directories(
    runs: Sequence[Path],
    question: Question,
    *,
    baseline: str | None = None,
    names: Mapping[str, str] | None = None,
    partial: bool = False,
) -> ComparisonReport:
    """Compare the runs (baseline, candidate), or the jobs of one run with its job `baseline`."""
    if len(runs) == 1 and baseline is not None and not names:
        return compare_with_job(read_run(runs[0]), baseline, question, partial=partial)
    if len(runs) == 2 and baseline is None:
        first, second = (read_run(directory) for directory in runs)
        return compare_runs(second, first, question, names=names, partial=partial)
    raise ConfigError("give two runs, the baseline's and the candidate's, or one run and its job that is the baseline")


def compare_runs(
    candidate: ReadRun,
    baseline: ReadRun,
    question: Question,
    *,
    names: Mapping[str, str] | None = None,
    partial: bool = False,
) -> ComparisonReport:
    """Compare jobs of the same name in two runs, or else the tasks of the one suite of each."""
    # `names` maps jobs or suites of the baseline to those of the candidate, and excludes all others. `partial` compares
    # unfinished jobs over the episodes before the first missing one.
    first, second = candidate.arms, baseline.arms
    first_suites, second_suites = candidate.suites(), baseline.suites()
    if names:
        mapped: dict[str, str] = {}
        for old, new in names.items():
            if old in second_suites and new in first_suites:
                before, now = second_suites[old], first_suites[new]
                mapped |= {before[task].entry.name: now[task].entry.name for task in before if task in now}
            else:
                mapped[old] = new
        arms = [
            (named_arm(first, new, option="--map"), named_arm(second, old, option="--map"))
            for old, new in mapped.items()
        ]
    else:
        arms = [(first[name], second[name]) for name in second if name in first]
        arms = arms or same_tasks(first_suites, second_suites)
    if not arms:
        raise NotComparableError(
            f"{candidate.directory} and {baseline.directory} have no job of the same name; say which belong together "
            "with --map OLD=NEW"
        )
    report = _report(arms, question, family="every job against its own of the other run", partial=partial)
    if names:
        return report

    # Without `names`, jobs that only one of the runs has are left out, and noted.
    notes = [*report.notes]
    for who, own, other in (("candidate", first, second), ("baseline", second, first)):
        if alone := [f"'{name}'" for name in own if name not in other]:
            notes.append(f"only the {who} has {', '.join(alone)}")
    return replace(report, notes=tuple(notes))


def compare_with_job(run: ReadRun, baseline: str, question: Question, *, partial: bool = False) -> ComparisonReport:
    """Compare jobs of a run with its job or suite `baseline`, or with the best job for `BEST`."""
    arms, suites = run.arms, run.suites()
    # A job that is named like `BEST` takes precedence. A choice among unfinished jobs is a ConfigError.
    if baseline == BEST and BEST not in arms:
        if partial:
            raise ConfigError(Problem("the best is chosen of jobs that are finished: leave --partial out", key=_OPTION))
        first = next(iter(arms.values()))
        for arm in arms.values():
            if reason := reason_against(first, arm, partial=False, may_be_partial=False):
                apart = f"{first.label} and {arm.label}: {reason}; the best is one of jobs that compare"
                raise NotComparableError(apart)
        choice = choose_best({name: [arm] for name, arm in arms.items()})
        if choice is None:
            raise NotComparableError(
                f"{first.directory}: the best is chosen by half of the episodes and scored by the other half, so every "
                "job needs two that say whether they succeeded"
            )
        second = not_chosen_by(arms[choice.name])
        others = [(not_chosen_by(arm), second) for name, arm in arms.items() if name != choice.name]
        family = f"every other job against '{choice.name}', the best by the episodes of even index"
        return replace(_report(others, question, family=family, partial=False), choice=choice)
    if baseline not in arms and baseline in suites:
        second_suite = suites.pop(baseline)
        others = [pair for first in suites.values() for pair in same_tasks({"": first}, {"": second_suite})]
        family = f"every task of the other suites against its own of '{baseline}'"
    else:
        second = named_arm(arms, baseline, option=_OPTION)
        others = [(arm, second) for arm in arms.values() if arm is not second]
        # A run may hold many tasks, and jobs of other tasks are left out.
        others = [pair for pair in others if not differences_of_tasks(*pair)] or others
        family = f"every other job against '{baseline}'"
    return _report(others, question, family=family, partial=partial)


def _report(arms: Sequence[tuple[Arm, Arm]], question: Question, *, family: str, partial: bool) -> ComparisonReport:
    """Compare pairs of jobs as one family."""
    compared, refused = [], []
    # A pair that cannot be compared is reported beside the others; the comparison fails only if no pair is left.
    for first, second in arms:
        reason = reason_against(first, second, partial=partial)
        if reason is None:
            matched = match(first, second, prefix_only=partial)
            if matched.counts.total:
                compared.append(compare_pairs(first, second, matched, question))
                continue
            reason = reason_without_pairs(matched)
        refused.append(Refusal(first=first.label, second=second.label, reason=reason))
    if not compared:
        reasons = "; ".join(f"{each.first} and {each.second}: {each.reason}" for each in refused[:3])
        raise NotComparableError(f"nothing can be compared: {reasons or 'there is no other job'}")
    # The p-values of all pairs are one family, and the verdicts follow from them.
    tasks = tuple(
        replace(each, adjusted_p=p_value, verdict=verdict)
        for each, (p_value, verdict) in zip(compared, verdicts_of(compared, question), strict=True)
    )

    together = None
    if len(tasks) > 1:
        # Pool the pairs of all tasks. Tasks may share conditions, so the design effect covers the pool.
        pairs, confidence = [each.matched.without_errors() for each in tasks], 1.0 - question.alpha
        pooled = paired_difference(pairs, confidence=confidence)

        # Resample the pairs of each task for the mean of the tasks.
        strata = np.repeat(np.arange(len(pairs)), [*map(len, pairs)])
        differences = {
            str(number): [1.0] * own["only_first"]
            + [-1.0] * own["only_second"]
            + [0.0] * (own["both"] + own["neither"])
            for number, own in enumerate(vars(each.counts) for each in tasks)
        }
        values = np.concatenate([each.differences for each in pairs])
        conditions = [condition for each in pairs for condition in each.conditions]
        of_mean = statistics.design_effect(values, conditions, strata=strata)
        stratified = statistics.mean_of_tasks_interval(differences, confidence=confidence, design_effect=of_mean)
        if pooled is None or stratified is None:
            raise ValueError("no pair tells a success from a failure")
        together = Together(
            **vars(pooled),
            mean_of_tasks=sum(each.difference for each in tasks) / len(tasks),
            mean_of_tasks_interval=stratified,
        )
    return ComparisonReport(
        question=question,
        tasks=tasks,
        family=family,
        together=together,
        refused=tuple(refused),
        notes=tuple(dict.fromkeys(_notes(tasks))),
    )


def reason_against(first: Arm, second: Arm, *, partial: bool, may_be_partial: bool = True) -> str | None:
    """Return the reason against the comparison of two jobs, None if there is none."""
    if differences := differences_of_tasks(first, second):
        return f"they are not the same task: {', '.join(differences)}"
    for arm in (first, second):
        if arm.num_missing and not partial:
            otherwise = ", or compare what there is with --partial" if may_be_partial else ""
            return f"{arm.label} has {arm.num_missing} of {arm.planned} episodes to go: {arm.way_to_finish}{otherwise}"
    unmeasured = [arm for arm in (first, second) if not arm.measures_success]
    if len(unmeasured) == 1 or (unmeasured and first is second):
        return f"{unmeasured[0].label} does not measure success"
    if unmeasured:
        return f"neither measures success{_returns_in_words(match(first, second, prefix_only=partial))}"
    return None


def _returns_in_words(matched: MatchedEpisodes) -> str:
    """Return in words the returns of pairs whose success is not measured, empty if they have none."""
    one, other = matched.first.episode_return, matched.second.episode_return
    found = mean_difference(one, other, statistics.draws_of(matched.conditions))
    if found is None:
        return ""
    means = f"{found.first_mean:.4g} against {found.second_mean:.4g}, {found.in_words}"
    return f"; mean return {means}, over {found.num_pairs} pairs (95 %; signed-rank p = {found.p_value:.2g})"


def reason_without_pairs(matched: MatchedEpisodes) -> str:
    """Return the reason that the episodes of two jobs make no pair with a known success."""
    first, second = matched.unequal_sides
    if len(first):
        # A few of many episodes name what differs: finding it is slow.
        few = np.arange(min(len(first), _MOST_EXAMINED))
        unequal = replace(matched, unequal_sides=(first.at(few), second.at(few))).unequal
        named = ", ".join(dict.fromkeys(name for each in unequal for name in each.names))
        return (
            f"no two episodes started from the same conditions: {len(first)} differ in {named}; evaluate both with the "
            "same seed, or with the same saved conditions"
        )
    return "they have no episode in common that says on both sides whether it succeeded"


def _notes(tasks: Sequence[JobComparison]) -> Iterator[str]:
    """Yield caveats on the jobs: the same policy on both sides, and differences beside the policy."""
    names = [" and ".join(dict.fromkeys([each.first.entry.name, each.second.entry.name])) for each in tasks]
    same_policy = []
    for each, name in zip(tasks, names, strict=True):
        one, other, first, second = each.first.contents, each.second.contents, each.first.entry, each.second.entry
        same_contents = one is not None and other is not None and one.is_known and one.policy == other.policy
        same_options = first.policy_config == second.policy_config
        if same_contents and same_options and first.config.policy_type == second.config.policy_type:
            same_policy.append(name)
    if same_policy:
        yield f"both sides are the same policy, with the same options and content: {', '.join(same_policy)}"
    for each, name in zip(tasks, names, strict=True):
        for fact, before, now in changed_facts(each.second.provenance, each.first.provenance):
            yield f"{fact} was {before} for the baseline and {now} for the candidate"
        backends = each.second.entry.backend, each.first.entry.backend
        if backends[0] != backends[1]:
            yield f"{name} was simulated by {backends[0]} for the baseline and by {backends[1]} for the candidate"
    for arm in (arm for each in tasks for arm in (each.first, each.second) if arm.asked):
        yield (
            f"'{arm.entry.name}' could stop at any episode because of {', '.join(arm.asked)}: p-values and intervals "
            "here assume a fixed number; the run's own table and page have those that hold"
        )
