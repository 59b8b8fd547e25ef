"""Jobs together: suites, sweeps, pairs of one task and the evidence between them."""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.analysis.arms import Arm, ReadRun, conditions_of_pairs, differences_of_tasks, match
from isaaclab_arena.analysis.comparison_files import NAME
from isaaclab_arena.analysis.rates import paired_difference_interval, sign_flip_p
from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.jobs import JobOnPage, PooledRate, pooled_rate, uncounted
from isaaclab_arena.results.columns import PREFIX
from isaaclab_arena.results.rows import of_conditions, percent_text, short_policy_name, simulation_in_words
from isaaclab_arena.results.statistics import Interval, design_effect, draws_of
from isaaclab_arena.results.stopping import (
    Answer,
    PairCounts,
    in_words,
    log_e_value_of_difference,
    log_e_value_of_equality,
)
from isaaclab_arena.storage.json_values import read_json

# Groups of jobs: suites, success over a swept key, over checkpoints of a training, and policies against tasks.

MOST_JOBS_IN_DETAIL = 100
"""Jobs with charts of their own."""

MOST_CURVES = 24
_STEP = re.compile(r"(\d{1,15})(?:\.\w+)?/?$")
_NO_STRENGTH = frozenset({"seed", "placement_seed"})


@dataclass(frozen=True, kw_only=True)
class SuiteOnPage:
    """A suite of tasks."""

    name: str  # label on the page
    row: dict[str, Any]  # its row of the table of suites
    mean: str  # the mean rate of the tasks with its interval, or a dash if a task has no rate
    pooled: str  # the rate over all episodes with its interval, or a dash without one
    sentence: str  # quotable: the task, both rates, and uncounted episodes


def suite_on_page(row: dict[str, Any], label: str) -> SuiteOnPage:
    """Return the content of the page for a suite."""
    mean, pooled = (
        percent_text(*(row[f"{kind}_{part}"] for part in ("rate", "low", "high")), unit=" %")
        for kind in ("mean", "pooled")
    )
    said = "success not measured"
    if row["successes"] is not None:
        repeats = of_conditions(row.get("distinct_conditions"), row["scored"])
        said = f"mean of tasks {mean}; {row['successes']} of {row['scored']} episodes{repeats}, {pooled}"
    played = (f"{row['tasks']} tasks", short_policy_name(row["policy"]), simulation_in_words(row))
    what = plain_text(f"{label} ({row['suite']}, {', '.join(filter(None, played))})")
    sentence = f"{what}: {'; '.join([said, *uncounted(row)])}"
    return SuiteOnPage(name=plain_text(label), row=row, mean=mean, pooled=pooled, sentence=sentence)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Success as a function of a swept key."""

    key: str
    of: str  # other common properties of the jobs
    over_checkpoints: bool  # the key is a checkpoint, so this is a learning curve
    points: tuple[PooledRate, ...]  # one per value, ascending


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Policies against tasks."""

    tasks: tuple[str, ...]  # columns
    # Each policy with its cell per task; None if it was not evaluated on the task.
    lines: tuple[tuple[str, tuple[PooledRate | None, ...]], ...]


