"""The answer of a page: the better of each two policies, by how much, how surely, or what is missing to say so."""

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.analysis import comparison
from isaaclab_arena.analysis.arms import (
    Arm,
    MatchedEpisodes,
    PairedDifference,
    ReadRun,
    differences_of_tasks,
    match,
    paired_difference,
)
from isaaclab_arena.analysis.comparison_files import NAME
from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import StorageError, shortened
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.jobs import JobOnPage, pooled_rate
from isaaclab_arena.results import stopping
from isaaclab_arena.results.merge import Tables
from isaaclab_arena.results.rows import percent_text
from isaaclab_arena.results.statistics import draws_of
from isaaclab_arena.storage.atomic import read_json
from isaaclab_arena.storage.ledger import JobResultStatus, typed_command

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


def evidence_curve(first: Arm, second: Arm, answer: stopping.Answer | None, *, num_questions: int) -> EvidenceCurve:
    """Return the evidence over the episodes 0 to m - 1 that both jobs have finished."""
    # Without a question of the run, a default comparison is assumed. Questions of a run share alpha.
    if answer is None:
        jobs = (first.entry.name, second.entry.name)
        question, num_questions = Question(name="", jobs=jobs, max_episodes=sys.maxsize, alpha=ALPHA), 1
        shared = "the default"
    else:
        question = answer.question
        shared = "for one question" if num_questions == 1 else f"shared by {num_questions} questions"
    # The question fixes the candidate, so the sides follow its order. The episodes before the first one that a job
    # lacks count, and each draw of conditions counts once.
    sides = (first, second) if first.entry.name == question.jobs[0] else (second, first)
    matched = match(*sides, prefix_only=True)
    most = min(question.max_episodes, len(matched) + len(matched.unequal_sides[0]))
    pairs = matched.without_errors()
    _, once = np.unique(draws_of(pairs.conditions), return_index=True)
    once = once[pairs.first.index[once] < most]
    wins, losses, alike = (
        np.cumsum(np.bincount(pairs.first.index[once][pairs.differences[once] == which], minlength=most))
        for which in (1, -1, 0)
    )
    # At most 240 points are kept.
    points = [(0, 0.0)]
    for at in np.unique(np.linspace(0, most - 1, min(most, 240)).astype(int)).tolist():
        counted = stopping.PairCounts(
            both=int(alike[at]), only_first=int(wins[at]), only_second=int(losses[at]), neither=0
        )
        evidence = (
            stopping.log_e_value_of_equality(counted)
            if question.margin is None
            else stopping.log_e_value_of_difference(counted, -question.margin)
        )
        points.append((at + 1, evidence / math.log(10.0)))
    decisive, last = math.log(num_questions / question.alpha) / math.log(10.0), points[-1][1]
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
        answer=None if answer is None else plain_text(stopping.in_words(answer)),
    )


# Jobs of one task side by side: their difference over the same episodes, and its verdict.

MOST_PAIRS = 120
"""Pairs of jobs on a page."""

MOST_EVIDENCE = 16
"""Pairs whose evidence is drawn by episode: the most telling ones."""

MOST_IN_ALL_PAIRS = 6
"""Jobs of one task and its conditions of which each two are compared; of more jobs, each with the first."""

_MOST_LOOKED_UP = 50  # episodes of a job that are searched for a condition that another job has

UNFINISHED = "not finished"
"""The verdict on two jobs of which one has episodes to go."""

_QUESTION = comparison.Question(alpha=ALPHA)
_ALONE = "; the interval is of this pair alone"


