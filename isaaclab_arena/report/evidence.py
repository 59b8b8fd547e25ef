"""How the evidence between two jobs grew from episode to episode, and how much of it decides."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.analysis.decision_replay import replay_decision
from isaaclab_arena.config.schema import Question
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.stopping.answers import Answer
from isaaclab_arena.results.stopping.wording import in_words

ALPHA = 0.05
"""The chance of a wrong decision of two jobs of which nothing was asked."""

_MOST_DIGITS = 100
_MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A point of a curve of evidence.

    Attributes:
        episodes: After how many episodes of each job.
        evidence: Logarithm to base 10 of the e-value.
    """

    episodes: int
    evidence: float


@dataclass(frozen=True, kw_only=True)
class EvidenceCurve:
    """The e-value by episode.

    Attributes:
        points: From no episode to the last; some of them, where there are many.
        decisive: Logarithm to base 10 of the e-value that decides.
        against: The statement that it is evidence against.
        bar: Why so much decides: ``alpha 0.05, shared by 2 questions``.
        answer: What came of the question that the run asked, None where it asked nothing of the two jobs.
    """

    points: tuple[CurvePoint, ...]
    decisive: float
    against: str
    bar: str
    answer: str | None = None

    @property
    def e_value(self) -> str:
        """The e-value at the end; as a power of ten where that is beyond what a number holds."""
        evidence = self.points[-1].evidence
        return f"{10.0**evidence:.3g}" if evidence < _MOST_DIGITS else f"10^{evidence:.0f}"

    @property
    def needed(self) -> str:
        """The e-value that decides."""
        return f"{10.0**self.decisive:.4g}"

    @property
    def line(self) -> str:
        """The curve as the points of an SVG line in a box of 100 by 100."""
        most = max(1, self.points[-1].episodes)
        return " ".join(f"{100 * each.episodes / most:.2f},{self.height(each.evidence):.2f}" for each in self.points)

    def height(self, evidence: float) -> float:
        """Return where evidence lies in that box, from its top; -1 is at its bottom."""
        top = max(2.0, 1.1 * self.decisive, *(point.evidence for point in self.points))
        return 100 * (1 - (max(evidence, -1.0) + 1) / (top + 1))


def evidence_curve(first: Arm, second: Arm, answer: Answer | None, *, num_questions: int) -> EvidenceCurve:
    """Return how the evidence grew over the episodes 0 to m - 1 that both jobs have finished.

    Args:
        first: The candidate.
        second: The baseline.
        answer: How far the question is answered that the run asked of the two, None where it asked none.
        num_questions: How many questions the run asked, which share alpha.
    """
    if answer is None:
        jobs = (first.entry.name, second.entry.name)
        question, num_questions = Question(name="", jobs=jobs, max_episodes=sys.maxsize, alpha=ALPHA), 1
        shared = "if nothing else is asked"
    else:
        question = answer.question
        shared = "shared by " + ("one question" if num_questions == 1 else f"{num_questions} questions")
    sides = (first, second) if first.entry.name == question.jobs[0] else (second, first)
    replay = replay_decision(question, sides, num_questions=num_questions, num_orders=0)
    new, old = question.jobs
    worse = f"{new} is {100 * (question.margin or 0.0):g} points worse than {old}"
    return EvidenceCurve(
        points=(CurvePoint(episodes=0, evidence=0.0), *_points(replay.log_e_values / math.log(10.0))),
        decisive=replay.needed_log_e_value / math.log(10.0),
        against=plain_text("neither is better" if question.margin is None else worse),
        bar=f"alpha {question.alpha:g}, {shared}",
        answer=None if answer is None else plain_text(in_words(answer)),
    )


def _points(logarithms: np.ndarray) -> Sequence[CurvePoint]:
    count = len(logarithms)
    kept = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(int))
    return [CurvePoint(episodes=int(at) + 1, evidence=float(logarithms[at])) for at in kept]
