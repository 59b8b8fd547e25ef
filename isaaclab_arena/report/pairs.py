"""Jobs of one task side by side: how they differ over the same episodes, and which episodes came out differently."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.analysis.arms import Arm, ReadRun, differences_of_tasks, match
from isaaclab_arena.analysis.comparison_files import NAME
from isaaclab_arena.analysis.rates import paired_difference_interval, sign_flip_p
from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.evidence import EvidenceCurve, evidence_curve
from isaaclab_arena.results.clusters import design_effect, draws_of
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.answers import Answer
from isaaclab_arena.results.stopping.counts import PairCounts
from isaaclab_arena.storage.json_values import read_json

MOST_PAIRS = 16


@dataclass(frozen=True, kw_only=True)
class PairOnPage:
    """Two jobs of one task over the same episodes. Differences are the first's less the second's.

    Attributes:
        first: Position of the candidate on the page.
        second: Position of the baseline on the page.
        counts: How the pairs came out.
        distinct: How many different conditions these pairs started from.
        difference: Difference of the success rates.
        interval: Its 95 % interval.
        mid_p: McNemar's mid-p.
        verdict: What ``isaaclab-arena compare`` has said, or what the run was stopped by; None where nothing was asked.
        evidence: How the e-value grew.
        could_stop: The jobs that could stop at any episode, so that ``interval`` and ``mid_p``, which are for a fixed
            number, are too sure.
        discordant: Episodes in which one of them alone succeeded.
        episodes: The episodes that are pairs, None where they are all that both jobs have.
    """

    first: int
    second: int
    counts: PairCounts
    distinct: int
    difference: float
    interval: Interval
    mid_p: float
    verdict: str | None
    evidence: EvidenceCurve
    could_stop: tuple[str, ...]
    discordant: tuple[int, ...]
    episodes: tuple[int, ...] | None


def pairs_on_page(
    runs: Sequence[ReadRun], positions: Mapping[tuple[int, str], int], answers: Sequence[Sequence[Answer]] = ()
) -> tuple[PairOnPage, ...]:
    """Return the pairs of jobs that were compared, by a run or afterwards, or else each job with the first of its task.

    Args:
        runs: The runs.
        positions: Position of each job on the page, by the number of its run and its name.
        answers: How far the questions of each run are answered.
    """
    arms = {
        positions[number, name]: arm
        for number, run in enumerate(runs)
        for name, arm in run.arms().items()
        if (number, name) in positions
    }
    asked = dict(_asked(answers, positions))
    verdicts = dict(_compared([run.directory for run in runs], positions))
    wanted = [*verdicts, *(sides for sides in asked if sides not in verdicts and sides[::-1] not in verdicts)]
    found = []
    for first, second in wanted or list(_alike(arms)):
        if first in arms and second in arms and len(found) < MOST_PAIRS:
            answer, num_questions = asked.get((first, second), asked.get((second, first), (None, 1)))
            curve = evidence_curve(arms[first], arms[second], answer, num_questions=num_questions)
            verdict = verdicts.get((first, second), None if answer is None else str(answer.verdict or "undecided"))
            pair = compared(arms[first], arms[second], first, second, curve, verdict=verdict)
            found += [] if pair is None else [pair]
    return tuple(found)


def compared(
    first: Arm, second: Arm, at: int, other: int, evidence: EvidenceCurve, *, verdict: str | None = None
) -> PairOnPage | None:
    """Return two jobs side by side, None where they have no pair.

    Args:
        first: The candidate.
        second: The baseline.
        at: Position of the candidate on the page.
        other: That of the baseline.
        evidence: How the e-value grew.
        verdict: What was said of them.
    """
    if differences_of_tasks(first, second):
        return None
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


def _alike(arms: Mapping[int, Arm]) -> Iterator[tuple[int, int]]:
    """Yield each job with the first one of its task."""
    leaders: list[int] = []
    for at, arm in arms.items():
        leader = next((each for each in leaders if not differences_of_tasks(arm, arms[each])), None)
        if leader is None:
            leaders.append(at)
        else:
            yield at, leader


def _asked(
    answers: Sequence[Sequence[Answer]], positions: Mapping[tuple[int, str], int]
) -> Iterator[tuple[tuple[int, int], tuple[Answer, int]]]:
    """Yield what the runs themselves compare: the two jobs, the answer, and how many questions the run has."""
    for number, own in enumerate(answers):
        for answer in own:
            if len(answer.question.jobs) > 1:
                new, old = (positions[number, name] for name in answer.question.jobs)
                yield (new, old), (answer, len(own))


def _compared(
    directories: Sequence[Path], positions: Mapping[tuple[int, str], int]
) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield what the comparisons of runs compare, and their verdicts; what is no comparison says nothing."""
    numbers = {directory.resolve(): number for number, directory in enumerate(directories)}
    for directory in directories:
        try:
            document = read_json(directory / f"{NAME}.json")
            for task in document["tasks"]:
                sides = [_side(task[name], numbers, positions) for name in ("candidate", "baseline")]
                if sides[0] is not None and sides[1] is not None:
                    yield (sides[0], sides[1]), str(task["verdict"])
        except (StorageError, ValueError, KeyError, TypeError, IndexError):
            continue


def _side(arm: Mapping[str, Any], numbers: Mapping[Path, int], positions: Mapping[tuple[int, str], int]) -> int | None:
    number = numbers.get(Path(arm["run"]).resolve())
    return None if number is None else positions.get((number, arm["job"]))
