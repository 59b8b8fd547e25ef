"""The queues of a rank: of its jobs and of each job's episodes, settled before the start or claimed on the way."""

import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol

from isaaclab_arena.config.schema import Question
from isaaclab_arena.evaluation import heartbeat, planning
from isaaclab_arena.evaluation.claims import Claim, ClaimState, ClaimTable, Measured, slots_to_use
from isaaclab_arena.evaluation.job import Job, episode_of
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRanges, EpisodeRecord, contain, count_episodes, of_ranges
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.storage.ledger import Attempt

# A rank's work on a job: its episodes, handed out one at a time as env slots become free.


class Task(ABC):
    """A job, and its episodes that this rank is to run; by default no other rank can run them."""

    job: Job
    is_over: Callable[[], bool]  # the job needs no further episode; `take` asks before each
    observers: tuple[Observer, ...] = ()  # called after the episodes are committed

    @property
    def num_episodes(self) -> int | None:
        """The number of episodes, 0 if unknown; None if other ranks may finish the job."""
        return None

    @abstractmethod
    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield this rank's episodes among `candidates` (ascending, maybe endless). Each is claimed as it is taken."""

    def announced(self, indices: Iterable[int]) -> Iterator[Episode]:
        """Yield episodes by their indices, each after its announcement as it begins."""
        for index in indices:
            self.begin(index)
            yield episode_of(self.job, index)

    def max_envs(self, num_envs: int) -> int:
        """Return the number of the ``num_envs`` env slots to use at once; the others rest."""
        return num_envs

    def begin(self, episode_index: int) -> None:
        """Announce an episode whose env slot is reset next."""

    def still_holds(self, episode_index: int) -> bool:
        """Whether this rank may still commit an episode that it took."""
        del episode_index
        return True

    def leave(self) -> None:
        """Finish what this rank holds of the job."""


@dataclass(frozen=True, kw_only=True)
class FixedShare(Task):
    """A fixed set of episodes: all that are neither finished nor another rank's, until the job needs no more."""

    job: Job
    finished: EpisodeRanges = ()  # not to be run again
    share: EpisodeRanges | None = None  # of this rank, None for all
    # The job needs no further episode; those that have begun are finished.
    is_over: Callable[[], bool] = lambda: False

    @property
    def num_episodes(self) -> int:
        """The number of episodes of the share, 0 if unknown."""
        return count_episodes(self.share or ())

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield the candidates that are this rank's and not finished, until the job is over."""
        finished = of_ranges(self.finished)
        share = None if self.share is None else of_ranges(self.share)
        if share is not None:
            end = max(share, default=-1)
            candidates = takewhile(lambda index: index <= end, candidates)
        left = (index for index in candidates if index not in finished and (share is None or index in share))
        # Asked also if nothing is left: the job may fail by the errors of earlier attempts.
        while not self.is_over() and (index := next(left, None)) is not None:
            yield index


# The queue from which a rank takes its jobs, and the queue of jobs that are assigned before the start.


@dataclass(eq=False)
class FixedQueue:
    """Jobs that were assigned before the start, in order; an interleaved job is there once for each round."""

    tasks: list[FixedShare]
    is_over: Callable[[str], bool] = lambda _: False  # job name -> it needs no further episode
    shares_jobs: bool = False  # whether other ranks play episodes of the same jobs
    _handed_out: set[str] = field(default_factory=set, init=False)
    _failed: set[str] = field(default_factory=set, init=False)

    def first_status(self, rank: int, run_id: str) -> heartbeat.RankStatus:
        """Return the status of the rank before its first job."""
        total = 0 if self.shares_jobs else len({task.job.config.name for task in self.tasks})
        episodes = sum(task.num_episodes for task in self.tasks)
        return heartbeat.RankStatus(rank=rank, run_id=run_id, jobs_total=total, episodes_total=episodes)

    def next_job(self) -> FixedShare | None:
        """Return the next job that has something left to do, None at the end."""
        while self.tasks:
            task = self.tasks.pop(0)
            name = task.job.config.name
            # The first round of a job is never left out: the job may owe its report.
            if name not in self._handed_out:
                self._handed_out.add(name)
                return task
            if name not in self._failed and not self.is_over(name):
                return task
        return None

    def job_ended(self, task: Task, *, failed: bool) -> None:
        """Leave out the remaining rounds of a job that failed."""
        if failed:
            self._failed.add(task.job.config.name)