@dataclass(frozen=True, kw_only=True)
class PairOnPage(PairedDifference):
    """Two jobs of one task over the same episodes. Differences are first minus second, with 95 % intervals."""

    first: int  # position of the candidate on the page
    second: int  # position of the baseline on the page
    # From ``isaaclab-arena compare``, or from the question that stopped the run, or as `compare` would find it.
    verdict: str
    adjusted_p: float  # mid_p adjusted for the `family` pairs of the same task, as `compare` adjusts it
    family: int
    answer: stopping.Answer | None  # to the run's question; None if the run asked none about the two jobs
    needed: int | None  # pairs that would settle it at the observed rates; None if decided, or beyond 5,000
    # Jobs that could stop at any episode. For them ``interval`` and ``mid_p`` assume a fixed number, and are too
    # certain.
    could_stop: tuple[str, ...]
    matched: MatchedEpisodes
    evidence: EvidenceCurve | None = None  # of the most telling pairs

    @property
    def is_decided(self) -> bool:
        """Whether one of the two is known to be better, or no worse."""
        return self.verdict not in (str(comparison.Verdict.UNDECIDED), UNFINISHED)

    @cached_property
    def discordant(self) -> tuple[int, ...]:
        """The episodes in which only one of the two succeeded."""
        known = self.matched.without_errors()
        return tuple(known.first.index[(known.first.success > 0) != (known.second.success > 0)].tolist())

    @cached_property
    def episodes(self) -> tuple[int, ...] | None:
        """The episodes with pairs; None if all common episodes are pairs."""
        is_unequal = len(self.matched.unequal_sides[0]) > 0
        return tuple(self.matched.first.index.tolist()) if is_unequal else None


@dataclass(frozen=True, kw_only=True)
class JobsCompared:
    """The pairs of a page, the most telling first, and what is missing to compare others."""

    pairs: tuple[PairOnPage, ...] = ()
    missing: tuple[str, ...] = ()  # reasons against pairs of the same task, each with the way out
    alone: tuple[int, ...] = ()  # positions of the jobs whose task and conditions no other job has
    num_left_out: int = 0  # pairs beyond `MOST_PAIRS`


def compared_jobs(
    runs: Sequence[ReadRun], positions: Mapping[tuple[int, str], int], answers: Sequence[Sequence[stopping.Answer]] = ()
) -> JobsCompared:
    """Compare the jobs that the run or `compare` compared, or else the jobs of each task, as `compare` would."""
    # `positions` maps the number of a run and a job's name to its position on the page.
    arms = {
        positions[number, name]: arm
        for number, run in enumerate(runs)
        for name, arm in run.arms.items()
        if (number, name) in positions
    }
    # The comparisons that the runs asked for, each with its answer and the run's number of questions.
    asked: dict[tuple[int, int], tuple[stopping.Answer, int]] = {}
    for number, own in enumerate(answers):
        for answer in (each for each in own if _is_of_pair(each.question)):
            new, old = (positions[number, name] for name in answer.question.jobs)
            asked[new, old] = answer, len(own)
    verdicts = _stored_verdicts(runs, positions)
    # A pair that both the run and `compare` compared appears once, with the direction of `compare`.
    others = [sides for sides in asked if sides not in verdicts and sides[::-1] not in verdicts]
    families, alone = [list(verdicts), *([sides] for sides in others)], ()
    missing: list[str] = []
    if not verdicts and not others:
        groups = _comparable(arms)
        alone = tuple(group[0] for group in groups if len(group) == 1)
        families = [
            [(later, earlier) for earlier, later in combinations(group, 2)]
            if len(group) <= MOST_IN_ALL_PAIRS
            else [(later, group[0]) for later in group[1:]]
            for group in groups
        ]
        # Without any pair, the first two jobs of one task say what keeps them apart.
        if len(alone) == len(groups):
            both = ((one, other) for one, other in combinations(alone[:_MOST_LOOKED_UP], 2))
            apart = ((other, one) for one, other in both if _are_rivals(arms[one], arms[other]))
            families = [[sides] for sides in islice(apart, 1)]

    found: list[PairOnPage] = []
    for family in families:
        kept: list[PairOnPage] = []
        for first, second in family[: max(0, MOST_PAIRS - len(found))]:
            if first not in arms or second not in arms:
                continue
            pair = _paired(arms[first], arms[second], first, second)
            if isinstance(pair, PairOnPage):
                answer, _ = asked.get((first, second), asked.get((second, first), (None, 1)))
                stored = verdicts.get((first, second), answer and str(answer.verdict or comparison.Verdict.UNDECIDED))
                kept.append(replace(pair, answer=answer, verdict=stored or pair.verdict))
            else:
                missing.append(plain_text(pair))
        # The pairs of one task are a family, whose p-values `compare` adjusts together.
        for pair, (p_value, verdict) in zip(kept, comparison.verdicts_of(kept, _QUESTION), strict=True):
            decided = replace(pair, adjusted_p=p_value, family=len(kept), verdict=pair.verdict or str(verdict))
            # A family needs more pairs than a single comparison: each of its differences has a share of alpha.
            share = replace(_QUESTION, alpha=ALPHA / len(kept))
            is_open = decided.verdict == comparison.Verdict.UNDECIDED
            found.append(replace(decided, needed=comparison.pairs_needed(pair.counts, share) if is_open else None))

    # The most telling pairs come first; their evidence is drawn.
    found.sort(key=lambda pair: (not pair.is_decided, pair.adjusted_p, -abs(pair.difference)))
    for at, pair in enumerate(found[:MOST_EVIDENCE]):
        answer, num_questions = asked.get((pair.first, pair.second), asked.get((pair.second, pair.first), (None, 1)))
        curve = evidence_curve(arms[pair.first], arms[pair.second], answer, num_questions=num_questions)
        found[at] = replace(pair, evidence=curve)
    return JobsCompared(
        pairs=tuple(found),
        missing=tuple(dict.fromkeys(missing)),
        alone=alone,
        num_left_out=max(0, sum(map(len, families)) - MOST_PAIRS),
    )


