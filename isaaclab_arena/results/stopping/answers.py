"""Answer the questions of a run from its finished episodes, in order of their index: pure functions.

The answer is looked for after every episode, on the episodes 0 to m - 1 that all jobs of a question have finished. The
first m that is enough decides. So it does not matter how many ranks there are, which episodes end first, or how often
the run was interrupted.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from isaaclab_arena.config.schema import Question
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.conditions import condition_key, how_it_went
from isaaclab_arena.results.stopping.counts import PairCounts, RateCounts
from isaaclab_arena.results.stopping.e_values import (
    log_e_value_of_difference,
    log_e_value_of_equality,
    log_e_value_of_rate,
)
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.commits import CommitLine


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
