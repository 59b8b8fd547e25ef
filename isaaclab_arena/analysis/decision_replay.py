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
    came_out, draws = _came_out(question, arms)
    in_order = _once(came_out, draws)
    needed = math.log(num_questions / question.alpha)
    # The other orders have a fixed seed. They show the influence of luck on the time of the decision; every order is
    # equally valid.
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
    """Return one-hot outcomes (num_episodes, 3) for win, loss, neither, and draws (num_episodes,). Zeros: no result."""
    num_episodes = min(question.max_episodes, *map(_prefix, arms))
    episodes = [arm.episodes.at(np.arange(num_episodes)) for arm in arms]
    first, second = episodes[0].success, episodes[-1].success
    counts = np.isfinite(first) & np.isfinite(second)
    # A single job wins or loses against its bar; a pair needs equal conditions.
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
    """Return the outcomes in order, with zeros for a draw that an earlier counted episode has."""
    counting = np.flatnonzero(came_out.any(axis=1))
    _, first = np.unique(draws[counting], return_index=True)
    kept = np.zeros(len(draws), bool)
    kept[counting[first]] = True
    return came_out * kept[:, None]


def _prefix(arm: Arm) -> int:
    """Return the number of finished episodes before the first missing one."""
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
    # An episode without a result changes nothing, and no decision is taken on it.
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
