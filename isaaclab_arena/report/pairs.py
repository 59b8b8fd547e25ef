"""Jobs of one task side by side: how they differ over the same episodes, and which episodes came out differently."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.analysis.arms import Arm, read_run
from isaaclab_arena.analysis.comparison_files import NAME
from isaaclab_arena.analysis.matching import differences_of_tasks, match
from isaaclab_arena.analysis.paired_rates import mcnemar_mid_p, paired_difference_interval
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.anytime import log_e_values
from isaaclab_arena.results.stopping.counts import PairCounts

MOST_PAIRS = 16
DECISIVE = math.log10(1 / 0.05)
"""The logarithm of the e-value that decides at 5 %."""

_MOST_EPISODES = 60
_MOST_DIGITS = 100
_MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A point of a curve of evidence.

    Attributes:
        pairs: After how many pairs.
        evidence: Logarithm to base 10 of the e-value.
    """

    pairs: int
    evidence: float


@dataclass(frozen=True, kw_only=True)
class PairOnPage:
    """Two jobs of one task over the same episodes. Differences are the first's less the second's.

    Attributes:
        first: Position of the candidate on the page.
        second: Position of the baseline on the page.
        counts: How the pairs came out.
        difference: Difference of the success rates.
        interval: Its 95 % interval.
        mid_p: McNemar's mid-p.
        verdict: What ``isaaclab-arena compare`` has said, None where it was not asked.
        evidence: The e-value by pair.
        discordant: Episodes in which one of them alone succeeded, the first ones.
    """

    first: int
    second: int
    counts: PairCounts
    difference: float
    interval: Interval
    mid_p: float
    verdict: str | None
    evidence: tuple[CurvePoint, ...]
    discordant: tuple[int, ...]

    @property
    def highest(self) -> float:
        """The strongest evidence on the way."""
        return max((point.evidence for point in self.evidence), default=0.0)

    @property
    def e_value(self) -> str:
        """The e-value after all pairs; as a power of ten where that is beyond what a number holds."""
        evidence = self.evidence[-1].evidence if self.evidence else 0.0
        return f"{10.0**evidence:.3g}" if evidence < _MOST_DIGITS else f"10^{evidence:.0f}"

    @property
    def line(self) -> str:
        """The curve as the points of an SVG line in a box of 100 by 100."""
        most = self.evidence[-1].pairs if self.evidence else 1
        return " ".join(f"{100 * each.pairs / most:.2f},{self.height(each.evidence):.2f}" for each in self.evidence)

    def height(self, evidence: float) -> float:
        """Return where evidence lies in that box, from its top; -1 is at its bottom."""
        top = max(2.0, self.highest)
        return 100 * (1 - (max(evidence, -1.0) + 1) / (top + 1))


def pairs_on_page(directories: Sequence[Path], positions: Mapping[tuple[int, str], int]) -> tuple[PairOnPage, ...]:
    """Return the pairs of jobs that the runs' comparisons name, or else each job against the first one of its task.

    Args:
        directories: The runs' directories.
        positions: Position of each job on the page, by the number of its run and its name.
    """
    arms = {
        positions[number, name]: arm
        for number, directory in enumerate(directories)
        for name, arm in read_run(directory).arms().items()
        if (number, name) in positions
    }
    asked = dict(_asked(directories, positions))
    found = []
    for first, second in list(asked) or list(_alike(arms)):
        if first in arms and second in arms and len(found) < MOST_PAIRS:
            pair = compared(arms[first], arms[second], first, second, verdict=asked.get((first, second)))
            found += [] if pair is None else [pair]
    return tuple(found)


def compared(first: Arm, second: Arm, at: int, other: int, *, verdict: str | None = None) -> PairOnPage | None:
    """Return two jobs side by side, None where they have no pair.

    Args:
        first: The candidate.
        second: The baseline.
        at: Position of the candidate on the page.
        other: That of the baseline.
        verdict: What was said of them.
    """
    if differences_of_tasks(first, second):
        return None
    matched = match(first, second)
    counts = matched.counts
    interval = paired_difference_interval(counts)
    if interval is None or counts.difference is None:
        return None
    known = matched.without_errors()
    one, two = known.first.success > 0, known.second.success > 0
    return PairOnPage(
        first=at,
        second=other,
        counts=counts,
        difference=counts.difference,
        interval=interval,
        mid_p=mcnemar_mid_p(counts.only_first, counts.only_second),
        verdict=None if verdict is None else plain_text(verdict),
        evidence=tuple(_evidence(one, two)),
        discordant=tuple(known.first.index[one != two][:_MOST_EPISODES].tolist()),
    )


def _evidence(first: np.ndarray, second: np.ndarray) -> Iterator[CurvePoint]:
    wins, losses = np.cumsum(first & ~second), np.cumsum(~first & second)
    logarithms = np.asarray(log_e_values(wins, losses)) / math.log(10.0)
    count = len(logarithms)
    kept = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(int))
    yield CurvePoint(pairs=0, evidence=0.0)
    yield from (CurvePoint(pairs=int(at) + 1, evidence=float(logarithms[at])) for at in kept)


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
    directories: Sequence[Path], positions: Mapping[tuple[int, str], int]
) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield what the comparisons of runs compare, and their verdicts; what is no comparison says nothing."""
    numbers = {directory.resolve(): number for number, directory in enumerate(directories)}
    for directory in directories:
        try:
            document = json.loads((directory / f"{NAME}.json").read_bytes())
            for task in document["tasks"]:
                sides = [_side(task[name], numbers, positions) for name in ("candidate", "baseline")]
                if sides[0] is not None and sides[1] is not None:
                    yield (sides[0], sides[1]), str(task["verdict"])
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _side(arm: Mapping[str, Any], numbers: Mapping[Path, int], positions: Mapping[tuple[int, str], int]) -> int | None:
    number = numbers.get(Path(arm["run"]).resolve())
    return None if number is None else positions.get((number, arm["job"]))
