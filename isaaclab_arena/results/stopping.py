"""The answers to a run's questions from its finished episodes. Pure functions that load little."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations

from isaaclab_arena.config.schema import Question
from isaaclab_arena.interfaces.episode import POLICY_LOST, SEED_CONDITION, Outcome
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLine

# The conditions of an episode, and which episodes share them. Every count of conditions uses these functions.

_NUMBER, _SEED = "seed ", f'{{"{SEED_CONDITION}":'


def condition_key(environment: str, asset: str | None, told: str, episode_seed: int, start: int | None = None) -> str:
    """Return the initial conditions of an episode as text that is equal for equal conditions."""
    # `told` are the applied conditions as `json_line` formats them; an environment without any is identified by its
    # seed. `start` replaces both for episodes that differ only in their seeds; see `alike_starts`. Equal conditions in
    # another environment, or with another object (`asset`), are different conditions.
    if start is not None:
        told = f"start {start}"
    elif told == "{}":
        told = f"{_NUMBER}{episode_seed}"
    return f"{environment} {asset or ''}\t{told}"


def draw_of(key: str) -> str:
    """Return the random draw behind a `condition_key`: a seed is the same draw in every environment."""
    # Tasks of a suite with equal seeds may succeed and fail together, because all their random numbers, and those of
    # the policy, begin alike.
    told = key.partition("\t")[2]
    return told if told.startswith((_NUMBER, _SEED)) else key


def alike_starts(lines: Sequence[CommitLine]) -> list[int | None]:
    """Return the start shared by a job's episodes despite different seeds, None for episodes of their own."""
    # A seed need not have any effect. Episodes with equal first observations count as one episode if all results are
    # equal too. If any result differs, something after the start was random, and each episode counts.
    count = Counter(line.start for line in lines if line.start is not None)
    went: dict[int, set[Hashable]] = {start: set() for start, number in count.items() if number > 1}
    for line in lines:
        if line.start in went:
            went[line.start].add(how_it_went(line))
    shared = {start for start, found in went.items() if len(found) == 1}
    return [line.start if line.start in shared else None for line in lines]


def how_it_went(line: CommitLine) -> Hashable:
    """Return the result of an episode as a key that is equal for equal results, as far as its line records it."""
    result = (line.outcome, line.success, line.length, line.episode_return, line.termination, line.checksum)
    return *result, line.language_instruction, json_line(line.metrics)


# Outcomes of episodes: of pairs of two policies with equal conditions, and of one policy alone.


@dataclass(frozen=True, kw_only=True)
class PairCounts:
    """Outcomes of pairs: one episode of each policy from equal conditions."""

    both: int  # pairs in which both policies succeed
    only_first: int  # pairs in which only the first policy succeeds
    only_second: int  # pairs in which only the second policy succeeds
    neither: int  # pairs in which both fail

    @property
    def total(self) -> int:
        """Number of pairs."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def successes(self) -> tuple[int, int]:
        """Successes of the first policy and of the second."""
        return self.both + self.only_first, self.both + self.only_second

    @property
    def difference(self) -> float | None:
        """Success rate of the first policy minus that of the second, None without pairs."""
        return (self.only_first - self.only_second) / self.total if self.total else None


@dataclass(frozen=True, kw_only=True)
class RateCounts:
    """Outcomes of one policy's episodes."""

    successes: int
    trials: int  # episodes with a known success

    @property
    def mean(self) -> float:
        """Success rate, 0 without episodes."""
        return self.successes / max(1, self.trials)


@dataclass(frozen=True, kw_only=True)
class BlockCounts:
    """Outcomes of a suite's blocks: the episodes of one index, of every task or of every task's pair."""

    tasks: int
    is_paired: bool
    # Ascending sums over the tasks of a block, each with its number: of successes, or of the pairs that only the first
    # policy wins minus those that only the second wins. A task with a draw of its own counts as a block of equal tasks.
    sums: tuple[tuple[int, int], ...] = ()

    @property
    def mean(self) -> float:
        """Mean over the tasks: success rate, or difference of rates; 0 without blocks."""
        number = sum(number for _, number in self.sums)
        return sum(each * number for each, number in self.sums) / (self.tasks * max(1, number))

    def with_block(self, outcomes: Sequence[int], *, apart: bool = False) -> "BlockCounts":
        """Return the counts with one more block: the outcome of each task, and whether each has a draw of its own."""
        more = Counter([self.tasks * each for each in outcomes] if apart else [sum(outcomes)])
        return replace(self, sums=tuple(sorted((Counter(dict(self.sums)) + more).items())))


