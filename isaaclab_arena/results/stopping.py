"""The answers to a run's questions from its finished episodes. Pure functions that load little."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from isaaclab_arena.config.schema import Question
from isaaclab_arena.interfaces.episode import POLICY_LOST, SEED_CONDITION, Outcome
from isaaclab_arena.storage.commits import CommitLine
from isaaclab_arena.storage.json_values import json_line

# Define which episodes started from the same conditions. Every figure that counts them asks here. Loads nothing.

_NO_CONDITIONS = "{}"
_NUMBER, _SEED = "seed ", f'{{"{SEED_CONDITION}":'


def condition_key(environment: str, asset: str | None, told: str, episode_seed: int, start: int | None = None) -> str:
    """Return what an episode started from, as text that is equal for equal conditions.

    Args:
        environment: Name of the environment. Equal positions in another one are other conditions.
        asset: The object in it that the job names, None where it names none.
        told: The conditions that were applied, as `json_line` writes them.
        episode_seed: What stands for them where an environment tells none.
        start: The start that the episode shares with others although their seeds differ, see `alike_starts`.
    """
    if start is not None:
        told = f"start {start}"
    elif told == _NO_CONDITIONS:
        told = f"{_NUMBER}{episode_seed}"
    return f"{environment} {asset or ''}\t{told}"


def draw_of(key: str) -> str:
    """Return what was drawn for an episode, by its `condition_key`: a seed is the same draw in every environment.

    Tasks of a suite that get the same seeds may succeed and fail together, because all that is random in them, and in
    the policy, begins with equal numbers.
    """
    told = key.partition("\t")[2]
    return told if told.startswith((_NUMBER, _SEED)) else key


def alike_starts(lines: Sequence[CommitLine]) -> list[int | None]:
    """Return the start that episodes of a job share although their seeds differ, None for all other episodes.

    A seed need not change anything. Episodes with equal first observations are one episode if all of them also went
    alike. If any went otherwise, something random came after the start, and each counts.
    """
    count = Counter(line.start for line in lines if line.start is not None)
    went: dict[int, set[Hashable]] = {start: set() for start, number in count.items() if number > 1}
    for line in lines:
        if line.start in went:
            went[line.start].add(how_it_went(line))
    shared = {start for start, found in went.items() if len(found) == 1}
    return [line.start if line.start in shared else None for line in lines]


def how_it_went(line: CommitLine) -> Hashable:
    """Return what is equal for episodes that went alike, as far as their lines tell."""
    result = (line.outcome, line.success, line.episode_length, line.episode_return, line.termination, line.checksum)
    return *result, line.language_instruction, json_line(line.metrics)


# Count how episodes came out: pairs of two policies from the same conditions, and one policy alone.


@dataclass(frozen=True, kw_only=True)
class PairCounts:
    """How pairs of episodes came out. A pair is one episode of each policy, from the same conditions.

    Attributes:
        both: Pairs in which both policies succeed.
        only_first: Pairs in which the first one alone succeeds.
        only_second: Pairs in which the second one alone succeeds.
        neither: Pairs in which neither succeeds.

    Raises:
        ValueError: If a count is negative.
    """

    both: int
    only_first: int
    only_second: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.only_first, self.only_second, self.neither) < 0:
            raise ValueError(f"counts must not be negative, got {self}")

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
        """Rate of the first policy less that of the second, None without pairs."""
        return (self.only_first - self.only_second) / self.total if self.total else None


@dataclass(frozen=True, kw_only=True)
class RateCounts:
    """How episodes of one policy came out.

    Attributes:
        successes: Episodes that succeeded.
        trials: Episodes that say whether they succeeded.

    Raises:
        ValueError: If a count is negative, or there are more successes than trials.
    """

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials:
            raise ValueError(f"successes must be 0 to the number of trials, got {self}")


# Evidence that may be looked at after every episode: e-values. Pure functions that load nothing.
#
# An e-value is the wealth of a gambler who bets against a hypothesis. If the hypothesis is true, the chance that this
# wealth ever reaches 1 / alpha is at most alpha (Ville's inequality), however often one looks. The bets here are
# mixtures with Jeffreys' prior.

PRIOR = 0.5
"""Each parameter of Jeffreys' prior."""