def jobs_of_rank(
    jobs: Sequence[Job],
    attempt: Attempt,
    assignment: Assignment,
    *,
    rank: int,
    questions: tuple[Question, ...] = (),
    is_over: Callable[[str], bool] = lambda _: False,  # job name -> it needs no further episode
) -> list[FixedShare]:
    """Assign a rank its jobs before the start; every rank computes the same assignment."""
    interleaved, work = planning.interleaved_jobs(jobs, questions), planning.remaining_by_job(jobs, attempt)
    first_ranks = planning.first_ranks(assignment, jobs, questions, attempt.world_size)

    # Jobs that a question compares take turns, round by round; any other job has a single round. A turn: the first of
    # the jobs that take turns, the round, the job, and its episodes in the round.
    turns: list[tuple[int, int, int, EpisodeRanges | None]] = []
    for index, left in work.items():
        members = [member for member in interleaved.get(index, (index,)) if member in work]
        rounds: dict[int, EpisodeRanges | None] = {0: left}
        if left and index in interleaved:
            # A round has an episode of each job for every env slot of the ranks that share it.
            size = max(jobs[member].config.num_envs for member in members)
            rounds = {**planning.rounds_of(left, size * attempt.world_size if assignment.shares_jobs else size)}
        elif not left:
            # A job whose episodes have all finished comes first: it may still owe its report.
            rounds = {-1: left}
        turns += [(members[0], number, index, episodes) for number, episodes in rounds.items()]

    tasks: list[FixedShare] = []
    for _, _, index, episodes in sorted(turns, key=lambda turn: turn[:3]):
        job, share, is_assigned = jobs[index], episodes, rank == first_ranks[index]
        if assignment.shares_jobs and episodes:
            share = planning.split_shares(episodes, attempt.world_size, first_rank=first_ranks[index])[rank]
            is_assigned = bool(share)
        if is_assigned:
            finished, over = attempt.state(job.config.name).finished, partial(is_over, job.config.name)
            tasks.append(FixedShare(job=job, finished=finished, share=share, is_over=over))
    return tasks


# Give a rank jobs whose episodes it claims as it goes: idle ranks take over unfinished episodes of others.
#
# Every rank cuts the jobs into the same pieces. A file in the claim table settles which rank runs a piece. No rank
# asks another one, so the ranks that are left finish the run, including the work of a dead rank.

_LOG = logging.getLogger(__name__)


class Claims(Protocol):
    """The claims of all ranks, as one rank sees them, at most a second old; see `ClaimTable`."""

    jobs: Mapping[int, planning.DividedJob]  # by index

    def claim_next(self, built_environment: str | None) -> Claim | None:
        """Claim a piece of the next job, None if there is no free piece."""

    def claim(self, job_index: int, piece: int) -> Claim | None:
        """Claim this piece, None if it is not free."""

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Announce episodes that may run from now on, by the first and last index; they are suspected if it dies."""

    def holds(self, claim: Claim) -> bool:
        """Whether no other rank has taken the piece over."""
        ...

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Record that a piece is finished."""

    def give_up(self, job_index: int) -> None:
        """Record that a job has failed."""

    def state(self, job_index: int | None = None) -> ClaimState:
        """Return the state of the claims, with the open pieces of a job, or with the number of pieces of others."""
        ...


