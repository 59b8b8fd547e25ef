"""The episodes that a rank claims of a job, piece by piece, and what becomes of them."""

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.episode_ranges import of_ranges
from isaaclab_arena.evaluation.scheduling.selection import Measured, rows_to_use
from isaaclab_arena.evaluation.scheduling.work_board import HeldPiece, WorkBoard
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.commits import read_commits

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SharedRun:
    """What the ranks of one start of the program share.

    Attributes:
        output_directory: The run's folder, on a disk that all ranks share.
        attempt: Which start it is, what is left to do, and how many ranks share it.
        split_jobs: Whether several ranks may work on one job.
        lease_s: How long a rank may be silent before others take its work over [s].
    """

    output_directory: Path
    attempt: Attempt
    split_jobs: bool
    lease_s: float


class ClaimedEpisodes(Observer):
    """The episodes of a job that a rank claims piece by piece, as rows of its batch become free.

    It is an observer too: a piece is done when the last of its episodes has ended. It must be told after the
    recorder, so that a piece is done only when all of it is committed.

    Args:
        first: The piece for which the rank took up the job.
        board: What is known of the pieces of all jobs.
        run: What the ranks share.
        clock: Monotonic time [s].
    """

    def __init__(
        self, first: HeldPiece, board: WorkBoard, run: SharedRun, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._divided = first.divided
        self._board = board
        self._run = run
        self._clock = clock
        self._begins = [piece[0][0] for piece in self._divided.pieces if piece]
        self._pieces: dict[int, _Piece] = {}
        self._num_running = 0
        self._episodes, self._env_steps, self._since = 0, 0, clock()
        self._add(first)

    @property
    def num_missing(self) -> int | None:
        """Episodes of the pieces claimed so far that have yet to end; None where they are not known."""
        if self._divided.pieces[0] is None:
            return None
        return sum(piece.num_left for piece in self._pieces.values())

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield those of the candidates that this rank has claimed or can claim; see `EpisodeSupply`.

        A piece that another rank has taken over meanwhile is dropped.

        Raises:
            StorageError: If a claim cannot be made.
        """
        for index in candidates:
            number = self._number_of(index)
            if number is None:
                continue
            piece = self._pieces.get(number) or self._claim(number)
            if piece is None or index in piece.finished:
                continue
            if self.still_holds(index):
                yield index
            elif self._divided.pieces[number] is None:
                return

    def max_rows(self, num_envs: int) -> int:
        """Return how many rows to use at once: all, or fewer where other ranks may help; see `rows_to_use`."""
        if len(self._divided.pieces) == 1:
            return num_envs
        open_episodes = self._board.open_episodes(self._divided.index) + (self.num_missing or 0)
        return rows_to_use(
            num_envs,
            open_episodes=open_episodes,
            world_size=self._run.attempt.world_size,
            unfinished_jobs=self._board.num_unfinished_jobs(),
        )

    def still_holds(self, episode_index: int) -> bool:
        """Whether an episode is still this rank's: nobody has taken its piece over."""
        number = self._number_of(episode_index)
        piece = None if number is None else self._pieces.get(number)
        if piece is None or piece.lost:
            return False
        if not self._board.holds(piece.held):
            piece.lost = True
            _LOG.warning(
                "this rank was silent for too long: others took over a part of job '%s', and it leaves that to them",
                self._divided.job.config.name,
            )
        return not piece.lost

    def finish_pieces(self) -> None:
        """Say that all claimed pieces are done: the job has come to its end on this rank.

        Raises:
            StorageError: If that cannot be written.
        """
        for number in list(self._pieces):
            self._finish(number)

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Count the rows that begin; before the first one the environment was being built, which is not measured."""
        del environment, observation
        if self._num_running == 0:
            self._since = self._clock()
        self._num_running += len(starts)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count one step of every running row."""
        del environment
        self._env_steps += transition.num_running

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Count the episode; the last one of a piece finishes it."""
        del environment
        self._num_running -= 1
        self._episodes += 1
        number = self._number_of(record.episode.episode_index)
        piece = None if number is None else self._pieces.get(number)
        if number is None or piece is None or self._divided.pieces[number] is None:
            return
        piece.num_left -= 1
        if piece.num_left == 0:
            self._finish(number)

    def _number_of(self, index: int) -> int | None:
        """Return the piece that an episode belongs to, None for one that was finished before this start."""
        pieces = self._divided.pieces
        if pieces[0] is None:
            return 0
        number = bisect_right(self._begins, index) - 1
        piece = pieces[number] if number >= 0 else None
        return number if piece and any(begin <= index < end for begin, end in piece) else None

    def _claim(self, number: int) -> "_Piece | None":
        self._board.refresh()
        held = self._board.claim(self._divided.index, number)
        return None if held is None else self._add(held)

    def _add(self, held: HeldPiece) -> "_Piece":
        divided = self._divided
        committed = _committed(divided.job.config.name, self._run) if held.was_claimed_before else frozenset()
        episodes = divided.pieces[held.number]
        # A job limited by steps runs again as a whole: it does not ask which of its episodes are finished.
        finished = of_ranges(divided.finished) | committed if episodes is None else of_ranges(episodes) & committed
        num_left = divided.num_episodes[held.number] - len(finished) if episodes is not None else 0
        piece = self._pieces[held.number] = _Piece(held=held, finished=finished, num_left=num_left)
        return piece

    def _finish(self, number: int) -> None:
        piece = self._pieces.pop(number)
        now = self._clock()
        measured = Measured(episodes=self._episodes, env_steps=self._env_steps, seconds=round(now - self._since, 3))
        self._episodes, self._env_steps, self._since = 0, 0, now
        self._board.finish(piece.held, measured)


@dataclass(kw_only=True)
class _Piece:
    """A claimed piece under way.

    Attributes:
        held: The claim.
        finished: Episodes that must not run again: those that the rank before had committed.
        num_left: Episodes that have yet to end.
        lost: Whether another rank has taken it over.
    """

    held: HeldPiece
    finished: frozenset[int]
    num_left: int
    lost: bool = False


def _committed(job: str, run: SharedRun) -> frozenset[int]:
    """Return the episodes that were committed since this start; errors of an earlier one may be there to run again."""
    rows = read_commits(job_directory(run.output_directory, job), job).rows
    return frozenset(row.episode_index for row in rows if row.attempt == run.attempt.number)
