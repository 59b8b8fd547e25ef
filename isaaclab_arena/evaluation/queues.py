"""The queue from which a rank takes its jobs: settled before the start, or claimed on the way."""

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from isaaclab_arena.config.schema import Question
from isaaclab_arena.episode_ranges import EpisodeRanges, contain, count_episodes, of_ranges, remaining_episodes
from isaaclab_arena.evaluation.claims import (
    Claim,
    ClaimTable,
    Measured,
    divided_jobs,
    slots_to_use,
    split_shares,
    unfinished,
)
from isaaclab_arena.evaluation.heartbeat import RankWatch
from isaaclab_arena.evaluation.job import EpisodeSupply, FixedShare, Job, UntilOver
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.evaluation.planning import (
    RunRequest,
    answer_watch,
    home_index,
    jobs_taking_turns,
    round_size,
    rounds_of,
)
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.results.commit_watch import AnswerWatch
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.layout import CLAIMS_DIRECTORY, attempt_file_name, job_directory
from isaaclab_arena.storage.run_plan import Attempt

# The queue from which a rank takes its jobs, and the queue of jobs that are settled before the start.


@dataclass(frozen=True, kw_only=True)
class AssignedJob:
    """A job that this rank is to work on.

    Attributes:
        job: The job.
        supply: Which of its episodes.
        num_episodes: How many those are, None where that is not known beforehand.
        observers: Have to be told what becomes of the episodes, after they are committed.
    """

    job: Job
    supply: EpisodeSupply
    num_episodes: int | None
    observers: tuple[Observer, ...] = ()