def curves(jobs: Sequence[JobOnPage]) -> tuple[Curve, ...]:
    """Return success by each swept key that is a number or a checkpoint, for jobs that are otherwise equal."""
    # Jobs of one run that differ only in the key and the seed form a curve.
    keys = dict.fromkeys(name.removeprefix(PREFIX) for job in jobs for name in job.row if name.startswith(PREFIX))
    addresses = {id(job): f"#job-{number}" for number, job in enumerate(jobs[:MOST_JOBS_IN_DETAIL])}
    found = []
    for key in (key for key in keys if key not in _NO_STRENGTH):
        named_checkpoint = any(word in key.rpartition(".")[2] for word in ("checkpoint", "model"))
        series: dict[tuple[int, str], dict[float, list[JobOnPage]]] = {}
        own = {PREFIX + key, *(PREFIX + name for name in _NO_STRENGTH)}
        for job in jobs:
            row, value = job.row, job.row.get(PREFIX + key)
            if isinstance(value, str) and named_checkpoint and (step := _STEP.search(value)) is not None:
                value = float(step[1])
            if not isinstance(value, int | float) or isinstance(value, bool) or row["success_rate"] is None:
                continue
            # The other properties tell the curves apart.
            rest = [row["environment"], row["object"], row["embodiment"], short_policy_name(str(row["policy"]))]
            for name, other in row.items():
                if name.startswith(PREFIX) and name not in own and other is not None and other not in rest:
                    rest.append(f"{name.rpartition('.')[2]} {other}")
            of = plain_text(", ".join(str(each) for each in rest if each))
            series.setdefault((job.run, of), {}).setdefault(float(value), []).append(job)

        # The line of a curve needs two values.
        for (_, of), by_value in series.items():
            values = sorted(by_value)
            points = (
                pooled_rate(
                    [job.scored for job in by_value[value]],
                    label=f"{value:.0f}" if named_checkpoint else f"{value:g}",
                    x=(value - values[0]) / (values[-1] - values[0]),
                    address=addresses.get(id(by_value[value][0])) if len(by_value[value]) == 1 else None,
                )
                for value in (values if len(values) > 1 else ())
            )
            if kept := tuple(point for point in points if point is not None):
                found.append(Curve(key=plain_text(key), of=of, over_checkpoints=named_checkpoint, points=kept))
    return tuple(found[:MOST_CURVES])


def matrix(jobs: Sequence[JobOnPage]) -> Matrix | None:
    """Return policies against tasks. None for a single policy or task, and for too many."""
    cells: dict[tuple[str, str], list[JobOnPage]] = {}
    for job in jobs:
        if job.row["success_rate"] is None:
            continue
        policy = short_policy_name(job.keys["policy"])
        if checkpoint := job.keys.get("checkpoint", "").rstrip("/").rpartition("/")[2]:
            policy = f"{policy}, {checkpoint}"
        task = ", ".join(job.keys[name] for name in ("environment", "object", "embodiment") if name in job.keys)
        cells.setdefault((policy, task), []).append(job)
    policies = list(dict.fromkeys(policy for policy, _ in cells))
    tasks = tuple(dict.fromkeys(task for _, task in cells))
    if not (2 <= len(policies) <= 40 and 2 <= len(tasks) <= 40):
        return None
    found = {at: pooled_rate([job.scored for job in own], label=at[1]) for at, own in cells.items()}
    lines = ((policy, tuple(found.get((policy, task)) for task in tasks)) for policy in policies)
    return Matrix(tasks=tasks, lines=tuple(lines))


# The evidence between two jobs by episode, and the evidence that decides.

ALPHA = 0.05
"""The chance of a wrong decision about two jobs without a question of the run."""


@dataclass(frozen=True, kw_only=True)
class EvidenceCurve:
    """The e-value by episode."""

    # Episodes of each job, and log10 of the e-value, from no episode to the last; a subset of them if there are many.
    points: tuple[tuple[int, float], ...]
    line: str  # SVG points of the curve in a box of 100 by 100, at whose bottom the evidence is -1
    limit: float  # distance of the evidence that decides from the top of that box
    e_value: str  # the last one, as a power of ten if it exceeds a float
    needed: str  # the e-value that decides
    against: str  # the tested statement
    bar: str  # the reason for `needed`: ``alpha 0.05, shared by 2 questions``
    answer: str | None = None  # answer to the run's question; None if the run asked none about the two jobs