def log_e_value_of_rate(counts: RateCounts, rate: float) -> float:
    """Return the logarithm of the e-value against a success rate.

    Args:
        counts: How the episodes came out.
        rate: The rate that it is evidence against, 0 to 1.
    """
    outcomes = (counts.successes, counts.trials - counts.successes)
    return _log_mixture(outcomes) - _log_likelihood(outcomes, (rate, 1.0 - rate))


def log_e_value_of_equality(counts: PairCounts) -> float:
    """Return the logarithm of the e-value against "neither policy is better": a fair coin says who wins a pair.

    Pairs in which both policies came out the same say nothing, and are not counted.
    """
    wins, losses = counts.only_first, counts.only_second
    return log_e_value_of_rate(RateCounts(successes=wins, trials=wins + losses), 0.5)


def log_e_value_of_difference(counts: PairCounts, difference: float) -> float:
    """Return the logarithm of the e-value against a difference of rates.

    A pair comes out in one of three ways: the first policy alone succeeds, the second alone, or they agree. Of all
    distributions over the three that have the difference, the evidence is that against the likeliest one.

    Args:
        counts: How the pairs came out.
        difference: The first rate less the second that it is evidence against, -1 to 1.
    """
    outcomes = (counts.only_first, counts.only_second, counts.both + counts.neither)
    return _log_mixture(outcomes) - _log_likelihood(outcomes, _likeliest_chances(outcomes, difference))


def _log_mixture(outcomes: tuple[int, ...]) -> float:
    """Return the logarithm of how likely outcomes in this order are, averaged over the prior."""
    mixture = sum(math.lgamma(PRIOR + each) - math.lgamma(PRIOR) for each in outcomes)
    whole = PRIOR * len(outcomes)
    return mixture + math.lgamma(whole) - math.lgamma(whole + sum(outcomes))


def _log_likelihood(outcomes: tuple[int, ...], chances: tuple[float, ...]) -> float:
    if any(count and chance <= 0.0 for count, chance in zip(outcomes, chances, strict=True)):
        return -math.inf
    return sum(count * math.log(chance) for count, chance in zip(outcomes, chances, strict=True) if count)


def _likeliest_chances(outcomes: tuple[int, int, int], difference: float) -> tuple[float, ...]:
    """Return the likeliest distribution whose first chance less the second is given."""
    wins, losses, rest = outcomes
    total = wins + losses + rest
    # The derivative by the second chance is zero at the larger root of a quadratic.
    linear = wins * (1.0 - difference) + losses * (1.0 - 3.0 * difference) - 2.0 * rest * difference
    constant = losses * difference * (1.0 - difference)
    root = (linear + math.sqrt(max(0.0, linear * linear + 8.0 * total * constant))) / (4.0 * total) if total else 0.0
    second = min(max(root, 0.0, -difference), (1.0 - difference) / 2.0)
    return max(0.0, second + difference), second, max(0.0, 1.0 - 2.0 * second - difference)


# Jobs that fail by their errors: every episode is one, or many in a row are the same. Pure functions.


def error_streak(lines: Iterable[CommitLine], most: int) -> str | None:
    """Return why a job ends early: a number of episodes in a row, by index, ended in the same error.

    Which ranks played them, and in which order they ended, makes no difference.

    Args:
        lines: The finished episodes of the job, by index.
        most: How many episodes in a row; 0 for no such end.

    Returns:
        The reason with the error, None if there is no such row.
    """
    length, last = 0, (-2, "")
    for line in lines if most > 0 else ():
        # One that lost its policy did not do so by itself: all env slots did, and the job has failed for that.
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
    """Return why a job fails of which every episode is an error, with the commonest one; None if one is not."""
    errors = list(lines)
    if not errors or any(line.outcome is not Outcome.ERROR for line in errors):
        return None
    kinds = Counter(map(_kind, errors))
    kind, number = kinds.most_common(1)[0]
    first = next(line for line in errors if _kind(line) == kind)
    every = "its only episode" if len(errors) == 1 else f"all {len(errors)} episodes"
    most = "" if len(kinds) == 1 else f", {number} of them in this one"
    return f"{every} ended in an error{most}: {first.error or first.termination}"