def _is_of_pair(question: Question) -> bool:
    """Whether a question compares two jobs with each other."""
    return len(question.jobs) == len(question.sides) == 2 and question.is_test


def _comparable(arms: Mapping[int, Arm]) -> list[list[int]]:
    """Return the positions of jobs in groups that have the task and at least one initial condition in common."""
    groups: list[list[int]] = []
    by_start: dict[tuple[int, str], list[list[int]]] = {}
    for at, arm in arms.items():
        few = arm.episodes.at(np.arange(min(len(arm.episodes), _MOST_LOOKED_UP)))
        starts = list(zip(few.index.tolist(), few.drawn.tolist(), strict=True))
        # A job without an episode belongs to its task.
        sharing = [group for start in starts for group in by_start.get(start, ())] if starts else groups
        candidates = {id(group): group for group in sharing}.values()
        own = next((group for group in candidates if not differences_of_tasks(arm, arms[group[0]])), None)
        if own is None:
            own = []
            groups.append(own)
        own.append(at)
        for start in starts:
            owners = by_start.setdefault(start, [])
            if not any(owner is own for owner in owners):
                owners.append(own)
    return groups


def _are_rivals(one: Arm, other: Arm) -> bool:
    """Whether two jobs are of one task, and not one policy under two seeds: that is a repetition."""
    policies = [
        (arm.entry.config.policy_type, arm.entry.policy_config, arm.contents and arm.contents.policy)
        for arm in (one, other)
    ]
    is_repeated = one.entry.config.seed != other.entry.config.seed and policies[0] == policies[1]
    return not is_repeated and not differences_of_tasks(one, other)


def _stored_verdicts(runs: Sequence[ReadRun], positions: Mapping[tuple[int, str], int]) -> dict[tuple[int, int], str]:
    """Return the verdicts in the runs' comparison files by candidate and baseline; other files are skipped."""
    numbers = {run.directory.resolve(): number for number, run in enumerate(runs)}
    verdicts: dict[tuple[int, int], str] = {}
    for run in runs:
        tasks: Any = ()
        with suppress(StorageError, KeyError, TypeError):
            tasks = read_json(run.directory / f"{NAME}.json")["tasks"]
        # A damaged task leaves the others of its file.
        for task in tasks if isinstance(tasks, list) else ():
            with suppress(ValueError, KeyError, TypeError):
                first, second = (
                    positions.get((numbers.get(Path(arm["run"]).resolve(), -1), arm["job"]))
                    for arm in (task["candidate"], task["baseline"])
                )
                if first is not None and second is not None:
                    verdicts[first, second] = plain_text(str(task["verdict"]))
    return verdicts


def _paired(first: Arm, second: Arm, at: int, other: int) -> PairOnPage | str:
    """Return two jobs as a pair without a verdict, or the reason against it; `at` and `other` are their positions."""
    if reason := comparison.reason_against(first, second, partial=len(first.episodes) > 0 < len(second.episodes)):
        return f"{first.label} and {second.label}: {reason}"
    # Jobs that have episodes to go are paired over those before the first that is missing, as by ``--partial``.
    is_unfinished = first.num_missing + second.num_missing > 0
    matched = match(first, second, prefix_only=is_unfinished)
    found = paired_difference([matched])
    if found is None:
        return f"{first.label} and {second.label}: {comparison.reason_without_pairs(matched)}"
    return PairOnPage(
        **vars(found),
        first=at,
        second=other,
        verdict=UNFINISHED if is_unfinished else "",
        adjusted_p=found.mid_p,
        family=1,
        answer=None,
        needed=None,
        could_stop=tuple(plain_text(arm.entry.name) for arm in (first, second) if arm.asked),
        matched=matched,
    )