# Evidence that is valid after every episode: e-values. Pure functions that load nothing.
#
# An e-value is the wealth of a gambler who bets against a hypothesis. If the hypothesis is true, the probability that
# this wealth ever reaches 1 / alpha is at most alpha (Ville's inequality), however often it is checked. The bets are
# mixtures with Jeffreys' prior.


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The lower and the upper end of an interval, such as that of a rate, 0 to 1."""

    low: float
    high: float


PRIOR = 0.5
"""Each parameter of Jeffreys' prior."""


def log_e_value_of_rate(counts: RateCounts, rate: float) -> float:
    """Return the log e-value against a success rate of `rate`, 0 to 1."""
    return _log_e_value((counts.successes, counts.trials - counts.successes), (rate, 1.0 - rate))


def log_e_value_of_equality(counts: PairCounts) -> float:
    """Return the log e-value against equal policies: a fair coin decides each pair with unequal outcomes."""
    # Pairs with equal outcomes carry no evidence, and are not counted.
    wins, losses = counts.only_first, counts.only_second
    return log_e_value_of_rate(RateCounts(successes=wins, trials=wins + losses), 0.5)


def log_e_value_of_difference(counts: PairCounts, difference: float) -> float:
    """Return the log e-value against a difference of rates, first minus second, -1 to 1."""
    # A pair has one of three outcomes: only the first policy succeeds, only the second, or they agree. The evidence is
    # that against the likeliest of all distributions over the three with the given difference. The derivative of its
    # log likelihood by the second probability is zero at the larger root of a quadratic.
    wins, losses, rest = outcomes = (counts.only_first, counts.only_second, counts.both + counts.neither)
    total = wins + losses + rest
    linear = wins * (1.0 - difference) + losses * (1.0 - 3.0 * difference) - 2.0 * rest * difference
    constant = losses * difference * (1.0 - difference)
    root = (linear + math.sqrt(max(0.0, linear * linear + 8.0 * total * constant))) / (4.0 * total) if total else 0.0
    second = min(max(root, 0.0, -difference), (1.0 - difference) / 2.0)
    chances = (max(0.0, second + difference), second, max(0.0, 1.0 - 2.0 * second - difference))
    return _log_e_value(outcomes, chances)


SHARES = tuple(math.cos((2 * number + 1) * math.pi / 256) ** 2 for number in range(64))
"""Descending nodes of the Gauss-Chebyshev rule between 0 and 1, whose equal weights stand for Jeffreys' prior."""


