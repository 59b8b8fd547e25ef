"""Watch which jobs of a run need no further episode while an attempt is at work on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from isaaclab_arena.config.schema import Question
from isaaclab_arena.episode_ranges import EpisodeRanges, contain
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.stopping.watch import AnswerWatch
from isaaclab_arena.storage.run.commits import CommitLine


def answer_watch(
    output_directory: Path,
    questions: Sequence[Question],
    finished: Mapping[str, EpisodeRanges],
    *,
    attempt: int,
    max_equal_errors: int,
) -> AnswerWatch:
    """Return what knows which jobs need no further episode.

    Args:
        output_directory: The run's directory.
        questions: What is asked of its jobs.
        finished: The episodes of each job that do not run again in an attempt, by its name; a job that is not here is
            complete. An error of an earlier attempt that runs again does not count as finished.
        attempt: Number of the attempt.
        max_equal_errors: See `AnswerWatch`.
    """

    def runs_again(line: CommitLine) -> bool:
        kept = finished.get(line.job_name)
        is_earlier_error = line.outcome is Outcome.ERROR and line.attempt < attempt
        return kept is not None and is_earlier_error and not contain(kept, line.episode_index)

    return AnswerWatch(output_directory, questions, runs_again=runs_again, max_equal_errors=max_equal_errors)
