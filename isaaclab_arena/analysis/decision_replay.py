"""Take the decision of a run again, in the order of its episodes and in many other orders: pure functions."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.analysis.arms import Arm, conditions_of_pairs, same_conditions
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.statistics import draws_of, log_e_values, log_e_values_of_difference, log_e_values_of_rate
from isaaclab_arena.results.stopping import Verdict, verdict_of

_SEED = 0
_WIN, _LOSS, _ALIKE = range(3)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """When a question was answered, and how.

    Attributes:
        episodes: After how many episodes of each job.
        verdict: The answer.
        log_e_value: The evidence then, as a logarithm.
    """

    episodes: int
    verdict: Verdict
    log_e_value: float


@dataclass(frozen=True, kw_only=True)
class DecisionReplay:
    """A decision that was taken again.

    Attributes:
        question: What was asked.
        needed_log_e_value: How much evidence decides, as a logarithm.
        log_e_values: The evidence after each episode in the run's own order. Shape: (num_episodes,).
        decision: The decision in that order, None where the episodes do not decide.
        left_out: Episodes that say nothing: errors, conditions that were not equal, and those of an earlier episode.
        reordered: The decisions in other orders of the same episodes, those that came to one.
        num_orders: How many other orders were tried.
    """

    question: Question
    needed_log_e_value: float
    log_e_values: np.ndarray
    decision: Decision | None
    left_out: int
    reordered: tuple[Decision, ...]
    num_orders: int

    @property
    def num_episodes(self) -> int:
        """Episodes of each job that were looked at."""
        return len(self.log_e_values)

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """How many other orders came to each verdict."""
        return Counter(decision.verdict for decision in self.reordered)

    def quantile(self, share: float) -> int | None:
        """Return after how many episodes a share of the other orders had decided, None where so many never do."""
        stops = sorted(decision.episodes for decision in self.reordered)
        position = max(0, math.ceil(share * self.num_orders) - 1)
        return stops[position] if position < len(stops) else None


def replay_decision(
    question: Question, arms: Sequence[Arm], *, num_questions: int = 1, num_orders: int = 1_000
) -> DecisionReplay:
    """Take a decision again over the episodes that all jobs of a question have finished.

    The other orders are always the same ones. They show how much the moment of the decision is a matter of luck; each
    of them is as good as the order that was run.

    Args:
        question: What is asked.
        arms: Its jobs, in its order.
        num_questions: How many questions share the level.
        num_orders: How many other orders are tried.
    """
    came_out, draws = _came_out(question, arms)
    in_order = _once(came_out, draws)
    needed = math.log(num_questions / question.alpha)
    generator = np.random.default_rng(_SEED)
    orders = (generator.permutation(len(draws)) for _ in range(num_orders))
    reordered = (_decision(question, _once(came_out[order], draws[order]), needed) for order in orders)
    return DecisionReplay(
        question=question,
        needed_log_e_value=needed,
        log_e_values=_evidence(question, np.cumsum(in_order, axis=0)),
        decision=_decision(question, in_order, needed),
        left_out=int((in_order.sum(axis=1) == 0).sum()),
        reordered=tuple(decision for decision in reordered if decision is not None),
        num_orders=num_orders,
    )


def _came_out(question: Question, arms: Sequence[Arm]) -> tuple[np.ndarray, np.ndarray]:
    """Return how each episode came out, as one 1 in a line of zeros, and its draw; zeros for one that says nothing.

    Shapes: (num_episodes, 3), with columns for a win, a loss and neither, and (num_episodes,). An episode of one job
    alone wins or loses.
    """
    num_episodes = min(question.max_episodes, *map(_prefix, arms))
    episodes = [arm.episodes.at(np.arange(num_episodes)) for arm in arms]
    first, second = episodes[0].success, episodes[-1].success
    counts = np.isfinite(first) & np.isfinite(second)
    if len(arms) > 1:
        counts &= same_conditions(episodes[0], episodes[1])
        won, lost = first > second, first < second
    else:
        won, lost = first > 0, first == 0
    found = np.zeros((num_episodes, 3), np.int64)
    for column, which in ((_WIN, won), (_LOSS, lost), (_ALIKE, ~won & ~lost)):
        found[:, column] = which & counts
    return found, draws_of(conditions_of_pairs(episodes[0], episodes[-1]))


def _once(came_out: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return how episodes came out in their order, with zeros for those whose draw an earlier one has that counts."""
    counting = np.flatnonzero(came_out.any(axis=1))
    _, first = np.unique(draws[counting], return_index=True)
    kept = np.zeros(len(draws), bool)
    kept[counting[first]] = True
    return came_out * kept[:, None]


def _prefix(arm: Arm) -> int:
    """Return how many episodes a job has finished before the first that is missing."""
    index = arm.episodes.index
    return int((index == np.arange(len(index))).sum())


def _evidence(question: Question, counts: np.ndarray) -> np.ndarray:
    wins, losses, alike = counts[:, _WIN], counts[:, _LOSS], counts[:, _ALIKE]
    if question.at_least is not None:
        return log_e_values_of_rate(wins, losses, question.at_least)
    if question.margin is not None:
        return log_e_values_of_difference(wins, losses, alike, -question.margin)
    return log_e_values(wins, losses)


def _decision(question: Question, came_out: np.ndarray, needed: float) -> Decision | None:
    counts = np.cumsum(came_out, axis=0)
    evidence = _evidence(question, counts)
    # An episode that says nothing changes nothing, and no decision is taken on it.
    enough = np.flatnonzero((evidence >= needed) & came_out.any(axis=1))
    if not len(enough):
        return None
    at = int(enough[0])
    return Decision(
        episodes=at + 1,
        verdict=verdict_of(question, is_above=_is_above(question, counts[at])),
        log_e_value=float(evidence[at]),
    )


def _is_above(question: Question, counts: np.ndarray) -> bool:
    wins, losses, alike = counts.tolist()
    if question.at_least is not None:
        return wins > question.at_least * (wins + losses)
    return wins - losses > -(question.margin or 0.0) * (wins + losses + alike)