def log_e_value_of_blocks(counts: BlockCounts, mean: float, shares: Sequence[float] = SHARES) -> float:
    """Return the log e-value against a mean over tasks: of success rates, or of differences first minus second.

    A block is the mean over all tasks of the outcomes of one index. Blocks are independent, because each index has
    seeds of its own, and have the same mean: that over the tasks, however unequal these are. So a bet on blocks is
    fair, although tasks of one index may share a seed and depend on each other. With `y` and `m`, the block and its
    hypothetical mean as shares of their range, a gambler who puts the share `p` on high blocks multiplies the wealth by
    ``p y / m + (1 - p) (1 - y) / (1 - m)``: never negative, and 1 on average (Waudby-Smith & Ramdas 2024, Journal of
    the Royal Statistical Society B 86, 1: betting on means of bounded variables). The wealth is averaged over fixed
    `p`, as by Cover's universal portfolio (Orabona & Jun 2024, IEEE Transactions on Information Theory 70, 436). For
    one task it is `log_e_value_of_rate` or `log_e_value_of_equality`. Its logarithm is convex in `mean`.

    If the tasks of an index have draws of their own, they are independent, and the gambler bets on each of them. The
    same `p` holds for the whole block, so its expected factor is the product over the tasks of a linear function of
    their means. By the inequality of the arithmetic and the geometric mean the product is at most the function of the
    mean over tasks to the power of their number: 1. So only whole blocks count.

    Args:
        counts: The blocks.
        mean: The hypothetical mean.
        shares: The averaged `p`. Those above `m` alone bet on a larger mean alone.
    """
    least = -counts.tasks if counts.is_paired else 0
    span = counts.tasks - least
    middle = (counts.tasks * mean - least) / span
    blocks = [((each - least) / span, number) for each, number in counts.sums]
    if any((middle <= 0.0 < y) or (y < 1.0 <= middle) for y, _ in blocks):
        return math.inf
    gains = [(y / middle if y else 0.0, (1.0 - y) / (1.0 - middle) if y < 1.0 else 0.0, number) for y, number in blocks]
    logs = [sum(number * math.log(p * up + (1.0 - p) * down) for up, down, number in gains) for p in shares]
    return max(logs) + math.log(sum(math.exp(each - max(logs)) for each in logs) / len(logs))


def log_e_value_of_mean(counts: RateCounts | BlockCounts, mean: float) -> float:
    """Return the log e-value against a success rate of one job, or a mean over the tasks of a suite."""
    return log_e_value_of_rate(counts, mean) if isinstance(counts, RateCounts) else log_e_value_of_blocks(counts, mean)


def anytime_interval(counts: RateCounts | BlockCounts, *, alpha: float = 0.05) -> Interval:
    """Return the interval of a success rate that is valid at every look at once, with confidence 1 - alpha."""
    # A test for a fixed number of episodes is invalid if its own result stops the run. This interval has the rates
    # against which the evidence is below 1 / alpha, by bisection from the observed rate towards both ends. Without
    # episodes it is 0 to 1.
    refuted, best, ends = -math.log(alpha), counts.mean, []
    for end in (0.0, 1.0):
        inner, outer = end if log_e_value_of_mean(counts, end) < refuted else best, end
        # A float has 53 bits.
        for _ in range(60 if inner != outer else 0):
            middle = (inner + outer) / 2.0
            inner, outer = (middle, outer) if log_e_value_of_mean(counts, middle) < refuted else (inner, middle)
        ends.append(inner)
    return Interval(low=ends[0], high=ends[1])


def _log_e_value(outcomes: tuple[int, ...], chances: tuple[float, ...]) -> float:
    """Return the log likelihood of outcomes in this order, averaged over the prior, minus that under `chances`."""
    if any(count and chance <= 0.0 for count, chance in zip(outcomes, chances, strict=True)):
        return math.inf
    mixture = sum(math.lgamma(PRIOR + each) - math.lgamma(PRIOR) for each in outcomes)
    whole = PRIOR * len(outcomes)
    averaged = mixture + math.lgamma(whole) - math.lgamma(whole + sum(outcomes))
    return averaged - sum(count * math.log(chance) for count, chance in zip(outcomes, chances, strict=True) if count)


# Jobs that fail by their errors: all episodes end in one, or many in a row end in the same. Pure functions.


def error_streak(lines: Iterable[CommitLine], most: int) -> str | None:
    """Return the reason to end a job: `most` episodes in a row by index have the same error. None if there is none."""
    # The order of indices counts, so the result does not depend on ranks or on the order of the ends. `most` 0 disables
    # the check.
    length, last = 0, (-2, "")
    for line in lines if most > 0 else ():
        # A lost policy is not the episode's own error: all env slots lost it, and the job has already failed for that.
        if line.outcome is not Outcome.ERROR or line.termination == POLICY_LOST:
            length = 0
            continue
        kind = _kind(line)
        goes_on = length > 0 and last == (line.episode_index - 1, kind)
        length, last = length + 1 if goes_on else 1, (line.episode_index, kind)
        if length == most:
            return f"{most} episodes in a row ended in the same error: {line.error or line.termination}"
    return None