class JobQueue(Protocol):
    """The jobs of one rank, one after the other."""

    def next_job(self) -> AssignedJob | None:
        """Return what to do next, None when nothing is left for this rank. May wait for other ranks."""
        ...

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Say that the rank has left the job it was given last."""
        ...


class FixedQueue:
    """Jobs that were assigned before the start.

    Args:
        assigned: The jobs, in order; a job that takes turns with others is there once for each of its turns.
        is_over: Whether no further episode of a job is needed, by its name.
    """

    def __init__(self, assigned: Iterable[AssignedJob], is_over: Callable[[str], bool] = lambda _: False) -> None:
        self._pending = iter(assigned)
        self._is_over = is_over
        self._begun: set[str] = set()
        self._failed: set[str] = set()

    def next_job(self) -> AssignedJob | None:
        """Return the next job that has something left to do, None at the end.

        The first turn of a job is never left out: the job may owe its report.
        """
        for assigned in self._pending:
            name = assigned.job.config.name
            if name not in self._begun:
                self._begun.add(name)
                return assigned
            if name not in self._failed and not self._is_over(name):
                return assigned
        return None

    def job_ended(self, job: Job, *, failed: bool) -> None:
        """Leave out the other turns of a job that has failed."""
        if failed:
            self._failed.add(job.config.name)


def jobs_of_rank(
    jobs: Sequence[Job],
    attempt: Attempt,
    *,
    rank: int,
    split: bool,
    questions: tuple[Question, ...] = (),
) -> list[AssignedJob]:
    """Return what a rank has to do where that is settled before the start; every rank settles it alike.

    Args:
        jobs: Every job of the run.
        attempt: What is left to do, and how many ranks share it.
        rank: Which rank.
        split: Whether all ranks share each job whose length is known. Otherwise rank ``r`` has the jobs with
            ``job_index % world_size == r``.
        questions: What is asked of the jobs. Those that are compared are on the same rank and take turns.
    """
    turns, left = jobs_taking_turns(jobs, questions), unfinished(jobs, attempt)
    assigned = []
    for index, finished in left.items():
        members = [member for member in turns.get(index, ()) if member in left]
        placed = _Placed(
            rank=rank,
            first_rank=home_index(index, turns) % attempt.world_size,
            world_size=attempt.world_size,
            split=split,
        )
        if not members:
            assigned += _whole_job(jobs[index], finished, placed)
        elif index == members[0]:
            assigned += _turns(jobs, {member: left[member] for member in members}, placed)
    return assigned


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """Where jobs run.

    Attributes:
        rank: The rank in question.
        first_rank: The rank that runs them, or has the first share.
        world_size: Number of ranks.
        split: Whether all ranks share them.
    """

    rank: int
    first_rank: int
    world_size: int
    split: bool

    def share_of(self, episodes: EpisodeRanges) -> EpisodeRanges:
        """Return which of the episodes the rank runs."""
        if self.split and episodes:
            return split_shares(episodes, self.world_size, first_rank=self.first_rank)[self.rank]
        return episodes if self.rank == self.first_rank else ()


def _whole_job(job: Job, finished: EpisodeRanges, placed: _Placed) -> Iterator[AssignedJob]:
    """Yield what a rank has to do of a job that takes no turns."""
    num_episodes = job.config.num_episodes
    left = () if num_episodes is None else remaining_episodes(num_episodes, finished)
    if placed.split and left:
        share = placed.share_of(left)
        if share:
            yield _assigned(job, finished, share, count_episodes(share))
    elif placed.rank == placed.first_rank:
        # Also a job whose episodes have all finished: it may still owe its report.
        yield _assigned(job, finished, None, None if num_episodes is None else count_episodes(left))


def _turns(jobs: Sequence[Job], group: Mapping[int, EpisodeRanges], placed: _Placed) -> Iterator[AssignedJob]:
    """Yield what a rank has to do of jobs that take turns: of each one what it has in a round, then the next round.

    Args:
        jobs: Every job of the run.
        group: The finished episodes of those that take turns, by their index.
        placed: Whether all ranks share each round; otherwise one rank runs them all.
    """
    size = round_size((jobs[index] for index in group), num_ranks=placed.world_size if placed.split else 1)
    left = {index: remaining_episodes(jobs[index].config.num_episodes or 0, done) for index, done in group.items()}
    rounds = {index: rounds_of(remaining, size) for index, remaining in left.items()}
    for index, remaining in left.items():
        if not remaining and placed.rank == placed.first_rank:
            yield _assigned(jobs[index], group[index], (), 0)
    for number in sorted({number for each in rounds.values() for number in each}):
        for index, each in rounds.items():
            share = placed.share_of(each.get(number, ()))
            if share:
                yield _assigned(jobs[index], (), share, count_episodes(share))


def _assigned(job: Job, finished: EpisodeRanges, share: EpisodeRanges | None, num_episodes: int | None) -> AssignedJob:
    return AssignedJob(job=job, supply=FixedShare(finished=finished, share=share), num_episodes=num_episodes)


# Gives a rank jobs whose episodes it claims as it goes: idle ranks take over unfinished episodes of others.
#
# Every rank cuts the jobs into the same pieces. A file in the claim table settles who runs a piece. No rank asks
# another one, so whichever ranks are left finish the run, also what a dead rank has begun.

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


# Gives a rank the queue of its jobs, whether they are settled before the start or claimed on the way.


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """The work of one rank.

    Attributes:
        queue: Its jobs, one after the other.
        num_jobs: How many it runs; 0 where ranks share jobs.
        num_episodes: How many episodes, as far as known.
        stalled_after_s: After how much silence [s] a rank is not waited for at the end; None to wait however long.
        others_may_finish_jobs: Whether other ranks finish what a dead one has begun.
        observers: Have to be told what becomes of the episodes of every job, after they are committed.
        fails: Whether a job that the rank has left fails by the errors of its episodes.
    """

    queue: JobQueue
    num_jobs: int
    num_episodes: int
    stalled_after_s: float | None = None
    others_may_finish_jobs: bool = False
    observers: tuple[Observer, ...] = ()
    fails: Callable[[Job], bool] = lambda _: False


def work_of_rank(
    request: RunRequest,
    attempt: Attempt,
    *,
    output_directory: Path,
    rank: int,
    stop_requested: Callable[[], bool],
) -> RankWork:
    """Return what a rank has to do.

    Args:
        request: What the run is to do.
        attempt: What of it is left.
        output_directory: The run's directory.
        rank: Which rank.
        stop_requested: Whether this rank was told to stop.

    Raises:
        StorageError: If claims cannot be made in the run's directory.
    """
    options = request.options
    finished = {work.job: work.finished for work in attempt.jobs}
    watch = answer_watch(
        output_directory,
        request.questions,
        finished,
        attempt=attempt.number,
        max_equal_errors=options.max_equal_errors,
    )
    if options.mode is Assignment.DYNAMIC:
        table = _claim_table(request, attempt, output_directory, rank, watch.is_over)
        return RankWork(
            queue=DynamicQueue(
                table,
                output_directory,
                attempt,
                stop_requested=stop_requested,
                is_over=watch.lets_stop,
            ),
            # Who will run what is open; the display adds up what ranks say, so each says its even part.
            num_jobs=0,
            num_episodes=len(range(rank, table.num_episodes, attempt.world_size)),
            stalled_after_s=options.lease_s,
            others_may_finish_jobs=True,
            observers=(watch,),
            fails=partial(_fails, watch),
        )
    return _settled_work(request, attempt, rank, watch)


def _settled_work(request: RunRequest, attempt: Attempt, rank: int, watch: AnswerWatch) -> RankWork:
    """Return the work of a rank where that is settled before the start."""
    split = request.options.mode is Assignment.SPLIT
    assigned = jobs_of_rank(request.jobs, attempt, rank=rank, split=split, questions=request.questions)
    num_jobs = len({each.job.config.name for each in assigned})
    return RankWork(
        queue=FixedQueue([_until_over(each, watch) for each in assigned], partial(watch.is_over, now=True)),
        num_jobs=0 if split else num_jobs,
        num_episodes=sum(each.num_episodes or 0 for each in assigned),
        observers=(watch,),
        fails=partial(_fails, watch),
    )


def _until_over(assigned: AssignedJob, watch: AnswerWatch) -> AssignedJob:
    supply = UntilOver(supply=assigned.supply, is_over=partial(watch.lets_stop, assigned.job.config.name))
    return replace(assigned, supply=supply)


def _fails(watch: AnswerWatch, job: Job) -> bool:
    return watch.fails(job.config.name, job.config.num_episodes)


def _claim_table(
    request: RunRequest, attempt: Attempt, output_directory: Path, rank: int, is_over: Callable[[str], bool]
) -> ClaimTable:
    return ClaimTable(
        divided_jobs(request.jobs, attempt, request.questions),
        claims_directory(output_directory, attempt),
        RankWatch(output_directory, world_size=attempt.world_size, run_id=attempt.run_id),
        rank=rank,
        run_id=attempt.run_id,
        lease_s=request.options.lease_s,
        is_over=is_over,
    )


def claims_directory(output_directory: Path, attempt: Attempt) -> Path:
    """Return where the claims of an attempt lie."""
    return output_directory / CLAIMS_DIRECTORY / Path(attempt_file_name(attempt.number)).stem