def evidence_curve(first: Arm, second: Arm, answer: Answer | None, *, num_questions: int) -> EvidenceCurve:
    """Return the evidence over the episodes 0 to m - 1 that both jobs have finished."""
    # Without a question of the run, a default comparison is assumed. Questions of a run share alpha.
    if answer is None:
        jobs = (first.entry.name, second.entry.name)
        question, num_questions = Question(name="", jobs=jobs, max_episodes=sys.maxsize, alpha=ALPHA), 1
        shared = "if nothing else is asked"
    else:
        question = answer.question
        shared = "shared by " + ("one question" if num_questions == 1 else f"{num_questions} questions")
    # The question fixes the candidate, so the sides follow its order. The episodes before the first one that a job
    # lacks count, and each draw of conditions counts once.
    sides = (first, second) if first.entry.name == question.jobs[0] else (second, first)
    finished = (int((arm.episodes.index == np.arange(len(arm.episodes))).sum()) for arm in sides)
    numbers = np.arange(min(question.max_episodes, *finished))
    new, old = (arm.episodes.at(numbers) for arm in sides)
    known = np.flatnonzero(np.isfinite(new.success) & np.isfinite(old.success) & (new.drawn == old.drawn))
    _, once = np.unique(draws_of(conditions_of_pairs(new, old))[known], return_index=True)
    counts = np.isin(np.arange(len(new)), known[once])
    wins, losses, alike = (
        np.cumsum(counts & which)
        for which in (new.success > old.success, new.success < old.success, new.success == old.success)
    )
    # At most 240 points are kept.
    points = [(0, 0.0)]
    for at in np.unique(np.linspace(0, len(new) - 1, min(len(new), 240)).astype(int)).tolist():
        pairs = PairCounts(both=int(alike[at]), only_first=int(wins[at]), only_second=int(losses[at]), neither=0)
        evidence = (
            log_e_value_of_equality(pairs)
            if question.margin is None
            else log_e_value_of_difference(pairs, -question.margin)
        )
        points.append((at + 1, evidence / math.log(10.0)))
    decisive, (most, last) = math.log(num_questions / question.alpha) / math.log(10.0), points[-1]
    top = max(2.0, 1.1 * decisive, *(evidence for _, evidence in points))
    heights = [100 * (1 - (max(evidence, -1.0) + 1) / (top + 1)) for evidence in (decisive, *(e for _, e in points))]
    places = zip(points, heights[1:], strict=True)
    worse = f"{question.jobs[0]} is {100 * (question.margin or 0.0):g} points worse than {question.jobs[1]}"
    return EvidenceCurve(
        points=tuple(points),
        line=" ".join(f"{100 * episodes / max(1, most):.2f},{height:.2f}" for (episodes, _), height in places),
        limit=heights[0],
        e_value=f"{10.0**last:.3g}" if last < 100 else f"10^{last:.0f}",
        needed=f"{10.0**decisive:.4g}",
        against=plain_text("neither is better" if question.margin is None else worse),
        bar=f"alpha {question.alpha:g}, {shared}",
        answer=None if answer is None else plain_text(in_words(answer)),
    )


# Jobs of one task side by side: their difference over the same episodes, and episodes with unequal outcomes.

MOST_PAIRS = 16


@dataclass(frozen=True, kw_only=True)
class PairOnPage:
    """Two jobs of one task over the same episodes. Differences are first minus second."""

    first: int  # position of the candidate on the page
    second: int  # position of the baseline on the page
    counts: PairCounts  # outcomes of the pairs
    distinct: int  # distinct initial conditions of the pairs
    difference: float  # of the success rates
    interval: Interval  # 95 % interval of the difference
    mid_p: float  # McNemar's test
    # From ``isaaclab-arena compare``, or from the question that stopped the run. None without either.
    verdict: str | None
    evidence: EvidenceCurve
    # Jobs that could stop at any episode. For them ``interval`` and ``mid_p`` assume a fixed number, and are too
    # certain.
    could_stop: tuple[str, ...]
    discordant: tuple[int, ...]  # episodes in which only one of the two succeeded
    episodes: tuple[int, ...] | None  # episodes with pairs; None if all common episodes are pairs