def nothing_but_errors(lines: Iterable[CommitLine]) -> str | None:
    """Return the failure of a job whose episodes all ended in an error, with the most common error. None otherwise."""
    errors = list(lines)
    if not errors or any(line.outcome is not Outcome.ERROR for line in errors):
        return None
    kinds = Counter(map(_kind, errors))
    kind, number = kinds.most_common(1)[0]
    first = next(line for line in errors if _kind(line) == kind)
    every = "its only episode" if len(errors) == 1 else f"all {len(errors)} episodes"
    most = "" if len(kinds) == 1 else f", {number} of them in this one"
    return f"{every} ended in an error{most}: {first.error or first.termination}"


def kind_of_error(text: str) -> str:
    """Return an error without its numbers: times, addresses and indices differ for the same cause."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def _kind(line: CommitLine) -> str:
    return kind_of_error(line.error or line.termination)


# Answer the questions of a run from its finished episodes, by index: pure functions.
#
# The answer is sought after every episode, on the episodes 0 to m - 1 that all jobs of a question have finished. The
# first sufficient m decides. So the number of ranks, the order of the ends and interruptions have no effect.


class Verdict(StrEnum):
    """The possible answers: the first three for a comparison, three for a bar, and that of a race."""

    BETTER = "better"
    WORSE = "worse"
    NO_WORSE = "no worse"
    REACHED = "reached"
    MISSED = "missed"
    NARROW = "narrow"
    BEST = "best"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The state of a question."""

    question: Question
    episodes: int  # episodes of each job that the answer uses: all indices below this
    # For a race the successes of all arms together.
    counts: PairCounts | RateCounts | BlockCounts
    log_e_value: float  # log of the evidence
    needed_log_e_value: float  # log of the evidence that decides
    verdict: Verdict | None = None  # None while undecided
    left_out: int = 0  # episodes with an error or without a known success
    unequal: tuple[int, ...] = ()  # indices without a pair, because the jobs' conditions differ
    repeated: int = 0  # episodes that repeat the conditions of an earlier one
    is_late: bool = False  # decided only at the end, by the lower bar of Holm's later steps
    out: tuple[tuple[str, int], ...] = ()  # arms of a race that are not the best, and the episodes that showed it

    @property
    def left(self) -> tuple[str, ...]:
        """The arms of the question, in a race those that may be the best."""
        out = dict(self.out)
        return tuple(arm for arm in self.question.sides if arm not in out)

    def needed(self, job: str) -> int | None:
        """Return the number of episodes of a job of the question that it needs, None while that is open."""
        out = next((episodes for arm, episodes in self.out if job in self.question.sides[arm]), None)
        return self.episodes if out is None and self.is_final else out

    @property
    def is_final(self) -> bool:
        """Whether further episodes have no effect: the question is decided, or its maximum is reached."""
        return self.verdict is not None or self.episodes >= self.question.max_episodes