def _kind(line: CommitLine) -> str:
    """Return an error without numbers: times, addresses and indices differ where the cause is the same."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", line.error or line.termination)


# Answer the questions of a run from its finished episodes, in order of their index: pure functions.
#
# The answer is looked for after every episode, on the episodes 0 to m - 1 that all jobs of a question have finished.
# The first m that is enough decides. So it does not matter how many ranks there are, which episodes end first, or how
# often the run was interrupted.


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """What a question needs to know of a finished episode.

    Attributes:
        success: Whether it succeeded; None for an error, and where that is not measured.
        conditions: What it started from, as text that is equal for equal conditions.
        start: Its first observation, where its conditions are but a seed; see `CommitLine`.
        went: How it went, equal for episodes that went alike.
    """

    success: bool | None
    conditions: str
    start: int | None = None
    went: Hashable = None


def finished_episode(line: CommitLine) -> FinishedEpisode:
    """Return what questions need to know of a committed episode."""
    is_error = line.outcome is Outcome.ERROR
    return FinishedEpisode(
        success=None if is_error else line.success,
        # The jobs of a question play the same environment.
        conditions=condition_key("", None, json_line(line.variations), line.episode_seed),
        start=line.start,
        went=None if line.start is None else how_it_went(line),
    )


class Verdict(StrEnum):
    """The answers that there are. The first three are those of a comparison, the others those of a bar."""

    BETTER = "better"
    WORSE = "worse"
    NO_WORSE = "no worse"
    REACHED = "reached"
    MISSED = "missed"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How far a question is answered.

    Attributes:
        question: The question.
        episodes: How many episodes of each job it rests on: those with an index below.
        counts: How they came out.
        log_e_value: The evidence in them, as a logarithm.
        needed_log_e_value: How much of it decides, as a logarithm.
        verdict: The answer, None as long as there is none.
        left_out: Episodes that do not count, because one of them is an error or does not say whether it succeeded.
        unequal: Indices that are no pairs, because the jobs' episodes started from other conditions.
        repeated: Episodes that do not count, because they repeat the conditions of an earlier one.
        is_late: Whether the verdict came at the end only, when Holm's later steps needed less evidence.
    """

    question: Question
    episodes: int
    counts: PairCounts | RateCounts
    log_e_value: float
    needed_log_e_value: float
    verdict: Verdict | None = None
    left_out: int = 0
    unequal: tuple[int, ...] = ()
    repeated: int = 0
    is_late: bool = False

    @property
    def is_final(self) -> bool:
        """Whether further episodes would change nothing: it is decided, or has looked at all that it may."""
        return self.verdict is not None or self.episodes >= self.question.max_episodes