def pairs_on_page(
    runs: Sequence[ReadRun], positions: Mapping[tuple[int, str], int], answers: Sequence[Sequence[Answer]] = ()
) -> tuple[PairOnPage, ...]:
    """Return the pairs of jobs that the run or `compare` compared, or else each job with the first of its task."""
    # `positions` maps the number of a run and a job's name to its position on the page.
    arms = {
        positions[number, name]: arm
        for number, run in enumerate(runs)
        for name, arm in run.arms.items()
        if (number, name) in positions
    }
    # The comparisons that the runs asked for, each with its answer and the run's number of questions.
    asked: dict[tuple[int, int], tuple[Answer, int]] = {}
    for number, own in enumerate(answers):
        for answer in (each for each in own if len(each.question.jobs) > 1):
            new, old = (positions[number, name] for name in answer.question.jobs)
            asked[new, old] = answer, len(own)
    verdicts = dict(_stored_verdicts([run.directory for run in runs], positions))
    # A pair that both the run and `compare` compared appears once, with the direction of `compare`.
    wanted = [*verdicts, *(sides for sides in asked if sides not in verdicts and sides[::-1] not in verdicts)]
    if not wanted:
        leaders: list[int] = []
        for at, arm in arms.items():
            leader = next((each for each in leaders if not differences_of_tasks(arm, arms[each])), None)
            if leader is None:
                leaders.append(at)
            else:
                wanted.append((at, leader))

    found = []
    for first, second in wanted:
        if first in arms and second in arms and len(found) < MOST_PAIRS:
            answer, num_questions = asked.get((first, second), asked.get((second, first), (None, 1)))
            curve = evidence_curve(arms[first], arms[second], answer, num_questions=num_questions)
            verdict = verdicts.get((first, second), None if answer is None else str(answer.verdict or "undecided"))
            pair = _side_by_side(arms[first], arms[second], first, second, curve, verdict=verdict)
            found += [] if pair is None else [pair]
    return tuple(found)


def _side_by_side(
    first: Arm, second: Arm, at: int, other: int, evidence: EvidenceCurve, *, verdict: str | None
) -> PairOnPage | None:
    """Return two jobs side by side, None without a pair. `at` and `other` are their positions on the page."""
    if differences_of_tasks(first, second):
        return None
    # Episodes with equal conditions are not independent, so interval and test use conditions as units.
    matched = match(first, second)
    counts, known = matched.counts, matched.without_errors()
    effect, draws = design_effect(known.differences, known.conditions), draws_of(known.conditions)
    interval = paired_difference_interval(counts, design_effect=effect)
    if interval is None or counts.difference is None:
        return None
    is_unequal = len(matched.unequal_sides[0]) > 0
    return PairOnPage(
        first=at,
        second=other,
        counts=counts,
        distinct=len({*draws.tolist()}),
        difference=counts.difference,
        interval=interval,
        mid_p=sign_flip_p(known.differences, draws)[1],
        verdict=None if verdict is None else plain_text(verdict),
        evidence=evidence,
        could_stop=tuple(plain_text(arm.entry.name) for arm in (first, second) if arm.asked),
        discordant=tuple(known.first.index[(known.first.success > 0) != (known.second.success > 0)].tolist()),
        episodes=tuple(matched.first.index.tolist()) if is_unequal else None,
    )


def _stored_verdicts(
    directories: Sequence[Path], positions: Mapping[tuple[int, str], int]
) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the comparisons in the runs' comparison files with their verdicts; other files are skipped."""
    numbers = {directory.resolve(): number for number, directory in enumerate(directories)}
    for directory in directories:
        try:
            document = read_json(directory / f"{NAME}.json")
            for task in document["tasks"]:
                sides = []
                for arm in (task["candidate"], task["baseline"]):
                    number = numbers.get(Path(arm["run"]).resolve())
                    sides.append(None if number is None else positions.get((number, arm["job"])))
                if sides[0] is not None and sides[1] is not None:
                    yield (sides[0], sides[1]), str(task["verdict"])
        except (StorageError, ValueError, KeyError, TypeError, IndexError):
            continue
