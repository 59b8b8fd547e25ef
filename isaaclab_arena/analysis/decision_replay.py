"""Take the decision of a run again, in the order of its episodes and in many other orders: pure functions."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.analysis.arms import Arm, conditions_of_pairs
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.statistics import draws_of, log_e_values, log_e_values_of_difference, log_e_values_of_rate
from isaaclab_arena.results.stopping import Verdict, verdict_of

_WIN, _LOSS, _ALIKE = range(3)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of a question."""

    episodes: int  # episodes of each job up to the decision
    verdict: Verdict
    log_e_value: float  # log of the evidence at the decision


@dataclass(frozen=True, kw_only=True)
class DecisionReplay:
    """A repeated decision."""

    question: Question
    needed_log_e_value: float  # log of the evidence that decides
    log_e_values: np.ndarray  # log of the evidence after each episode in the run's order. Shape: (num_episodes,)
    decision: Decision | None  # in the run's order; None if undecided
    left_out: int  # episodes without effect: errors, unequal conditions, repeated conditions
    reordered: tuple[Decision, ...]  # decisions in other orders of the same episodes, without undecided orders
    num_orders: int  # number of other orders

    @property
    def num_episodes(self) -> int:
        """Number of episodes of each job in the replay."""
        return len(self.log_e_values)

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """Number of other orders per verdict."""
        return Counter(decision.verdict for decision in self.reordered)

    def quantile(self, share: float) -> int | None:
        """Return the number of episodes at which a share of the other orders had decided, None if fewer ever decide."""
        stops = sorted(decision.episodes for decision in self.reordered)
        position = max(0, math.ceil(share * self.num_orders) - 1)
        return stops[position] if position < len(stops) else None


def replay_decision(
    question: Question, arms: Sequence[Arm], *, num_questions: int = 1, num_orders: int = 1_000
) -> DecisionReplay:
    """Repeat a decision over the common finished episodes, in the run's order and in `num_orders` random orders."""
    # The episodes before the first one that a job lacks count.
    finished = (arm.episodes.index for arm in arms)
    num_episodes = min(question.max_episodes, *(int((index == np.arange(len(index))).sum()) for index in finished))
    episodes = [arm.episodes.at(np.arange(num_episodes)) for arm in arms]

    # A single job wins or loses against its bar; a pair needs equal conditions.
    first, second = episodes[0].success, episodes[-1].success
    counts = np.isfinite(first) & np.isfinite(second)
    if len(arms) > 1:
        counts &= episodes[0].drawn == episodes[1].drawn
        won, lost = first > second, first < second
    else:
        won, lost = first > 0, first == 0
    # One-hot outcomes, zeros for an episode without a result. Shape: (num_episodes, 3).
    outcomes = np.zeros((num_episodes, 3), np.int64)
    for column, which in ((_WIN, won), (_LOSS, lost), (_ALIKE, ~won & ~lost)):
        outcomes[:, column] = which & counts
    draws = draws_of(conditions_of_pairs(episodes[0], episodes[-1]))

    in_order = _once(outcomes, draws)
    needed = math.log(num_questions / question.alpha)
    # The other orders have a fixed seed. They show the influence of luck on the time of the decision; every order is
    # equally valid.
    generator = np.random.default_rng(0)
    orders = (generator.permutation(len(draws)) for _ in range(num_orders))
    reordered = (_decision(question, _once(outcomes[order], draws[order]), needed) for order in orders)
    return DecisionReplay(
        question=question,
        needed_log_e_value=needed,
        log_e_values=_evidence(question, np.cumsum(in_order, axis=0)),
        decision=_decision(question, in_order, needed),
        left_out=int((in_order.sum(axis=1) == 0).sum()),
        reordered=tuple(decision for decision in reordered if decision is not None),
        num_orders=num_orders,
    )


def _once(outcomes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the outcomes in order, with zeros for a draw that an earlier counted episode has."""
    counting = np.flatnonzero(outcomes.any(axis=1))
    _, first = np.unique(draws[counting], return_index=True)
    kept = np.zeros(len(draws), bool)
    kept[counting[first]] = True
    return outcomes * kept[:, None]


def _evidence(question: Question, counts: np.ndarray) -> np.ndarray:
    wins, losses, alike = counts[:, _WIN], counts[:, _LOSS], counts[:, _ALIKE]
    if question.at_least is not None:
        return log_e_values_of_rate(wins, losses, question.at_least)
    if question.margin is not None:
        return log_e_values_of_difference(wins, losses, alike, -question.margin)
    return log_e_values(wins, losses)


def _decision(question: Question, outcomes: np.ndarray, needed: float) -> Decision | None:
    """Return the first decision over the outcomes in order, None if the evidence never suffices."""
    counts = np.cumsum(outcomes, axis=0)
    evidence = _evidence(question, counts)
    # An episode without a result changes nothing, and no decision is taken on it.
    enough = np.flatnonzero((evidence >= needed) & outcomes.any(axis=1))
    if not len(enough):
        return None
    at = int(enough[0])
    wins, losses, alike = counts[at].tolist()
    if question.at_least is not None:
        is_above = wins > question.at_least * (wins + losses)
    else:
        is_above = wins - losses > -(question.margin or 0.0) * (wins + losses + alike)
    return Decision(episodes=at + 1, verdict=verdict_of(question, is_above=is_above), log_e_value=float(evidence[at]))
