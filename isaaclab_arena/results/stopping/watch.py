"""Follow what the ranks of a run commit, and know which of its questions are answered."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.stopping.answers import Answer, Answering, FinishedEpisode, needed_episodes
from isaaclab_arena.results.stopping.wording import in_words
from isaaclab_arena.storage.atomic import check_plain, storage_errors
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, job_directory
from isaaclab_arena.storage.run.commits import CommitLine, counts_before, parse_line

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.2


class AnswerWatch:
    """The answers to a run's questions, from the commit lines of all ranks alone.

    Each line is read once. Ranks need not agree: one that has not seen the last line yet runs on for a while.

    Args:
        output_directory: The run's directory, which all ranks share.
        questions: What is asked of the run's jobs.
        runs_again: Whether the episode of a line is yet to run again, so that the line does not count.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        output_directory: Path,
        questions: Sequence[Question],
        *,
        runs_again: Callable[[CommitLine], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions = questions
        self._runs_again = runs_again
        self._clock = clock
        self._tails = {
            job: _Tail(job_directory(output_directory, job), job) for question in questions for job in question.jobs
        }
        self._lines: dict[str, dict[int, CommitLine]] = {job: {} for job in self._tails}
        self._finished: dict[str, dict[int, FinishedEpisode]] = {job: {} for job in self._tails}
        self._answering = self._begun_anew()
        self._looked_at: float | None = None

    def look(self, *, now: bool = False) -> tuple[Answer, ...]:
        """Return the answers; unless asked for now, what ranks have committed is read a few times a second at most.

        Raises:
            StorageError: If a commit file cannot be read.
        """
        at = self._clock()
        if now or self._looked_at is None or at - self._looked_at >= _LOOK_INTERVAL_S:
            self._looked_at = at
            self._read()
            for answering in self._answering:
                before = answering.answer
                if before.verdict is None and answering.look(self._finished).verdict is not None:
                    _LOG.info("%s", in_words(answering.answer))
        return tuple(answering.answer for answering in self._answering)

    def is_over(self, job: str, *, now: bool = False) -> bool:
        """Whether no further episode of a job is needed; see `look`."""
        return job in self._tails and needed_episodes(job, self.look(now=now)) is not None

    def lets_stop(self, job: str) -> bool:
        """Return `is_over`, asked before an episode of the job begins.

        Raises:
            ConfigError: If the job does not say whether its episodes succeed: then nothing can be decided.
        """
        is_over = self.is_over(job)
        line = next(iter(self._lines.get(job, {}).values()), None)
        if line is not None and line.success is None and line.outcome is not Outcome.ERROR:
            message = "does not say whether its episodes succeed; leave out the comparisons and bars that name it"
            raise ConfigError(Problem(message, job=job))
        return is_over

    def _begun_anew(self) -> list[Answering]:
        return [Answering(question, num_questions=len(self._questions)) for question in self._questions]

    def _read(self) -> None:
        for job, tail in self._tails.items():
            lines = self._lines[job]
            for line in tail.new_lines():
                known = lines.get(line.episode_index)
                if self._runs_again(line) or (known is not None and not counts_before(line, known)):
                    continue
                lines[line.episode_index] = line
                self._finished[job][line.episode_index] = finished_episode(line)
                if known is not None:
                    # An error gave way to a later attempt, which may change what was answered.
                    self._answering = self._begun_anew()


class _Tail:
    """The commit lines of one job that have not been read yet."""

    def __init__(self, directory: Path, job: str) -> None:
        self._directory = directory
        self._job = job
        self._read_bytes: dict[Path, int] = {}

    def new_lines(self) -> Iterator[CommitLine]:
        for path in sorted(self._directory.glob(COMMIT_FILE_PATTERN)):
            begin = self._read_bytes.get(path, 0)
            check_plain(path)
            with storage_errors("read", path), path.open("rb") as file:
                file.seek(begin)
                content = file.read()
            # What comes after the last newline is being written.
            whole = content[: content.rfind(b"\n") + 1]
            self._read_bytes[path] = begin + len(whole)
            for text in whole.splitlines():
                try:
                    line = parse_line(text)
                except ValueError:
                    # The merge will tell.
                    continue
                if line.job_name == self._job:
                    yield line


def finished_episode(line: CommitLine) -> FinishedEpisode:
    """Return what questions need to know of a committed episode."""
    is_error = line.outcome is Outcome.ERROR
    return FinishedEpisode(
        success=None if is_error else line.success,
        # Where an environment says no conditions, the seed of the episode stands for them.
        conditions=json.dumps(line.variations, sort_keys=True, default=str)
        if line.variations
        else f"seed {line.episode_seed}",
    )