@dataclass(eq=False)
class DynamicQueue:
    """The jobs that a rank claims, one after the other, until nothing is left for any rank."""

    claims: Claims
    _: KW_ONLY
    world_size: int
    stop_requested: Callable[[], bool] = lambda: False  # True ends the wait for other ranks
    is_over: Callable[[str], bool] = lambda _: False  # job name -> it needs no further episode
    rest_s: float = 0.5  # between two looks for a free piece
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic  # monotonic [s]
    _built_environment: str | None = field(default=None, init=False)
    _has_logged_wait: bool = field(default=False, init=False)

    def first_status(self, rank: int, run_id: str) -> heartbeat.RankStatus:
        """Return the status of the rank before its first job."""
        # The assignment is open. The display adds up the ranks' numbers, so each rank states an even part.
        total = sum(sum(divided.num_episodes) for divided in self.claims.jobs.values())
        part = len(range(rank, total, self.world_size))
        return heartbeat.RankStatus(rank=rank, run_id=run_id, episodes_total=part)

    def next_job(self) -> "ClaimedEpisodes | None":
        """Claim a job, or wait while other ranks work. None if all jobs are done or failed, or on a stop request."""
        while True:
            if self.stop_requested():
                return None
            claim = self.claims.claim_next(self._built_environment)
            if claim is not None:
                break
            # Pieces that other ranks hold may become free, so this rank stays as long as there are any.
            pieces = self.claims.state().pieces_of_others
            if not pieces:
                return None
            if not self._has_logged_wait:
                _LOG.info("no work is left to claim; waiting for other ranks, which work on %d pieces", pieces)
                self._has_logged_wait = True
            left_s = self.rest_s
            while left_s > 0 and not self.stop_requested():
                self.pause(min(left_s, 0.5))
                left_s -= 0.5

        # If none of the piece's episodes is missing, the job may still owe its report.
        divided = self.claims.jobs[claim.job_index]
        is_over = partial(self.is_over, divided.job.config.name)
        task = ClaimedEpisodes(claim, self.claims, world_size=self.world_size, is_over=is_over, clock=self.clock)
        if claim.generation > 1:
            missing = None if divided.pieces[0] is None else sum(held.num_left for held in task.held.values())
            _LOG.info(
                "taking over a part of job '%s' from rank %s: %s",
                divided.job.config.name,
                "unknown" if claim.taken_from is None else claim.taken_from,
                "all of it" if missing is None else f"{missing} of its episodes are missing",
            )
        self._built_environment = divided.job.environment_key
        self._has_logged_wait = False
        return task

    def job_ended(self, task: Task, *, failed: bool) -> None:
        """Finish the pieces of the job that the rank leaves, or give the job up for all ranks if it failed."""
        if failed:
            self._built_environment = None
            self.claims.give_up(task.job.config.index)
        elif not self.stop_requested():
            task.leave()