class Answering:
    """Answers one question as episodes finish; each episode is looked at once.

    Conditions are bet on once, with the first episode of theirs that counts: a bet on what has been seen is none. So
    are episodes that began alike although their seeds differ, as long as all of them went alike too.

    Args:
        question: The question.
        num_questions: How many questions the file asks. Together they are wrong with a chance of alpha at most, so
            each one needs evidence of that number / alpha (Bonferroni's inequality, the first step of Holm's method).
    """

    def __init__(self, question: Question, *, num_questions: int) -> None:
        self._needed = math.log(num_questions / question.alpha)
        nothing = RateCounts(successes=0, trials=0) if question.at_least is not None else _NO_PAIRS
        self.answer = Answer(
            question=question, episodes=0, counts=nothing, log_e_value=0.0, needed_log_e_value=self._needed
        )
        self._conditions: set[str] = set()
        self._starts: dict[tuple[int | None, ...], _SameStart] = {}

    def look(self, finished: Mapping[str, Mapping[int, FinishedEpisode]]) -> Answer:
        """Return the answer after the episodes that have finished meanwhile.

        Args:
            finished: The finished episodes of each job, by its name and their index; they may only become more.
        """
        arms = [finished.get(job, {}) for job in self.answer.question.jobs]
        while not self.answer.is_final and all(self.answer.episodes in arm for arm in arms):
            self.answer = self._with([arm[self.answer.episodes] for arm in arms])
        return self.answer

    def _with(self, episodes: Sequence[FinishedEpisode]) -> Answer:
        before = self.answer
        answer = replace(before, episodes=before.episodes + 1)
        if len({episode.conditions for episode in episodes}) > 1:
            return replace(answer, unequal=(*before.unequal, before.episodes))
        successes = [episode.success for episode in episodes if episode.success is not None]
        if len(successes) < len(episodes):
            return replace(answer, left_out=before.left_out + 1)
        if episodes[0].conditions in self._conditions:
            return replace(answer, repeated=before.repeated + 1)
        self._conditions.add(episodes[0].conditions)
        starts, counting = tuple(episode.start for episode in episodes), [successes]
        if None not in starts:
            same = self._starts.setdefault(starts, _SameStart())
            counting = same.counting(successes, tuple(episode.went for episode in episodes))
        answer = replace(answer, repeated=before.repeated + 1 - len(counting))
        for each in counting:
            answer = replace(answer, counts=_counted(answer.counts, each))
        return decided(answer) if counting else answer


class _SameStart:
    """Episodes that began alike although their seeds differ."""

    def __init__(self) -> None:
        self._went: set[Hashable] = set()
        self._repeats: list[Sequence[bool]] = []

    def counting(self, successes: Sequence[bool], went: Hashable) -> list[Sequence[bool]]:
        """Return which episodes count from the next one on, by how they came out: those before it too if it differs.

        Args:
            successes: How the next one came out.
            went: How it went.
        """
        if went in self._went and len(self._went) == 1:
            self._repeats.append(successes)
            return []
        repeats, self._repeats = self._repeats, []
        self._went.add(went)
        return [*repeats, successes]


def answers_of(
    questions: Sequence[Question], finished: Mapping[str, Mapping[int, FinishedEpisode]]
) -> tuple[Answer, ...]:
    """Return how far each question is answered; see `Answering` and `with_later_steps`."""
    looks = (Answering(question, num_questions=len(questions)).look(finished) for question in questions)
    return with_later_steps(tuple(looks))


def decided(answer: Answer) -> Answer:
    """Return an answer with the evidence in its counts, and with its verdict if that is enough."""
    evidence, is_above = _evidence(answer.question, answer.counts)
    verdict = verdict_of(answer.question, is_above=is_above) if evidence >= answer.needed_log_e_value else None
    return replace(answer, log_e_value=evidence, verdict=verdict)