# The answer in sentences: a claim, and the figures that carry it.


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence of the answer."""

    claim: str
    figures: str
    way_out: str = ""  # what would settle an open claim
    command: str = ""  # the line to type for that
    pair: int | None = None  # position of its pair on the page; None for several pairs, and for none


def findings(
    compared: JobsCompared,
    jobs: Sequence[JobOnPage],
    suites: Sequence[Mapping[str, Any]] = (),
    answers: Sequence[stopping.Answer] = (),
    stopped: Sequence[Finding] = (),
) -> list[Finding]:
    """Return the answer of a page, the most telling sentence first; at least one for a page with jobs."""
    # A run that failed or was interrupted comes before everything that its episodes say; see `of_stopped_run`.
    names = [job.name for job in jobs]
    # Policies that meet on several tasks have one answer over all of them, which comes before those of the tasks.
    found = [_of_question(each) for each in answers if len(each.question.jobs) > 1 and not _is_of_pair(each.question)]
    found += _of_policies(compared.pairs, jobs)
    found += [_of_pair(pair, names, at) for at, pair in enumerate(compared.pairs)]
    found += [_of_question(each) for each in answers if len(each.question.jobs) == 1]
    found = [replace(each, claim=plain_text(each.claim), figures=plain_text(each.figures)) for each in found]
    if not found:
        own = [job for job in jobs if not job.is_changed] or jobs
        of_own = [each for each in suites if not each["is_changed"]] or suites
        found = [*_rates(own, of_own), *([] if stopped else [_what_is_missing(compared, own)])]
    return [*stopped, *found]


def episodes_so_far(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of finished episodes among the planned ones: ``412 of 900 episodes``."""
    done = sum(row["episodes"] or 0 for row in rows)
    planned = [row["planned"] for row in rows if row["status"] != JobResultStatus.SKIPPED]
    return f"{done:,} episodes" if None in planned else f"{done:,} of {sum(planned):,} episodes"


