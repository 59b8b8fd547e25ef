"""Everything that one comparison says: the tasks, all of them together, and what could not be compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from isaaclab_arena.analysis.arms import Arm, ReadRun, named_arm, read_run
from isaaclab_arena.analysis.choice import Choice, choose_best, not_chosen_by
from isaaclab_arena.analysis.comparison import (
    JobComparison,
    Question,
    Verdict,
    as_family,
    compare_pairs,
)
from isaaclab_arena.analysis.families import mean_of_tasks_interval
from isaaclab_arena.analysis.matching import UnequalConditions, differences_of_tasks, match, same_tasks, with_tasks
from isaaclab_arena.analysis.paired_rates import paired_difference_interval, sign_flip_p
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.results.clusters import design_effect, draws_of
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.counts import PairCounts

BEST = "best"
"""Stands for a baseline that is chosen: the best of a run's jobs."""

_OPTION = "--baseline"
_MOST_NAMED = 3


class NotComparableError(ArenaError):
    """What was to be compared has nothing in common, or is not finished."""


@dataclass(frozen=True, kw_only=True)
class Together:
    """All tasks of a comparison together.

    Attributes:
        counts: All pairs, whatever their task.
        distinct: How many different conditions were drawn for them.
        difference: The candidate's rate over them less the baseline's.
        interval: Its interval.
        mid_p: Of McNemar's test over them.
        mean_of_tasks: Mean of the tasks' differences: every task weighs the same.
        mean_of_tasks_interval: Its bootstrap interval, stratified by task.
    """

    counts: PairCounts
    distinct: int
    difference: float
    interval: Interval
    mid_p: float
    mean_of_tasks: float
    mean_of_tasks_interval: Interval


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Two jobs that were not compared.

    Attributes:
        first: The candidate.
        second: The baseline.
        reason: Why.
    """

    first: str
    second: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """What a comparison says.

    Attributes:
        question: What was asked.
        tasks: The pairs of jobs that were compared; their p-values are adjusted as one family.
        family: What that family is, in words.
        together: All of them together, None where there is one.
        refused: The pairs of jobs that were not compared.
        notes: What whoever reads the figures must know: the same checkpoint on both sides, versions that differ.
        choice: How the baseline was chosen, None where it was named. All figures are then from the other episodes.
    """

    question: Question
    tasks: tuple[JobComparison, ...]
    family: str
    together: Together | None
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...]
    choice: Choice | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict over all tasks: worse if any is worse, better if any is better, no worse if every one is."""
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
    """Compare two runs, or the jobs of one, by their directories.

    Args:
        runs: The baseline's run and the candidate's; or one run.
        question: What is asked.
        baseline: The job of the one run that the others are judged by; see `compare_with_job`.
        names: See `compare_runs`.
        partial: See `compare_runs`.

    Raises:
        ConfigError: If what is asked for contradicts itself, or a run or a job does not exist.
        NotComparableError: If nothing can be compared.
        StorageError: If a file cannot be read.
    """
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
    """Compare the jobs of a run with those of the same names in another, or else the tasks of the one suite of each.

    Args:
        candidate: The run that is judged.
        baseline: The run that it is judged by.
        question: What is asked.
        names: Jobs or suites of the baseline to those of the candidate that have other names; then these alone are
            compared.
        partial: Whether jobs that are not finished are compared, over the episodes before the first that is missing.

    Raises:
        ConfigError: If a named job does not exist.
        NotComparableError: If no pair of jobs can be compared.
    """
    first, second = candidate.arms(), baseline.arms()
    if names:
        mapped = with_tasks(names, baseline=baseline.suites(), candidate=candidate.suites())
        arms = [
            (named_arm(first, new, option="--map"), named_arm(second, old, option="--map"))
            for old, new in mapped.items()
        ]
    else:
        arms = [(first[name], second[name]) for name in second if name in first]
        arms = arms or same_tasks(candidate.suites(), baseline.suites())
    if not arms:
        raise NotComparableError(
            f"{candidate.directory} and {baseline.directory} have no job of the same name; say which belong together "
            "with --map OLD=NEW"
        )
    report = _report(arms, question, family="every job against its own of the other run", partial=partial)
    return report if names else replace(report, notes=(*report.notes, *_unshared(candidate, baseline)))