def with_later_steps(answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return the answers after Holm's method, whose later steps need less evidence; only where all of them are final.

    With every question that is decided the others share alpha among one fewer. No job stops because of that: it could
    depend on which question happens to be decided first.
    """
    if not all(answer.is_final for answer in answers):
        return answers
    found = list(answers)
    num_open = sum(answer.verdict is None for answer in answers)
    for position in sorted(range(len(found)), key=lambda each: -_share(found[each])):
        if found[position].verdict is not None:
            continue
        needed = math.log(num_open / found[position].question.alpha)
        late = decided(replace(found[position], needed_log_e_value=needed))
        if late.verdict is None:
            break
        found[position], num_open = replace(late, is_late=True), num_open - 1
    return tuple(found)


def needed_episodes(job: str, answers: Sequence[Answer]) -> int | None:
    """Return how many episodes of a job all its questions needed; None if one is open, or none asks about it."""
    own = [answer for answer in answers if job in answer.question.jobs]
    return max(answer.episodes for answer in own) if own and all(answer.is_final for answer in own) else None


_NO_PAIRS = PairCounts(both=0, only_first=0, only_second=0, neither=0)


def _counted(counts: PairCounts | RateCounts, successes: Sequence[bool]) -> PairCounts | RateCounts:
    if isinstance(counts, RateCounts):
        return RateCounts(successes=counts.successes + int(successes[0]), trials=counts.trials + 1)
    first, second = successes
    return PairCounts(
        both=counts.both + int(first and second),
        only_first=counts.only_first + int(first and not second),
        only_second=counts.only_second + int(second and not first),
        neither=counts.neither + int(not first and not second),
    )


def _evidence(question: Question, counts: PairCounts | RateCounts) -> tuple[float, bool]:
    """Return the logarithm of the e-value, and whether what was seen lies above what it is evidence against."""
    if isinstance(counts, RateCounts):
        bar = question.at_least or 0.0
        return log_e_value_of_rate(counts, bar), counts.successes > bar * counts.trials
    if question.margin is None:
        return log_e_value_of_equality(counts), counts.only_first > counts.only_second
    evidence = log_e_value_of_difference(counts, -question.margin)
    return evidence, (counts.difference or 0.0) > -question.margin


def verdict_of(question: Question, *, is_above: bool) -> Verdict:
    """Return the answer to a question, once there is enough evidence.

    Args:
        question: The question.
        is_above: Whether what was seen lies above what there is evidence against.
    """
    if question.at_least is not None:
        return Verdict.REACHED if is_above else Verdict.MISSED
    if question.margin is not None:
        return Verdict.NO_WORSE if is_above else Verdict.WORSE
    return Verdict.BETTER if is_above else Verdict.WORSE


def _share(answer: Answer) -> float:
    """Return the logarithm of how many times the evidence is what a question alone would need."""
    return answer.log_e_value + math.log(answer.question.alpha)


# Say in words how far a question is answered.

_LARGEST_LOG = 230.0
_MOST_INDICES = 8


def in_words(answer: Answer) -> str:
    """Return one line: ``new-vs-old: decided after 53 of 500: new is better than old (e = 23)``."""
    question = answer.question
    of_all = f"{answer.episodes} of {question.max_episodes}"
    evidence = f"e = {e_value_text(answer.log_e_value)}"
    if answer.verdict is None:
        state = "undecided after" if answer.is_final else "open after"
        return f"{question.name}: {state} {of_all} ({evidence}, {e_value_text(answer.needed_log_e_value)} decides)"
    late = ", by a later step of Holm's method" if answer.is_late else ""
    return f"{question.name}: decided after {of_all}{late}: {verdict_in_words(answer)} ({evidence})"


def verdict_in_words(answer: Answer) -> str:
    """Return what a question has found, such as ``new is better than old``; ``undecided`` where nothing."""
    question = answer.question
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
    return found[answer.verdict]


def what_does_not_count(answer: Answer) -> str | None:
    """Return which episodes of a question's prefix do not count and why, None where all of them do."""
    parts = []
    if answer.unequal:
        shown = ", ".join(map(str, answer.unequal[:_MOST_INDICES]))
        more = ", …" if len(answer.unequal) > _MOST_INDICES else ""
        parts.append(f"{len(answer.unequal)} started from other conditions in each job ({shown}{more})")
    if answer.left_out:
        parts.append(f"{answer.left_out} ended in an error")
    if answer.repeated:
        parts.append(f"{answer.repeated} repeat the conditions of an earlier one")
    told = ", ".join([*parts[:-2], " and ".join(parts[-2:])])
    return f"{answer.question.name}: of its episodes {told}; they do not count" if parts else None


def e_value_text(log_e_value: float) -> str:
    """Return an e-value in few digits, given its logarithm."""
    if log_e_value > _LARGEST_LOG:
        return f"1e{log_e_value / math.log(10.0):.0f}"
    return f"{math.exp(log_e_value):.3g}"