class Answering:
    """Answer one question incrementally; each episode is read once."""

    def __init__(self, question: Question, *, num_questions: int) -> None:
        # All questions of the file together are wrong with probability alpha at most, so each one needs evidence of
        # their number / alpha (Bonferroni's inequality, the first step of Holm's method).
        #
        # In a race an arm is out if another one is shown to be better, by one-sided evidence. The best arm is out only
        # if one of the others wins against it by mere luck: as many pairs as there are others, however many are looked
        # at. Of two equally good arms, a race may name one the best only if the other is out. So each pair has alpha
        # divided by twice the number of others, and a race of two is a comparison.
        sides = question.sides
        rivals = max(1, 2 * len(sides) - 2) if question.selects_best else 1
        needed = math.log(rivals * num_questions / question.alpha)
        num_tasks, is_paired = len(next(iter(sides.values()), ())), len(sides) == 2 and not question.selects_best
        counts = PairCounts(both=0, only_first=0, only_second=0, neither=0)
        if num_tasks > 1:
            counts = BlockCounts(tasks=num_tasks, is_paired=is_paired)
        elif not is_paired:
            counts = RateCounts(successes=0, trials=0)
        self.answer = Answer(question=question, episodes=0, counts=counts, log_e_value=0.0, needed_log_e_value=needed)
        # Each condition is bet on once, with its first counted episode: a known outcome is not a valid bet. The same
        # holds for episodes with equal starts despite different seeds, as long as all their results are equal.
        self._conditions: set[str] = set()
        # By starts of all jobs: the different results, and the outcomes of repeats that do not count yet.
        self._starts: dict[tuple[int | None, ...], tuple[set[Hashable], list[Mapping[str, Sequence[bool]]]]] = {}
        # By two arms of a race: their blocks.
        blocks = BlockCounts(tasks=num_tasks, is_paired=True)
        self._pairs = dict.fromkeys(permutations(sides, 2), blocks) if question.selects_best else {}

    def look(self, finished: Mapping[str, Mapping[int, CommitLine]]) -> Answer:
        """Return the answer with the newly finished episodes; `finished` holds them by job and may only grow."""
        sides = self.answer.question.sides
        while sides and not self.answer.is_final:
            before, index = self.answer, self.answer.episodes
            if not all(index in finished.get(job, {}) for arm in before.left for job in sides[arm]):
                break
            # The block of an index: an episode of each task, of each arm.
            arms = {arm: [finished[job][index] for job in sides[arm]] for arm in before.left}
            episodes = [each for block in arms.values() for each in block]
            answer = replace(before, episodes=index + 1)
            successes = {
                arm: [each.success for each in block if each.success is not None and each.outcome is not Outcome.ERROR]
                for arm, block in arms.items()
            }
            known = {arm: each for arm, each in successes.items() if len(each) == len(arms[arm])}
            # The arms run the same environments, so the number of the task stands for its name.
            told = {
                (task, json_line(each.conditions), each.episode_seed)
                for block in arms.values()
                for task, each in enumerate(block)
            }
            conditions = {condition_key(str(task), None, text, seed) for task, text, seed in told}
            places = {task: str(task) if before.question.are_apart else "" for task, *_ in told}
            draws = {draw_of(condition_key(places[task], None, text, seed)) for task, text, seed in told}
            apart = len(draws) == len(conditions)
            # The order of these checks is fixed: an index counts under the first reason that excludes it.
            if len(conditions) * len(arms) > len(episodes):
                self.answer = replace(answer, unequal=(*before.unequal, index))
                continue
            if len(known) < len(arms):
                answer = replace(answer, left_out=before.left_out + 1)
                # In a race, an arm with an error does not stop the others.
                if len(known) < 2 or not self._pairs:
                    self.answer = answer
                    continue
            if conditions & self._conditions:
                self.answer = replace(answer, repeated=before.repeated + 1)
                continue

            self._conditions |= conditions
            starts, counting = tuple(each.start for each in episodes), [known]
            if None not in starts:
                results, held = self._starts.setdefault(starts, (set(), []))
                result = tuple(map(how_it_went, episodes))
                if results == {result}:
                    held.append(known)
                    counting = []
                else:
                    # On the first different result the held repeats count, too.
                    counting = [*held, known]
                    held.clear()
                    results.add(result)
            answer = replace(answer, repeated=before.repeated + 1 - len(counting))
            for each in counting:
                answer = replace(answer, counts=_counted(answer.counts, each, apart=apart))
                for first, second in permutations(each, 2) if self._pairs else ():
                    ahead = [won - other for won, other in zip(each[first], each[second], strict=True)]
                    self._pairs[first, second] = self._pairs[first, second].with_block(ahead, apart=apart)
            if counting:
                answer = self._raced(answer) if self._pairs else decided(answer)
            self.answer = answer
        return self.answer

    def _raced(self, answer: Answer) -> Answer:
        """Return the answer of a race without the arms that are beaten."""
        left, needed = [*answer.left], answer.needed_log_e_value
        for arm in answer.left:
            for other in left:
                # Of no use is a pair whose lead is too small for any bet, because log(1 + x) is at most x.
                blocks = None if other == arm else self._pairs[other, arm]
                if blocks is None or sum(each * number for each, number in blocks.sums) < needed * blocks.tasks:
                    continue
                evidence = log_e_value_of_blocks(blocks, 0.0, SHARES[: len(SHARES) // 2])
                if evidence >= needed:
                    left.remove(arm)
                    answer = replace(answer, out=(*answer.out, (arm, answer.episodes)), log_e_value=evidence)
                    break
        return replace(answer, verdict=Verdict.BEST) if len(left) == 1 else answer


def _counted(
    counts: PairCounts | RateCounts | BlockCounts, successes: Mapping[str, Sequence[bool]], *, apart: bool
) -> PairCounts | RateCounts | BlockCounts:
    """Return the counts with one more block: the successes of each arm; `apart` if its tasks have their own draws."""
    blocks = [*successes.values()]
    if isinstance(counts, BlockCounts):
        if counts.is_paired:
            blocks = [[won - other for won, other in zip(*blocks, strict=True)]]
        for outcomes in blocks:
            counts = counts.with_block(outcomes, apart=apart)
        return counts
    sums = list(map(sum, blocks))
    if isinstance(counts, RateCounts):
        return RateCounts(successes=counts.successes + sum(sums), trials=counts.trials + len(sums))
    first, second = sums
    return PairCounts(
        both=counts.both + first * second,
        only_first=counts.only_first + first * (1 - second),
        only_second=counts.only_second + (1 - first) * second,
        neither=counts.neither + (1 - first) * (1 - second),
    )


def answers_of(questions: Sequence[Question], finished: Mapping[str, Mapping[int, CommitLine]]) -> tuple[Answer, ...]:
    """Return the state of each question, see `Answering`, after the later steps of Holm's method for tests."""
    found = [Answering(question, num_questions=len(questions)).look(finished) for question in questions]
    # The later steps need less evidence, because with every decided question the others share alpha among one fewer.
    # They come once all answers are final. No job stops because of them: the stop would depend on which question is
    # decided first.
    if not all(answer.is_final for answer in found):
        return tuple(found)
    # Intervals and races are no tests: they keep their shares of alpha.
    num_open = sum(answer.verdict is None or not answer.question.is_test for answer in found)
    # The steps go by the log ratio of the evidence to the evidence that a single question needs.
    shares = [answer.log_e_value + math.log(answer.question.alpha) for answer in found]
    for position in sorted(range(len(found)), key=lambda each: -shares[each]):
        if found[position].verdict is not None or not found[position].question.is_test:
            continue
        needed = math.log(num_open / found[position].question.alpha)
        late = decided(replace(found[position], needed_log_e_value=needed))
        if late.verdict is None:
            break
        found[position], num_open = replace(late, is_late=True), num_open - 1
    return tuple(found)


def decided(answer: Answer) -> Answer:
    """Return an answer with the evidence of its counts, and with a verdict if that is enough."""
    question, counts, needed = answer.question, answer.counts, answer.needed_log_e_value
    if isinstance(counts, PairCounts):
        margin = question.margin
        evidence = log_e_value_of_equality(counts) if margin is None else log_e_value_of_difference(counts, -margin)
        ahead = counts.difference or 0.0
    else:
        ahead, bar = counts.mean, question.at_least or -(question.margin or 0.0)
        if question.half_width is not None:
            # The observed rate is in the interval, so a narrow one excludes the rates at a whole width from it. That is
            # fast to check.
            ends = [ahead + side * 2.0 * question.half_width for side in (-1.0, 1.0)]
            is_near = all(not 0.0 <= end <= 1.0 or log_e_value_of_mean(counts, end) >= needed for end in ends)
            interval = anytime_interval(counts, alpha=math.exp(-needed)) if is_near else Interval(low=0.0, high=1.0)
            is_narrow = interval.high - interval.low <= 2.0 * question.half_width
            return replace(answer, verdict=Verdict.NARROW if is_narrow else None)
        evidence = log_e_value_of_mean(counts, bar)
    if question.at_least is not None:
        found = Verdict.REACHED if ahead > question.at_least else Verdict.MISSED
    elif question.margin is not None:
        found = Verdict.NO_WORSE if ahead > -question.margin else Verdict.WORSE
    else:
        found = Verdict.BETTER if ahead > 0.0 else Verdict.WORSE
    return replace(answer, log_e_value=evidence, verdict=found if evidence >= needed else None)


def needed_episodes(job: str, answers: Sequence[Answer]) -> int | None:
    """Return the number of episodes that a job's questions needed. None if one is open, or the job has no question."""
    own = [answer.needed(job) for answer in answers if job in answer.question.jobs]
    known = [each for each in own if each is not None]
    return max(known) if known and len(known) == len(own) else None


def in_words(answer: Answer) -> str:
    """Return one line: ``new-vs-old: decided after 53 of 500: new is better than old (e = 23)``."""
    question = answer.question
    of_all = f"{answer.episodes} of {question.max_episodes}"
    # Beyond 1e100 show the power of ten alone, because the value may exceed a float.
    evidence, needed = (
        f"1e{each / math.log(10.0):.0f}" if each > 230.0 else f"{math.exp(each):.3g}"
        for each in (answer.log_e_value, answer.needed_log_e_value)
    )
    state = "decided after" if answer.verdict is not None else "undecided after" if answer.is_final else "open after"
    if question.selects_best:
        played = sum((answer.needed(jobs[0]) or answer.episodes) * len(jobs) for jobs in question.sides.values())
        of_all += f", with {played:,} of {question.max_episodes * len(question.jobs):,} episodes in all"
    if not question.is_test:
        return f"{question.name}: {state} {of_all}: {verdict_in_words(answer)}"
    if answer.verdict is None:
        return f"{question.name}: {state} {of_all} (e = {evidence}, decided at {needed})"
    late = ", by a later step of Holm's method" if answer.is_late else ""
    return f"{question.name}: {state} {of_all}{late}: {verdict_in_words(answer)} (e = {evidence})"


def verdict_in_words(answer: Answer) -> str:
    """Return the finding of a question, such as ``new is better than old``, or ``undecided``."""
    question, verdict, left = answer.question, answer.verdict, answer.left
    points = f"{100 * (question.margin or 0.0):g} points"
    arms = [*question.sides]
    if question.selects_best:
        return f"{left[0]} is the best of {len(arms)}" if len(left) == 1 else f"the best is one of {', '.join(left)}"
    if question.half_width is not None and not isinstance(answer.counts, PairCounts):
        interval = anytime_interval(answer.counts, alpha=math.exp(-answer.needed_log_e_value))
        return f"{arms[0]} succeeds in {100 * interval.low:.1f} to {100 * interval.high:.1f} %"
    new, old = arms[0], arms[-1]
    bar = f"{100 * (question.at_least or 0.0):g} %"
    over = f" over {len(question.sides[new])} tasks" if len(question.sides[new]) > 1 else ""
    found = {
        None: "undecided",
        Verdict.BETTER: f"{new} is better than {old}{over}",
        Verdict.WORSE: f"{new} is {'' if question.margin is None else f'more than {points} '}worse than {old}{over}",
        Verdict.NO_WORSE: f"{new} is less than {points} worse than {old}{over}",
        Verdict.REACHED: f"{new} succeeds in more than {bar}{over}",
        Verdict.MISSED: f"{new} succeeds in less than {bar}{over}",
    }
    return found[verdict]


def what_does_not_count(answer: Answer) -> str | None:
    """Return a note on the episodes that do not count, with the reasons. None if all of them count."""
    parts = []
    if answer.unequal:
        shown = ", ".join(map(str, answer.unequal[:8]))
        more = ", …" if len(answer.unequal) > 8 else ""
        parts.append(f"{len(answer.unequal)} started from other conditions in each job ({shown}{more})")
    if answer.left_out:
        parts.append(f"{answer.left_out} ended in an error")
    if answer.repeated:
        parts.append(f"{answer.repeated} repeat the conditions of an earlier one")
    told = ", ".join([*parts[:-2], " and ".join(parts[-2:])])
    return f"{answer.question.name}: episodes that do not count: {told}" if parts else None
