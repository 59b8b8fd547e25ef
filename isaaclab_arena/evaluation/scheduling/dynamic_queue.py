"""Gives a rank jobs whose episodes it claims as it goes: idle ranks take over unfinished episodes of others.

Every rank cuts the jobs into the same pieces. A file in the claim table settles who runs a piece. No rank asks another
one, so whichever ranks are left finish the run, also what a dead rank has begun.
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from isaaclab_arena.episode_ranges import contain, of_ranges
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.scheduling.claim import Claim
from isaaclab_arena.evaluation.scheduling.cost import Measured, slots_to_use
from isaaclab_arena.evaluation.scheduling.job_queue import AssignedJob
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.commits import read_commits

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.5


class Claims(Protocol):
    """The claims of all ranks, as one rank asks for them; see `ClaimTable`."""

    def refresh(self, *, now: bool = False) -> None:
        """Take note of what other ranks did."""
        ...

    def claim_next(self, built_environment: str | None) -> Claim | None:
        """Claim a piece of the job that comes next."""
        ...

    def claim(self, job_index: int, piece: int) -> Claim | None:
        """Claim a piece."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken the piece over."""
        ...

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Say that a piece is finished."""
        ...

    def give_up(self, job_index: int) -> None:
        """Say that a job has failed."""
        ...

    def open_episodes(self, job_index: int) -> int:
        """Return how many episodes of a job are in pieces that nobody works on."""
        ...

    def num_unfinished_jobs(self) -> int:
        """Return how many jobs have pieces that are free or under way."""
        ...

    def pieces_of_others(self) -> int:
        """Return how many pieces other ranks work on."""
        ...


class DynamicQueue:
    """The jobs that a rank claims, one after the other, until nothing is left for any rank.

    Args:
        table: What is known of the pieces of all jobs.
        output_directory: The run's directory.
        attempt: Which start of the program it is.
        stop_requested: True once this process was told to stop; it ends the wait for others.
        is_over: Whether no further episode of a job is needed, by its name.
        begins: Is told which episodes of a claimed piece may be under way: from the first index to the last, both
            included, as far as they have not ended.
        pause: Waits for a number of seconds.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        table: Claims,
        output_directory: Path,
        attempt: Attempt,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        is_over: Callable[[str], bool] = lambda _: False,
        begins: Callable[[Claim, int, int], None] = lambda *_: None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._output_directory = output_directory
        self._attempt = attempt
        self._stop_requested = stop_requested
        self._is_over = is_over
        self._begins = begins
        self._pause = pause
        self._clock = clock
        self._built_environment: str | None = None
        self._current: ClaimedEpisodes | None = None
        self._said_that_it_waits = False

    def next_job(self) -> AssignedJob | None:
        """Claim something to do; wait while other ranks work, because what they have claimed may become free.

        Returns:
            What to do next; None when all is done or failed, or this process was told to stop.

        Raises:
            StorageError: If the claims cannot be read or made.
        """
        while not self._stop_requested():
            self._table.refresh()
            claim = self._table.claim_next(self._built_environment)
            if claim is None:
                # What is known may be a second old: before the rank waits or leaves it looks again.
                self._table.refresh(now=True)
                claim = self._table.claim_next(self._built_environment)
            if claim is not None:
                return self._assigned(claim)
            if not self._others_at_work():
                return None
            self._pause(_POLL_INTERVAL_S)
        return None

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Say that this rank has left a job: its pieces are done, or the job has failed and nobody takes more of it.

        Raises:
            StorageError: If that cannot be written.
        """
        current, self._current = self._current, None
        if failed:
            self._built_environment = None
            self._table.give_up(job.config.index)
        elif current is not None and not self._stop_requested():
            current.finish_pieces()

    def _assigned(self, claim: Claim) -> AssignedJob:
        """Return the job to run for the sake of a piece; if no episode of it is missing, its report may be."""
        divided = claim.divided
        supply = ClaimedEpisodes(
            claim,
            self._table,
            self._output_directory,
            self._attempt,
            is_over=partial(self._is_over, divided.job.config.name),
            begins=self._begins,
            clock=self._clock,
        )
        missing = supply.num_missing
        if claim.generation > 1:
            _LOG.info(
                "taking over a part of job '%s' from rank %s: %s",
                divided.job.config.name,
                "unknown" if claim.taken_from is None else claim.taken_from,
                "all of it" if missing is None else f"{missing} of its episodes are missing",
            )
        self._current = supply
        self._built_environment = divided.environment_key
        self._said_that_it_waits = False
        num_episodes = None if len(divided.pieces) > 1 else missing
        return AssignedJob(job=divided.job, supply=supply, num_episodes=num_episodes, observers=(supply,))

    def _others_at_work(self) -> bool:
        pieces = self._table.pieces_of_others()
        if pieces and not self._said_that_it_waits:
            _LOG.info("nothing is left to claim; waiting for other ranks, which work on %d pieces", pieces)
            self._said_that_it_waits = True
        return pieces > 0


class ClaimedEpisodes(Observer):
    """The episodes of a job that a rank claims piece by piece, as its env slots become free.

    It is an observer too: a piece is done when the last of its episodes has ended. It must be told after the
    recorder, so that a piece is done only when all of it is committed.

    Args:
        first: The piece for which the rank took up the job.
        table: What is known of the pieces of all jobs.
        output_directory: The run's directory.
        attempt: Which start of the program it is.
        is_over: Whether no further episode of the job is needed.
        begins: See `DynamicQueue`.
        clock: Monotonic time [s].
    """

    sees_pictures = False

    def __init__(
        self,
        first: Claim,
        table: Claims,
        output_directory: Path,
        attempt: Attempt,
        *,
        is_over: Callable[[], bool] = lambda: False,
        begins: Callable[[Claim, int, int], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._divided = first.divided
        self._is_over = is_over
        self._table = table
        self._output_directory = output_directory
        self._attempt = attempt
        self._clock = clock
        self._tell_begins = begins
        self._begins = [piece[0][0] for piece in self._divided.pieces if piece]
        self._round = first.divided.round_of(first.piece)
        self._is_alone = bool(first.suspects)
        self._num_slots = 1
        self._held: dict[int, _HeldPiece] = {}
        self._num_running = 0
        self._episodes, self._env_steps, self._since = 0, 0, clock()
        self._hold(first)

    @property
    def num_missing(self) -> int | None:
        """Episodes of the pieces claimed so far that have yet to end; None where they are not known."""
        if self._divided.pieces[0] is None:
            return None
        return sum(held.num_left for held in self._held.values())

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield those of the candidates that this rank has claimed or can claim; see `EpisodeSupply`.

        A piece that another rank has taken over meanwhile is dropped.

        Raises:
            StorageError: If a claim cannot be made.
        """
        for index in candidates:
            piece = self._piece_of(index)
            if piece is None:
                continue
            if self._divided.round_of(piece) != self._round:
                # The jobs that are compared with this one come first.
                continue
            if self.ends_early():
                return
            held = self._held.get(piece) or (None if self._is_alone else self._claim(piece))
            if held is None or index in held.finished:
                continue
            if self.still_holds(index):
                yield index
            elif self._divided.pieces[piece] is None:
                return

    def ends_early(self) -> bool:
        """Whether no further episode of the job is needed."""
        return self._is_over()

    def max_envs(self, num_envs: int) -> int:
        """Return how many env slots to use at once: all, or fewer where other ranks may help; see `slots_to_use`."""
        if self._is_alone:
            self._num_slots = 1
        elif len(self._divided.pieces) == 1:
            self._num_slots = num_envs
        else:
            self._num_slots = slots_to_use(
                num_envs,
                open_episodes=self._table.open_episodes(self._divided.index) + (self.num_missing or 0),
                world_size=self._attempt.world_size,
                unfinished_jobs=self._table.num_unfinished_jobs(),
            )
        return self._num_slots

    def begin(self, episode_index: int) -> None:
        """Say that an episode is about to begin; one that is to run alone is said alone, others some at a time."""
        held = self._held_piece_of(episode_index)
        episodes = None if held is None else self._divided.pieces[held.claim.piece]
        if held is None or not episodes or episode_index <= held.begun_to:
            return
        left = (index for begin, end in episodes for index in range(max(begin, episode_index), end))
        held.begun_to = max(islice((index for index in left if index not in held.finished), self._num_slots))
        self._tell_begins(held.claim, episode_index if self._is_alone else episodes[0][0], held.begun_to)

    def still_holds(self, episode_index: int) -> bool:
        """Whether an episode is still this rank's: nobody has taken its piece over."""
        held = self._held_piece_of(episode_index)
        if held is None or held.is_lost:
            return False
        if not self._table.holds(held.claim):
            held.is_lost = True
            _LOG.warning(
                "this rank was silent for too long: others took over a part of job '%s', and it leaves that to them",
                self._divided.job.config.name,
            )
        return not held.is_lost

    def finish_pieces(self) -> None:
        """Say that all claimed pieces are done: the job has come to its end on this rank.

        Raises:
            StorageError: If that cannot be written.
        """
        for piece in list(self._held):
            self._finish(piece)

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Count the episodes that begin; before the first one the environment was built, which is not measured."""
        del environment, observation
        if self._num_running == 0:
            self._since = self._clock()
        self._num_running += len(starts)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count one step of every running env slot."""
        del environment
        self._env_steps += transition.num_running

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Count the episode; the last one of a piece finishes it."""
        del environment
        self._num_running -= 1
        self._episodes += 1
        held = self._held_piece_of(record.episode.episode_index)
        if held is None or self._divided.pieces[held.claim.piece] is None:
            return
        held.num_left -= 1
        if held.num_left == 0:
            self._finish(held.claim.piece)

    def _piece_of(self, index: int) -> int | None:
        """Return the piece that an episode belongs to, None for one that was finished before this start."""
        pieces = self._divided.pieces
        if pieces[0] is None:
            return 0
        number = bisect_right(self._begins, index) - 1
        return number if number >= 0 and contain(pieces[number] or (), index) else None

    def _held_piece_of(self, index: int) -> "_HeldPiece | None":
        piece = self._piece_of(index)
        return None if piece is None else self._held.get(piece)

    def _claim(self, piece: int) -> "_HeldPiece | None":
        self._table.refresh()
        claim = self._table.claim(self._divided.index, piece)
        return None if claim is None else self._hold(claim)

    def _hold(self, claim: Claim) -> "_HeldPiece":
        committed = claim.committed or frozenset[int]()
        if claim.generation > 1 and claim.committed is None:
            # Errors of an earlier attempt may be there to run again.
            name = self._divided.job.config.name
            lines = read_commits(job_directory(self._output_directory, name), name).lines
            committed = frozenset(line.episode_index for line in lines if line.attempt == self._attempt.number)
        episodes = self._divided.pieces[claim.piece]
        if episodes is not None and claim.suspects:
            committed |= of_ranges(episodes) - claim.suspects
        if episodes is None:
            # A job limited by steps runs again as a whole: it does not ask which of its episodes are finished.
            held = _HeldPiece(claim=claim, finished=of_ranges(self._divided.finished) | committed, num_left=0)
        else:
            finished = of_ranges(episodes) & committed
            num_left = self._divided.num_episodes[claim.piece] - len(finished)
            held = _HeldPiece(claim=claim, finished=finished, num_left=num_left)
        self._held[claim.piece] = held
        return held

    def _finish(self, piece: int) -> None:
        held = self._held.pop(piece)
        now = self._clock()
        measured = Measured(episodes=self._episodes, env_steps=self._env_steps, seconds=round(now - self._since, 3))
        self._episodes, self._env_steps, self._since = 0, 0, now
        self._table.finish(held.claim, measured)


@dataclass(kw_only=True)
class _HeldPiece:
    """A claimed piece under way.

    Attributes:
        claim: The claim.
        finished: Episodes that must not run again: those that the rank before had committed.
        num_left: Episodes that have yet to end.
        begun_to: The last of its episodes that was said to begin, -1 if none was.
        is_lost: Whether another rank has taken it over.
    """

    claim: Claim
    finished: frozenset[int]
    num_left: int
    begun_to: int = -1
    is_lost: bool = False
