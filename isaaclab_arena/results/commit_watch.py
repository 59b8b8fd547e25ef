"""Follow the commits of a run's ranks, and find the jobs that need no further episode."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from pathlib import Path

from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.results import stopping
from isaaclab_arena.storage.commits import CommitLine, counts_before, fresh_lines

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.2


@dataclass(eq=False)
class AnswerWatch(Observer):
    """Follow the commit lines of all ranks for answers to a run's questions, and for jobs that fail by errors."""

    sees_pictures = False

    # Each line is read once. Ranks need not agree: a rank that has not seen the last line yet continues for a while.
    # Jobs without questions are read only after one of their episodes ended in an error, hence the observer.
    output_directory: Path
    questions: Sequence[Question]
    _: KW_ONLY
    # True if the episode of a line will run again, so that the line does not count.
    runs_again: Callable[[CommitLine], bool] = lambda _: False
    max_equal_errors: int = 0  # equal errors in a row before the job ends; 0 for no limit
    clock: Callable[[], float] = time.monotonic  # monotonic [s]
    # By job, how many of its last episodes ended in an error, or may have: its committed lines are checked soon.
    suspects: Counter[str] = field(default_factory=Counter, init=False)
    _read_bytes: dict[Path, int] = field(default_factory=dict, init=False)
    _lines: dict[str, dict[int, CommitLine]] = field(default_factory=lambda: defaultdict(dict), init=False)
    _looked_at: dict[str, float] = field(default_factory=dict, init=False)
    _checked: set[str] = field(default_factory=set, init=False)
    _over: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._asked = {job for question in self.questions for job in question.jobs}
        self._answering = [stopping.Answering(each, num_questions=len(self.questions)) for each in self.questions]

    def look(self, *, now: bool = False) -> tuple[stopping.Answer, ...]:
        """Return the answers. Commit files are read at most every `_LOOK_INTERVAL_S`, unless `now`."""
        if self._asked and self._is_time("", now=now):
            for job in self._asked:
                self._read(job)
            for answering in self._answering:
                before = answering.answer
                if before.verdict is None and answering.look(self._lines).verdict is not None:
                    _LOG.info("%s", stopping.in_words(answering.answer))
        return tuple(answering.answer for answering in self._answering)

    def needed(self, job: str) -> int | None:
        """Return the number of episodes that a job needs, None while it needs all planned ones; see `look`."""
        if not self.is_over(job):
            return None
        answered = stopping.needed_episodes(job, self.look()) if job in self._asked else None
        # A job that ended by errors needs the episodes that it has.
        return next(index for index in count() if index not in self._lines[job]) if answered is None else answered

    def is_over(self, job: str, *, now: bool = False) -> bool:
        """Whether a job needs no further episode, or more of them would end in the same error; see `look`."""
        if job in self._asked and stopping.needed_episodes(job, self.look(now=now)) is not None:
            return True
        most, in_a_row = self.max_equal_errors, self.suspects[job]
        may_end = most > 0 and in_a_row > 0 and job not in self._over
        # Unequal errors may continue for long, and are not urgent.
        if may_end and self._is_time(job, now=now or most <= in_a_row <= 2 * most):
            self._read(job)
            lines = self._lines[job]
            streak = stopping.error_streak((lines[index] for index in sorted(lines)), most)
            if streak is not None:
                self._over.add(job)
                _LOG.error("job '%s' ends early: %s", job, streak)
        return job in self._over

    def fails(self, job: str, num_episodes: int | None) -> bool:
        """Whether a job that a rank has left fails by its errors. `num_episodes` is None if unknown."""
        if not self.suspects[job]:
            return False
        # All episodes must be in before "nothing but errors" is certain.
        self.is_over(job, now=True)
        self._read(job)
        lines = self._lines[job].values()
        has_all = num_episodes is None or len(lines) == num_episodes
        return job in self._over or (has_all and stopping.nothing_but_errors(lines) is not None)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Suspect the job after an error; any other end clears the suspicion."""
        del environment
        if record.outcome is Outcome.ERROR:
            self.suspects[record.episode.job] += 1
        else:
            self.suspects[record.episode.job] = 0

    def checked_is_over(self, job: str) -> bool:
        """Return `is_over`, asked before an episode begins. ConfigError if the job does not measure success."""
        if job not in self._checked:
            # Earlier attempts may have left the lines that end the job.
            self._checked.add(job)
            self.suspects[job] += 1
        is_over = self.is_over(job)
        if job not in self._asked:
            return is_over
        line = next(iter(self._lines[job].values()), None)
        if line is not None and line.success is None and line.outcome is not Outcome.ERROR:
            message = "does not say whether its episodes succeed; leave out the comparisons and bars that name it"
            raise ConfigError(Problem(message, job=job))
        return is_over

    def _is_time(self, what: str, *, now: bool) -> bool:
        """Whether the next read of a job is due, or, for "", of all jobs with questions."""
        at, before = self.clock(), self._looked_at.get(what)
        if not now and before is not None and at - before < _LOOK_INTERVAL_S:
            return False
        self._looked_at[what] = at
        return True

    def _read(self, job: str) -> None:
        """Read the lines of a job that its ranks have appended since the last read."""
        lines = self._lines[job]
        for line in fresh_lines(self.output_directory / job, job, self._read_bytes):
            known = lines.get(line.episode_index)
            is_older = known is not None and not counts_before(line, known)
            if self.runs_again(line) or is_older:
                continue
            lines[line.episode_index] = line
            if known is not None and job in self._asked:
                # A later attempt replaced an error, which may change earlier answers, so all of them start again.
                self._answering = [
                    stopping.Answering(each, num_questions=len(self.questions)) for each in self.questions
                ]