class ClaimedEpisodes(Task, Observer):
    """The episodes of a job that a rank claims piece by piece, as its env slots become free."""

    # It is an observer too: a piece is done when the last of its episodes has ended. It must come after the recorder,
    # so that a piece is done only when all of it is committed.
    sees_pictures = False

    def __init__(
        self,
        first: Claim,
        claims: Claims,
        *,
        world_size: int,
        is_over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_index = first.job_index
        self._divided = claims.jobs[first.job_index]
        self.job, self.observers = self._divided.job, (self,)
        self.is_over = is_over  # no further episode of the job is needed
        self._claims = claims
        self._world_size = world_size
        self._clock = clock
        # First episode of each piece, to find the piece of an episode by bisection.
        self._begins = [piece[0][0] for piece in self._divided.pieces if piece]
        self._round = self._divided.rounds[first.piece]
        # Episodes under suspicion of ending a rank run one at a time.
        self._is_alone = bool(first.suspects)
        self._num_slots = 1
        self.held: dict[int, _HeldPiece] = {}
        self._num_running = 0
        self._episodes, self._env_steps, self._since = 0, 0, clock()
        self._hold(first)

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield the candidates that this rank has claimed or can claim; see `Task`."""
        for index in candidates:
            piece = self._piece_of(index)
            if piece is None:
                continue
            if self._divided.rounds[piece] != self._round:
                # The jobs that are compared with this one come first.
                continue
            if self.is_over():
                return
            held = self.held.get(piece)
            if held is None and not self._is_alone:
                claim = self._claims.claim(self._job_index, piece)
                held = None if claim is None else self._hold(claim)
            if held is None or index in held.finished:
                continue
            # A piece that another rank has taken over meanwhile is dropped.
            if self.still_holds(index):
                yield index
            elif self._divided.pieces[piece] is None:
                return

    def max_envs(self, num_envs: int) -> int:
        """Return the number of env slots to use: all, or fewer if other ranks may help; see `slots_to_use`."""
        if self._is_alone:
            self._num_slots = 1
        elif len(self._divided.pieces) == 1:
            self._num_slots = num_envs
        else:
            state = self._claims.state(self._job_index)
            is_open = sum(self._divided.num_episodes[piece] for piece in of_ranges(state.open_pieces))
            self._num_slots = slots_to_use(
                num_envs,
                open_episodes=is_open + sum(held.num_left for held in self.held.values()),
                world_size=self._world_size,
                unfinished_jobs=state.num_unfinished_jobs,
            )
        return self._num_slots

    def begin(self, episode_index: int) -> None:
        """Announce episodes about to begin: one if it must run alone, else as many as there are env slots."""
        held = self._held_piece_of(episode_index)
        episodes = None if held is None else self._divided.pieces[held.claim.piece]
        if held is None or not episodes or episode_index <= held.announced_to:
            return
        left = (index for begin, end in episodes for index in range(max(begin, episode_index), end))
        held.announced_to = max(islice((index for index in left if index not in held.finished), self._num_slots))
        self._claims.begin(held.claim, episode_index if self._is_alone else episodes[0][0], held.announced_to)

    def still_holds(self, episode_index: int) -> bool:
        """Whether no other rank has taken over the piece of this episode."""
        held = self._held_piece_of(episode_index)
        if held is None or held.is_lost:
            return False
        if not self._claims.holds(held.claim):
            held.is_lost = True
            _LOG.warning(
                "this rank was silent for too long, so others took over a part of job '%s'",
                self._divided.job.config.name,
            )
        return not held.is_lost

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Count the episodes that begin, and start the clock with the first: building is not measured."""
        del environment, observation
        if self._num_running == 0:
            self._since = self._clock()
        self._num_running += len(starts)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add one step for each running env slot."""
        del environment
        self._env_steps += transition.num_running

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Count the episode, and finish its piece if it was the last one."""
        del environment
        self._num_running -= 1
        self._episodes += 1
        held = self._held_piece_of(record.episode.episode_index)
        if held is None or self._divided.pieces[held.claim.piece] is None:
            return
        held.num_left -= 1
        if held.num_left == 0:
            self.finish(held.claim.piece)

    def _piece_of(self, index: int) -> int | None:
        """Return the piece of an episode, None if the episode finished before this attempt."""
        pieces = self._divided.pieces
        if pieces[0] is None:
            return 0
        number = bisect_right(self._begins, index) - 1
        return number if number >= 0 and contain(pieces[number] or (), index) else None

    def _held_piece_of(self, index: int) -> "_HeldPiece | None":
        piece = self._piece_of(index)
        return None if piece is None else self.held.get(piece)

    def _hold(self, claim: Claim) -> "_HeldPiece":
        committed, episodes = of_ranges(claim.committed), self._divided.pieces[claim.piece]
        if episodes is not None and claim.suspects:
            committed |= of_ranges(episodes) - of_ranges(claim.suspects)
        if episodes is None:
            # A job limited by steps runs again as a whole: it does not ask which of its episodes are finished.
            held = _HeldPiece(claim=claim, finished=of_ranges(self._divided.finished) | committed, num_left=0)
        else:
            finished = of_ranges(episodes) & committed
            num_left = self._divided.num_episodes[claim.piece] - len(finished)
            held = _HeldPiece(claim=claim, finished=finished, num_left=num_left)
        self.held[claim.piece] = held
        return held

    def finish(self, piece: int) -> None:
        """Finish a claimed piece: its last episode has ended on this rank."""
        held = self.held.pop(piece)
        now = self._clock()
        measured = Measured(episodes=self._episodes, env_steps=self._env_steps, seconds=round(now - self._since, 3))
        self._episodes, self._env_steps, self._since = 0, 0, now
        self._claims.finish(held.claim, measured)

    def leave(self) -> None:
        """Finish all claimed pieces: the whole job has ended on this rank."""
        for piece in list(self.held):
            self.finish(piece)


@dataclass(kw_only=True)
class _HeldPiece:
    """A claimed piece under way."""

    claim: Claim
    finished: frozenset[int]  # committed by the previous holder; must not run again
    num_left: int  # episodes that have not ended
    announced_to: int = -1  # last episode that was announced, -1 if none
    is_lost: bool = False  # whether another rank has taken it over


# Give a rank the queue of its jobs, assigned before the start or claimed on the way.


def queue_of_rank(
    request: planning.RunRequest,
    attempt: Attempt,
    answers: planning.AnswerWatch,
    *,
    output_directory: Path,
    rank: int,
    stop_requested: Callable[[], bool],
) -> FixedQueue | DynamicQueue:
    """Return the rank's queue; `StorageError` if claims cannot be made in the run's directory."""
    options, assignment = request.options, request.options.mode
    if not assignment.claims:
        tasks = jobs_of_rank(
            request.jobs, attempt, assignment, rank=rank, questions=request.questions, is_over=answers.checked_is_over
        )
        return FixedQueue(tasks, partial(answers.is_over, now=True), shares_jobs=assignment.shares_jobs)
    table = ClaimTable(
        planning.divided_jobs(request.jobs, attempt, request.questions),
        output_directory,
        attempt,
        heartbeat.RankWatch(output_directory, world_size=attempt.world_size, run_id=attempt.run_id),
        rank=rank,
        lease_s=options.lease_s,
        is_over=answers.is_over,
    )
    size = attempt.world_size
    return DynamicQueue(table, world_size=size, stop_requested=stop_requested, is_over=answers.checked_is_over)