def compare_with_job(run: ReadRun, baseline: str, question: Question, *, partial: bool = False) -> ComparisonReport:
    """Compare jobs of a run with one of them; jobs of other tasks are left out.

    Args:
        run: The run.
        baseline: Name of the job or the suite that the others are judged by; `BEST` for the best job, if none has that
            name.
        question: What is asked.
        partial: See `compare_runs`.

    Raises:
        ConfigError: If there is no such job, or the best is to be chosen of jobs that may not be finished.
        NotComparableError: If no other job can be compared with it.
    """
    arms = run.arms()
    if baseline == BEST and BEST not in arms:
        if partial:
            raise ConfigError(Problem("the best is chosen of jobs that are finished: leave --partial out", key=_OPTION))
        return _compare_with_best(arms, question)
    if baseline not in arms and baseline in run.suites():
        return _compare_with_suite(run, baseline, question, partial=partial)
    second = named_arm(arms, baseline, option=_OPTION)
    others = [(arm, second) for arm in arms.values() if arm is not second]
    # A run may hold many tasks, and one does not expect those of others to be compared.
    others = [pair for pair in others if not differences_of_tasks(*pair)] or others
    return _report(others, question, family=f"every other job against '{baseline}'", partial=partial)


def _compare_with_suite(run: ReadRun, baseline: str, question: Question, *, partial: bool) -> ComparisonReport:
    suites = run.suites()
    second = suites.pop(baseline)
    others = [pair for first in suites.values() for pair in same_tasks({"": first}, {"": second})]
    return _report(
        others, question, family=f"every task of the other suites against its own of '{baseline}'", partial=partial
    )


def _compare_with_best(arms: Mapping[str, Arm], question: Question) -> ComparisonReport:
    first = next(iter(arms.values()))
    for arm in arms.values():
        if reason := _reason_against(first, arm, partial=False):
            raise NotComparableError(f"{first.label} and {arm.label}: {reason}; the best is one of jobs that compare")
    choice = choose_best({name: [arm] for name, arm in arms.items()})
    if choice is None:
        raise NotComparableError(
            f"{first.directory}: the best is chosen by half of the episodes and scored by the other half, so every job "
            "needs two that say whether they succeeded"
        )
    second = not_chosen_by(arms[choice.name])
    others = [(not_chosen_by(arm), second) for name, arm in arms.items() if name != choice.name]
    family = f"every other job against '{choice.name}', the best by the episodes of even index"
    return replace(_report(others, question, family=family, partial=False), choice=choice)


def _unshared(candidate: ReadRun, baseline: ReadRun) -> Iterator[str]:
    """Yield which jobs only one of two runs has."""
    first, second = candidate.arms(), baseline.arms()
    for who, own, other in (("candidate", first, second), ("baseline", second, first)):
        if alone := [f"'{name}'" for name in own if name not in other]:
            yield f"only the {who} has {', '.join(alone)}"


def _report(arms: Sequence[tuple[Arm, Arm]], question: Question, *, family: str, partial: bool) -> ComparisonReport:
    compared, refused = [], []
    for first, second in arms:
        reason = _reason_against(first, second, partial=partial)
        if reason is None:
            matched = match(first, second, prefix_only=partial)
            reason = None if matched.counts.total else _why_no_pairs(matched.unequal)
            if reason is None:
                compared.append(compare_pairs(first, second, matched, question))
        if reason is not None:
            refused.append(Refusal(first=first.label, second=second.label, reason=reason))
    if not compared:
        told = "; ".join(f"{each.first} and {each.second}: {each.reason}" for each in refused[:_MOST_NAMED])
        raise NotComparableError(f"nothing can be compared: {told or 'there is no other job'}")
    tasks = as_family(compared, question)
    return ComparisonReport(
        question=question,
        tasks=tasks,
        family=family,
        together=_together(tasks, question) if len(tasks) > 1 else None,
        refused=tuple(refused),
        notes=tuple(dict.fromkeys(_notes(tasks))),
    )