def of_stopped_run(merged: Tables, directory: Path, *, prefix: str) -> Finding | None:
    """Return the sentence of a run that failed or was interrupted, None if it is complete; `prefix` names the run."""
    if merged.complete:
        return None
    rows = {status: [row for row in merged.rows if row["status"] == status] for status in JobResultStatus}
    failed = rows[JobResultStatus.FAILED]
    named = {
        "failed in": failed,
        "was interrupted in": rows[JobResultStatus.INTERRUPTED],
        "did not reach": rows[JobResultStatus.MISSING],
    }
    claims = [f"{verb} {_listed([row['name'] for row in own])}" for verb, own in named.items() if own]
    # One error stands for all: the errors of the others are at the end of the page.
    errors = [str(row["error"]).strip().partition("\n")[0] for row in failed if row["error"]]
    reason = f"{shortened(errors[0], 200)}. " if errors else ""
    # Only a run of the command line can be resumed by it. Episodes that ended in an error count as done.
    retry = " --retry_errors" if any(row["errors"] for row in failed) else ""
    command = f"isaaclab-arena resume {shlex.quote(str(directory))}{retry}"
    if typed_command(merged.plan) is None:
        command = f"evaluate(..., output_dir={str(directory)!r}, resume=True)"
    return Finding(
        claim=plain_text(f"{prefix}The run {' and '.join(claims)}"),
        figures=plain_text(f"{reason}{episodes_so_far(merged.rows)} are there."),
        way_out="After the fix, resume it:" if failed else "To resume it:",
        command=plain_text(command),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more jobs" if len(names) > 3 else "")


def findings_so_far(answers: Sequence[stopping.Answer]) -> list[Finding]:
    """Return the answer of a page whose run is in progress: what it asked, without comparisons of its jobs."""
    return [
        *map(_of_question, answers),
        Finding(claim="The run is in progress", figures="Its jobs are compared at the end."),
    ]


def _of_question(answer: stopping.Answer) -> Finding:
    """Return the sentence of a question that the run asked."""
    question, arms = answer.question, [*answer.question.sides]
    asked = f"whether {arms[0]} succeeds in more than {100 * (question.at_least or 0.0):g} %"
    asked = " or ".join(arms) if len(arms) > 1 else asked
    asked = f"the best of {', '.join(answer.left)}" if question.selects_best else asked
    is_known = answer.verdict is not None or question.half_width is not None
    claim = stopping.verdict_in_words(answer) if is_known else f"Not decided: {asked}"
    return Finding(claim=plain_text(claim), figures=plain_text(f"{stopping.in_words(answer)}."))


def _rates(jobs: Sequence[JobOnPage], suites: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the rates of jobs that are compared with nothing: of suites, or else of the single policy."""
    for suite in suites:
        figures = f"All episodes together: {suite['pooled']}."
        yield Finding(claim=f"{suite['name']}: mean of its tasks {suite['mean']}", figures=figures)
    measured = sorted((job for job in jobs if job.num_scored), key=lambda job: job.row["success_rate"])
    if not measured:
        for job in jobs[:MOST_PAIRS]:
            if "mean_return" in job.means:
                claim = f"{job.name} has a mean return of {job.means['mean_return']}"
                yield Finding(claim=claim, figures=f"{job.row['episodes']} episodes, whose success is not measured.")
    whole = pooled_rate([job.scored for job in measured], label="") if measured else None
    if suites or whole is None or len({job.policy for job in jobs}) > 1:
        return
    rate = percent_text(whole.rate, whole.interval.low, whole.interval.high, unit=" %")
    figures = f"{whole.successes} of {whole.scored} episodes{whole.repeats}, with the 95 % interval (Wilson)."
    if len(measured) > 1:
        least, most = measured[0], measured[-1]
        over = "seeds" if len({job.task for job in jobs}) == 1 < len({job.row["seed"] for job in jobs}) else "jobs"
        figures += f" Over {len(measured)} {over}, from {least.rate} in {least.name} to {most.rate} in {most.name}."
    who = jobs[0].name if len(jobs) == 1 else jobs[0].policy
    yield Finding(claim=f"{who} succeeds in {rate}", figures=figures)


def _what_is_missing(compared: JobsCompared, jobs: Sequence[JobOnPage]) -> Finding:
    """Return the reason that no two jobs are compared, and the way to an answer."""
    if compared.missing:
        more = len(compared.missing) - 1
        others = f" The same holds for {more} more pair{'s' if more > 1 else ''} of jobs." if more else ""
        return Finding(claim="Jobs of the same task cannot be compared", figures=f"{compared.missing[0]}.{others}")
    second = "another policy in the same environment with the same seed"
    if len({job.task for job in jobs}) > 1:
        claim, figures = "No two jobs can be compared", "No two are of the same task."
    else:
        claim, figures = "Nothing to compare it with" if jobs else "The run has no job", ""
    return Finding(claim=claim, figures=figures, way_out=f"For a comparison, evaluate {second}.")


def _of_pair(pair: PairOnPage, names: Sequence[str], at: int) -> Finding:
    """Return the sentence of a pair, the better job first."""
    turned = pair.verdict == comparison.Verdict.WORSE or (not pair.is_decided and pair.difference < 0)
    better, other = (names[each] for each in (pair.first, pair.second)[:: -1 if turned else 1])
    claims = {
        comparison.Verdict.BETTER: f"{better} is better than {other}",
        comparison.Verdict.WORSE: f"{better} is better than {other}",
        comparison.Verdict.NO_WORSE: f"{better} is no worse than {other}",
        UNFINISHED: f"Not finished: {better} or {other}",
    }
    adjusted = f", adjusted for {pair.family} pairs{_ALONE}" if pair.family > 1 else ""
    surely = f"p = {pair.adjusted_p:.2g} (McNemar mid-p{adjusted})"
    # Where jobs could stop at any episode the answer of the run holds, and the p-value does not.
    if pair.answer is not None:
        surely = stopping.in_words(pair.answer)
    figures = _figures(pair, surely, turned=turned)
    # The intervals of lengths and returns take time, so only the most telling pairs have them.
    if pair.verdict == comparison.Verdict.UNDECIDED and pair.evidence is not None:
        known = pair.matched.without_errors()
        one, two, draws = known.first, known.second, draws_of(known.conditions)
        one, two = (two, one) if turned else (one, two)
        length = comparison.mean_difference(one.length, two.length, draws)
        returns = comparison.mean_difference(one.episode_return, two.episode_return, draws)
        if beside := comparison.beside_success(length, returns, _QUESTION):
            figures += f" {beside[0].upper()}{beside[1:]}."
    return Finding(
        claim=claims.get(pair.verdict, f"Not decided: {better} or {other}"),
        figures=figures,
        way_out="" if pair.is_decided else _way_out(pair),
        pair=at,
    )


def _way_out(pair: PairOnPage) -> str:
    """Return the way to an answer for a pair that is open."""
    counts = pair.counts
    if pair.verdict == UNFINISHED:
        return "Finish the run to have an answer."
    if pair.answer is not None and not pair.answer.is_final:
        return f"The question goes on to {pair.answer.question.max_episodes} episodes of each."
    if counts.only_first + counts.only_second == 0:
        return "Every episode has the same outcome in both. Other conditions, easier or harder, may tell them apart."
    if counts.only_first == counts.only_second:
        return f"Each alone succeeded in {counts.only_first}, so nothing speaks for either."
    if pair.needed is None:
        return "A difference this small takes more than 5,000 episodes of each to find."
    if pair.needed <= counts.total:
        return "More episodes of each would settle it; how many more, these few do not say."
    return (
        f"A difference of this size takes about {pair.needed:,} episodes of each to find in four of five tries, "
        f"{pair.needed - counts.total:,} more than there are: set num_episodes to {pair.needed} and resume the "
        "run."
    )


def _of_policies(pairs: Sequence[PairOnPage], jobs: Sequence[JobOnPage]) -> Iterator[Finding]:
    """Yield a sentence for each two policies that meet in several pairs of jobs, over all of their episodes."""
    groups: dict[tuple[str, str], list[MatchedEpisodes]] = {}
    tasks: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for pair in pairs:
        first, second, matched = jobs[pair.first].policy, jobs[pair.second].policy, pair.matched
        if first == second or pair.verdict == UNFINISHED or pair.answer is not None or pair.could_stop:
            continue
        if (second, first) in groups:
            first, second, matched = second, first, replace(matched, first=matched.second, second=matched.first)
        groups.setdefault((first, second), []).append(matched)
        tasks.setdefault((first, second), set()).add((jobs[pair.first].task, jobs[pair.first].row["seed"]))
    # Several pairs of one task and seed are of policies with other options, which have nothing to pool.
    pooled = {sides: paired_difference(own) for sides, own in groups.items() if len(own) == len(tasks[sides]) > 1}
    known = {sides: found for sides, found in pooled.items() if found is not None}
    decided = comparison.verdicts_of(list(known.values()), _QUESTION)
    for (sides, found), (p_value, verdict) in zip(known.items(), decided, strict=True):
        better, other = sides if found.difference >= 0 else sides[::-1]
        is_open = verdict is comparison.Verdict.UNDECIDED
        claim = f"Not decided: {better} or {other}" if is_open else f"{better} is better than {other}"
        num_tasks = len({task for task, _ in tasks[sides]})
        over = f"{len(tasks[sides])} seeds" if num_tasks == 1 else f"{num_tasks} tasks"
        adjusted = f", adjusted for {len(known)} pairs of policies{_ALONE}" if len(known) > 1 else ""
        surely = f"p = {p_value:.2g} (McNemar mid-p, all episodes together{adjusted})"
        yield Finding(claim=f"{claim} over {over}", figures=_figures(found, surely, turned=found.difference < 0))


def _figures(found: PairedDifference, surely: str, *, turned: bool) -> str:
    """Return rates and difference in words, those of the second side first if they are `turned`."""
    sign = -1.0 if turned else 1.0
    one, other = (100 * successes / found.counts.total for successes in found.counts.successes[:: int(sign)])
    low, high = sorted((100 * sign * found.interval.low, 100 * sign * found.interval.high))
    return (
        f"{one:.1f} % against {other:.1f} % in {found.counts.total} episodes with the same start: "
        f"{100 * sign * found.difference:+.1f} points [{low:+.1f}, {high:+.1f}], {surely}."
    )
