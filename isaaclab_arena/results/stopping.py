"""The answers to a run's questions from its finished episodes. Pure functions that load little."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

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


# Evidence that is valid after every episode: e-values. Pure functions that load nothing.
#
# An e-value is the wealth of a gambler who bets against a hypothesis. If the hypothesis is true, the probability that
# this wealth ever reaches 1 / alpha is at most alpha (Ville's inequality), however often it is checked. The bets are
# mixtures with Jeffreys' prior.

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
    """The possible answers: the first three for a comparison, the others for a bar."""

    BETTER = "better"
    WORSE = "worse"
    NO_WORSE = "no worse"
    REACHED = "reached"
    MISSED = "missed"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The state of a question."""

    question: Question
    episodes: int  # episodes of each job that the answer uses: all indices below this
    counts: PairCounts | RateCounts
    log_e_value: float  # log of the evidence
    needed_log_e_value: float  # log of the evidence that decides
    verdict: Verdict | None = None  # None while undecided
    left_out: int = 0  # episodes with an error or without a known success
    unequal: tuple[int, ...] = ()  # indices without a pair, because the jobs' conditions differ
    repeated: int = 0  # episodes that repeat the conditions of an earlier one
    is_late: bool = False  # decided only at the end, by the lower bar of Holm's later steps

    @property
    def is_final(self) -> bool:
        """Whether further episodes have no effect: the question is decided, or its maximum is reached."""
        return self.verdict is not None or self.episodes >= self.question.max_episodes


class Answering:
    """Answer one question incrementally; each episode is read once."""

    def __init__(self, question: Question, *, num_questions: int) -> None:
        # All questions of the file together are wrong with probability alpha at most, so each one needs evidence of
        # their number / alpha (Bonferroni's inequality, the first step of Holm's method).
        needed = math.log(num_questions / question.alpha)
        counts = PairCounts(both=0, only_first=0, only_second=0, neither=0)
        if question.at_least is not None:
            counts = RateCounts(successes=0, trials=0)
        self.answer = Answer(question=question, episodes=0, counts=counts, log_e_value=0.0, needed_log_e_value=needed)
        # Each condition is bet on once, with its first counted episode: a known outcome is not a valid bet. The same
        # holds for episodes with equal starts despite different seeds, as long as all their results are equal.
        self._conditions: set[str] = set()
        # By starts of both jobs: the different results, and the outcomes of repeats that do not count yet.
        self._starts: dict[tuple[int | None, ...], tuple[set[Hashable], list[Sequence[bool]]]] = {}

    def look(self, finished: Mapping[str, Mapping[int, CommitLine]]) -> Answer:
        """Return the answer with the newly finished episodes; `finished` holds them by job and may only grow."""
        arms = [finished.get(job, {}) for job in self.answer.question.jobs]
        while arms and not self.answer.is_final and all(self.answer.episodes in arm for arm in arms):
            before, episodes = self.answer, [arm[self.answer.episodes] for arm in arms]
            answer = replace(before, episodes=before.episodes + 1)
            tried = [each for each in episodes if each.outcome is not Outcome.ERROR]
            successes = [each.success for each in tried if each.success is not None]
            # All jobs of a question run the same environment, so its name is left out.
            conditions = {condition_key("", None, json_line(each.conditions), each.episode_seed) for each in episodes}
            # The order of these checks is fixed: an index counts under the first reason that excludes it.
            if len(conditions) > 1:
                self.answer = replace(answer, unequal=(*before.unequal, before.episodes))
                continue
            if len(successes) < len(episodes):
                self.answer = replace(answer, left_out=before.left_out + 1)
                continue
            if conditions <= self._conditions:
                self.answer = replace(answer, repeated=before.repeated + 1)
                continue

            self._conditions |= conditions
            starts, counting = tuple(each.start for each in episodes), [successes]
            if None not in starts:
                results, held = self._starts.setdefault(starts, (set(), []))
                result = tuple(map(how_it_went, episodes))
                if results == {result}:
                    held.append(successes)
                    counting = []
                else:
                    # On the first different result the held repeats count, too.
                    counting = [*held, successes]
                    held.clear()
                    results.add(result)
            answer = replace(answer, repeated=before.repeated + 1 - len(counting))
            for each in counting:
                counts, won, other = answer.counts, int(each[0]), int(each[-1])
                if isinstance(counts, RateCounts):
                    counts = RateCounts(successes=counts.successes + won, trials=counts.trials + 1)
                else:
                    counts = PairCounts(
                        both=counts.both + won * other,
                        only_first=counts.only_first + won * (1 - other),
                        only_second=counts.only_second + (1 - won) * other,
                        neither=counts.neither + (1 - won) * (1 - other),
                    )
                answer = replace(answer, counts=counts)
            self.answer = decided(answer) if counting else answer
        return self.answer