def _reason_against(first: Arm, second: Arm, *, partial: bool) -> str | None:
    """Return why two jobs cannot be compared, None if they can."""
    if differences := differences_of_tasks(first, second):
        return f"they are not the same task: {', '.join(differences)}"
    for arm in (first, second):
        if arm.num_missing and not partial:
            return (
                f"{arm.label} has {arm.num_missing} of {arm.planned} episodes to go: finish it with --resume, or "
                "compare what there is with --partial"
            )
        if not arm.measures_success:
            return f"{arm.label} does not measure success"
    return None


def _why_no_pairs(unequal: Sequence[UnequalConditions]) -> str:
    if not unequal:
        return "they have no episode in common that says on both sides whether it succeeded"
    named = ", ".join(dict.fromkeys(name for each in unequal for name in each.names))
    return (
        f"no two episodes started from the same conditions: {len(unequal)} differ in {named}; evaluate both with the "
        "same seed, or with the same saved conditions"
    )


def _together(tasks: Sequence[JobComparison], question: Question) -> Together:
    counts = PairCounts(
        both=sum(each.counts.both for each in tasks),
        only_first=sum(each.counts.only_first for each in tasks),
        only_second=sum(each.counts.only_second for each in tasks),
        neither=sum(each.counts.neither for each in tasks),
    )
    pairs = [each.matched.without_errors() for each in tasks]
    conditions = [condition for each in pairs for condition in each.conditions]
    values, draws = np.concatenate([each.differences for each in pairs]), draws_of(conditions)
    strata = np.repeat(np.arange(len(pairs)), [*map(len, pairs)])
    differences = {str(number): list(_differences(each.counts)) for number, each in enumerate(tasks)}
    confidence = 1.0 - question.alpha
    effect, of_mean = design_effect(values, conditions), design_effect(values, conditions, strata=strata)
    interval = paired_difference_interval(counts, confidence=confidence, design_effect=effect)
    stratified = mean_of_tasks_interval(differences, confidence=confidence, design_effect=of_mean)
    if interval is None or counts.difference is None or stratified is None:
        raise ValueError("no pair tells a success from a failure")
    return Together(
        counts=counts,
        distinct=len({*draws.tolist()}),
        difference=counts.difference,
        interval=interval,
        mid_p=sign_flip_p(values, draws)[1],
        mean_of_tasks=sum(each.difference for each in tasks) / len(tasks),
        mean_of_tasks_interval=stratified,
    )


def _differences(counts: PairCounts) -> Iterable[float]:
    yield from [1.0] * counts.only_first
    yield from [-1.0] * counts.only_second
    yield from [0.0] * (counts.both + counts.neither)


def _notes(tasks: Sequence[JobComparison]) -> Iterator[str]:
    """Yield what one must know of the jobs: the same policy on both sides, and what differs beside the policy."""
    same = [_jobs(each.first, each.second) for each in tasks if _is_same_policy(each.first, each.second)]
    if same:
        yield f"both sides are the same policy, with the same options and content: {', '.join(same)}"
    for each in tasks:
        for change in each.second.provenance.differences(each.first.provenance):
            yield f"{change.name} was {change.before} for the baseline and {change.now} for the candidate"
        if each.first.entry.backend != each.second.entry.backend:
            simulated = f"{each.second.entry.backend} for the baseline and by {each.first.entry.backend}"
            yield f"{_jobs(each.first, each.second)} was simulated by {simulated} for the candidate"
    for arm in (arm for each in tasks for arm in (each.first, each.second) if arm.asked):
        yield (
            f"'{arm.entry.name}' could stop at any episode because of {', '.join(arm.asked)}: p-values and intervals "
            "here take a fixed number for granted; the run's own table and replay-decision have those that hold"
        )


def _is_same_policy(first: Arm, second: Arm) -> bool:
    one, other = first.contents, second.contents
    same_contents = one is not None and other is not None and one.is_known and one.policy == other.policy
    same_options = first.entry.policy_config == second.entry.policy_config
    return same_contents and same_options and first.entry.config.policy_type == second.entry.config.policy_type


def _jobs(first: Arm, second: Arm) -> str:
    return " and ".join(dict.fromkeys([first.entry.name, second.entry.name]))
