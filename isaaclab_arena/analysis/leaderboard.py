"""Order several policies by success, and say which of them cannot be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from isaaclab_arena.analysis.arms import Arm, ReadRun, differences_of_tasks, match
from isaaclab_arena.analysis.comparison import Choice, NotComparableError, Question, choose_best
from isaaclab_arena.analysis.rates import holm, sign_flip_p
from isaaclab_arena.results.statistics import Interval, draws_of, mean_of_tasks, together


@dataclass(frozen=True, kw_only=True)
class Place:
    """One line of a leaderboard."""

    name: str  # run, or job if all are of one run
    rank: int  # from 1, by the mean of the tasks' rates; equal means share a rank
    mean_rate: float  # mean of the tasks' success rates with equal weights
    mean_interval: Interval  # stratified by task; see `mean_of_tasks`
    successes: int  # over all episodes
    episodes: int  # scored episodes
    distinct: int  # distinct draws of conditions
    interval: Interval  # Wilson interval of the rate over all episodes
    like: tuple[str, ...]  # policies without a significant difference


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """Policies in order."""

    tasks: tuple[str, ...]  # common jobs, common tasks of the suites, or the single task of a run's jobs
    places: tuple[Place, ...]  # one per policy, the best first
    num_comparisons: int  # compared pairs of policies, their p-values adjusted as one family
    # Best policy by half of the episodes, scored on the other half. It may differ from the first place. None if there
    # are too few episodes.
    winner: Choice | None


def leaderboard(runs: Sequence[ReadRun], question: Question) -> Leaderboard:
    """Order runs by their common jobs or suite tasks; order a single run's suites, or else its jobs of one task."""
    entries = _entries_of_one(runs[0]) if len(runs) == 1 else _entries_of_each(runs)
    tasks = tuple(next(iter(entries.values())))
    # Every pair of policies is compared; `question.alpha` is the level of the whole family.
    _check(entries)
    pairs = list(combinations(entries, 2))
    p_values = holm([_p_value(entries[one], entries[other]) for one, other in pairs])
    like: dict[str, list[str]] = {name: [] for name in entries}
    for (one, other), p_value in zip(pairs, p_values, strict=True):
        if p_value > question.alpha:
            like[one].append(other)
            like[other].append(one)
    means = {name: _mean_rate(arms) for name, arms in entries.items()}
    ordered = sorted(entries, key=lambda name: -means[name])
    return Leaderboard(
        tasks=tasks,
        places=tuple(
            _place(
                name, entries[name], rank=1 + sum(mean > means[name] for mean in means.values()), like=tuple(like[name])
            )
            for name in ordered
        ),
        num_comparisons=len(pairs),
        winner=choose_best({name: list(arms.values()) for name, arms in entries.items()}),
    )


def _entries_of_each(runs: Sequence[ReadRun]) -> dict[str, dict[str, Arm]]:
    """Return the common tasks of each run, by its directory: jobs of the same name, or else of its only suite."""
    if found := _in_common({str(run.directory): run.arms() for run in runs}):
        return found
    suites = {str(run.directory): list(run.suites().values()) for run in runs}
    if all(len(own) == 1 for own in suites.values()):
        found = _in_common({name: own[0] for name, own in suites.items()})
    if not found:
        raise NotComparableError("the runs have no job that all of them have, and no suite")
    return found


def _entries_of_one(run: ReadRun) -> dict[str, dict[str, Arm]]:
    """Return the tasks of each suite if a run has only suites; otherwise each job as a policy."""
    arms, suites = run.arms(), run.suites()
    if sum(map(len, suites.values())) < len(arms):
        return {name: {"": arm} for name, arm in arms.items()}
    found = _in_common(suites)
    if not found:
        raise NotComparableError(f"{run.directory}: its suites have no task that all of them have")
    return found


def _in_common(entries: Mapping[str, Mapping[str, Arm]]) -> dict[str, dict[str, Arm]]:
    """Restrict each entry to the tasks that all of them have; empty if there are none."""
    tasks = [task for task in next(iter(entries.values()), {}) if all(task in own for own in entries.values())]
    return {name: {task: own[task] for task in tasks} for name, own in entries.items()} if tasks else {}


def _check(entries: Mapping[str, Mapping[str, Arm]]) -> None:
    first = next(iter(entries.values()))
    for arms in entries.values():
        for task, arm in arms.items():
            if differences := differences_of_tasks(first[task], arm):
                raise NotComparableError(
                    f"{first[task].label} and {arm.label} are not the same task: {', '.join(differences)}"
                )
            if arm.num_missing:
                raise NotComparableError(f"{arm.label} has {arm.num_missing} episodes to go: finish it with --resume")
            if not arm.measures_success:
                raise NotComparableError(f"{arm.label} does not measure success")


def _p_value(one: Mapping[str, Arm], other: Mapping[str, Arm]) -> float:
    pairs = [match(one[task], other[task]).without_errors() for task in one]
    if not any(map(len, pairs)):
        names = " and ".join(next(iter(arms.values())).label for arms in (one, other))
        raise NotComparableError(f"{names} have no two episodes that started from the same conditions")
    draws = draws_of(condition for each in pairs for condition in each.conditions)
    return sign_flip_p(np.concatenate([each.differences for each in pairs]), draws)[1]


def _mean_rate(arms: Mapping[str, Arm]) -> float:
    rates = [arm.episodes.scored.rate or 0.0 for arm in arms.values()]
    return sum(rates) / len(rates)


def _place(name: str, arms: Mapping[str, Arm], *, rank: int, like: tuple[str, ...]) -> Place:
    tasks = [arm.episodes.scored for arm in arms.values()]
    everything, mean_interval = together(tasks), mean_of_tasks(tasks)
    interval = everything.wilson()
    if interval is None or mean_interval is None:
        raise ValueError("no episode tells a success from a failure")
    return Place(
        name=name,
        rank=rank,
        mean_rate=_mean_rate(arms),
        mean_interval=mean_interval,
        successes=everything.successes,
        episodes=len(everything),
        distinct=everything.num_distinct,
        interval=interval,
        like=like,
    )