def answers_of(questions: Sequence[Question], finished: Mapping[str, Mapping[int, CommitLine]]) -> tuple[Answer, ...]:
    """Return the state of each question, see `Answering`, after the later steps of Holm's method."""
    found = [Answering(question, num_questions=len(questions)).look(finished) for question in questions]
    # The later steps need less evidence, because with every decided question the others share alpha among one fewer.
    # They come once all answers are final. No job stops because of them: the stop would depend on which question is
    # decided first.
    if not all(answer.is_final for answer in found):
        return tuple(found)
    num_open = sum(answer.verdict is None for answer in found)
    # The steps go by the log ratio of the evidence to the evidence that a single question needs.
    shares = [answer.log_e_value + math.log(answer.question.alpha) for answer in found]
    for position in sorted(range(len(found)), key=lambda each: -shares[each]):
        if found[position].verdict is not None:
            continue
        needed = math.log(num_open / found[position].question.alpha)
        late = decided(replace(found[position], needed_log_e_value=needed))
        if late.verdict is None:
            break
        found[position], num_open = replace(late, is_late=True), num_open - 1
    return tuple(found)


def decided(answer: Answer) -> Answer:
    """Return an answer with the evidence of its counts, and with a verdict if that is enough."""
    question, counts = answer.question, answer.counts
    if isinstance(counts, RateCounts):
        bar = question.at_least or 0.0
        evidence, is_above = log_e_value_of_rate(counts, bar), counts.successes > bar * counts.trials
        found = Verdict.REACHED if is_above else Verdict.MISSED
    elif question.margin is None:
        evidence = log_e_value_of_equality(counts)
        found = Verdict.BETTER if counts.only_first > counts.only_second else Verdict.WORSE
    else:
        evidence = log_e_value_of_difference(counts, -question.margin)
        found = Verdict.NO_WORSE if (counts.difference or 0.0) > -question.margin else Verdict.WORSE
    return replace(answer, log_e_value=evidence, verdict=found if evidence >= answer.needed_log_e_value else None)


def needed_episodes(job: str, answers: Sequence[Answer]) -> int | None:
    """Return the number of episodes that a job's questions needed. None if one is open, or the job has no question."""
    own = [answer for answer in answers if job in answer.question.jobs]
    return max(answer.episodes for answer in own) if own and all(answer.is_final for answer in own) else None


def in_words(answer: Answer) -> str:
    """Return one line: ``new-vs-old: decided after 53 of 500: new is better than old (e = 23)``."""
    question = answer.question
    of_all = f"{answer.episodes} of {question.max_episodes}"
    # Beyond 1e100 show the power of ten alone, because the value may exceed a float.
    evidence, needed = (
        f"1e{each / math.log(10.0):.0f}" if each > 230.0 else f"{math.exp(each):.3g}"
        for each in (answer.log_e_value, answer.needed_log_e_value)
    )
    if answer.verdict is None:
        state = "undecided after" if answer.is_final else "open after"
        return f"{question.name}: {state} {of_all} (e = {evidence}, decided at {needed})"
    late = ", by a later step of Holm's method" if answer.is_late else ""
    verdict = verdict_in_words(question, answer.verdict)
    return f"{question.name}: decided after {of_all}{late}: {verdict} (e = {evidence})"


def verdict_in_words(question: Question, verdict: Verdict | None) -> str:
    """Return the finding of a question, such as ``new is better than old``, or ``undecided``."""
    points = f"{100 * (question.margin or 0.0):g} points"
    new, old = question.jobs[0], question.jobs[-1]
    bar = f"{100 * (question.at_least or 0.0):g} %"
    found = {
        None: "undecided",
        Verdict.BETTER: f"{new} is better than {old}",
        Verdict.WORSE: f"{new} is {'' if question.margin is None else f'more than {points} '}worse than {old}",
        Verdict.NO_WORSE: f"{new} is less than {points} worse than {old}",
        Verdict.REACHED: f"{new} succeeds in more than {bar}",
        Verdict.MISSED: f"{new} succeeds in less than {bar}",
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
