"""A simulated cluster, whose ranks start late, die with their node, come back, and claim jobs from one table.

No process, no file, no physics. The functions of real ranks decide on every claim.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isaaclab_arena.evaluation.claims import Measured, Measurements, OpenWork, choose, expected_s, order_of_work
from isaaclab_arena.evaluation.cluster.claim_server import interval_s
from isaaclab_arena.evaluation.planning import pieces_of
from isaaclab_arena.interfaces.episode import EpisodeRanges, count_episodes


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job with known durations of all episodes [s]."""

    environment: str
    episode_s: np.ndarray

    @property
    def episodes(self) -> EpisodeRanges:
        """All of its episodes."""
        return ((0, len(self.episode_s)),)

    @cached_property
    def total_s(self) -> float:
        """Time of one rank for all of it [s]."""
        return float(self.episode_s.sum())

    def seconds(self, ranges: EpisodeRanges) -> float:
        """Return the duration of some episodes [s]."""
        return float(sum(self.episode_s[begin:end].sum() for begin, end in ranges))


Jobs = Sequence[SimulatedJob]


def drawn_jobs(numbers: np.ndarray, lengths_s: np.ndarray, generator: np.random.Generator) -> list[SimulatedJob]:
    """Return jobs with log-normal episodes. Two in sequence share an environment, like two policies on one task."""
    return [
        SimulatedJob(
            environment=f"environment {index // 2}", episode_s=length_s * generator.lognormal(sigma=0.3, size=number)
        )
        for index, (number, length_s) in enumerate(zip(numbers, lengths_s, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Episodes of a job that a rank runs without asking again."""

    job_index: int
    episodes: EpisodeRanges


class SimulatedClaims:
    """The knowledge of the ranks about the jobs, and the claims of each."""

    def __init__(self, jobs: Jobs, num_ranks: int) -> None:
        total = sum(len(job.episode_s) for job in jobs)
        self._jobs = jobs
        self._free = [deque(pieces_of(job.episodes, total_remaining=total, world_size=num_ranks)) for job in jobs]
        self._num_open = [len(job.episode_s) for job in jobs]
        self._measurements = Measurements({index: job.environment for index, job in enumerate(jobs)})
        self._job_of: dict[int, int] = {}
        self._num_ranks_at = [0] * len(jobs)
        self._built: dict[int, str] = {}
        self.num_builds = 0

    def built_environment(self, rank: int) -> str | None:
        """Return the environment that a rank has built for the piece that it claimed last."""
        return self._built.get(rank)

    def next_piece(self, rank: int) -> Piece | None:
        """Return the next piece of the job that a rank works on, else one of the job that comes next, None if none."""
        index = self._leave(rank)
        if index is None or not self._free[index]:
            index = self._next_job(self._built.get(rank))
        if index is None:
            return None
        self._job_of[rank] = index
        self._num_ranks_at[index] += 1
        environment = self._jobs[index].environment
        self.num_builds += self._built.get(rank) != environment
        self._built[rank] = environment
        piece = Piece(job_index=index, episodes=self._free[index].popleft())
        self._num_open[index] -= count_episodes(piece.episodes)
        return piece

    def done(self, piece: Piece, seconds: float) -> None:
        """Note the duration of episodes [s]."""
        measured = Measured(episodes=count_episodes(piece.episodes), env_steps=0, seconds=seconds)
        self._measurements.add(piece.job_index, measured)

    def forget(self, rank: int) -> None:
        """Note that a rank has died, and its environment with it."""
        self._leave(rank)
        self._built.pop(rank, None)

    def give_back(self, piece: Piece) -> None:
        """Free the episodes of a piece that a dead rank had not finished."""
        self._free[piece.job_index].appendleft(piece.episodes)
        self._num_open[piece.job_index] += count_episodes(piece.episodes)

    def _leave(self, rank: int) -> int | None:
        index = self._job_of.pop(rank, None)
        if index is not None:
            self._num_ranks_at[index] -= 1
        return index

    def _next_job(self, built: str | None) -> int | None:
        order = order_of_work(
            [
                OpenWork(
                    job_index=index,
                    expected_s=expected_s(self._measurements.of(index), episodes=self._num_open[index]),
                    piece_s=expected_s(self._measurements.of(index), episodes=count_episodes(pieces[0])),
                    num_ranks=self._num_ranks_at[index],
                    environment_key=self._jobs[index].environment,
                )
                for index, pieces in enumerate(self._free)
                if pieces
            ]
        )
        return order[choose(order, built)].job_index if order else None


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Properties of a cluster."""

    num_ranks: int = 1000  # Ranks, each with a GPU.
    ranks_per_node: int = 8  # Ranks that die together with their node.
    joining_s: float = 60.0  # Nodes join evenly spread over this long [s].
    start_up_s: float = 30.0  # Median time from a node's joining to a rank's first claim [s]; log-normal, sigma 0.5.
    build_s: float = 15.0  # Time to build an environment [s].
    failures_per_gpu_day: float = 0.0  # Failures that take a node with them.
    replaced_after_s: float = 600.0  # Time until a node replaces a failed one [s].
    give_back_s: float = 30.0  # Time until unfinished episodes are free again after a failure [s].
    # Time of the claim table for an episode, its commit and its share of a claim [s].
    service_s: float = 0.0005
    # Time of the claim table for a heartbeat, or for a question of an idle rank [s].
    word_s: float = 0.0

    @property
    def busy_with_words(self) -> float:
        """Share of the time in which the claim table is busy with heartbeats and questions of idle ranks."""
        return self.num_ranks * self.word_s * 2 / interval_s(self.num_ranks)


@dataclass(frozen=True, kw_only=True)
class ClusterOutcome:
    """A simulated run."""

    makespan_s: float  # Commit of the last episode [s].
    lower_bound_s: float  # Lower bound of every order of the work [s]; see `lower_bound_s`.
    begun_by_s: float  # Begin of the last episode [s].
    num_failures: int  # Failed nodes.
    num_episodes_lost: int  # Episodes under way that a failure ended; they ran again.
    longest_wait_s: float  # Longest time that a rank waited for the claim table [s].
    table_busy: float  # Share of the time in which the claim table was busy.
    num_builds: int  # Environments built on all ranks.
    num_committed: int  # Episodes committed.

    @property
    def over_bound(self) -> float:
        """The makespan over its lower bound."""
        return self.makespan_s / self.lower_bound_s


def simulate(jobs: Jobs, options: ClusterOptions, generator: np.random.Generator) -> ClusterOutcome:
    """Run jobs on a cluster to their end."""
    return _Cluster(jobs, options, generator).run()


@dataclass(kw_only=True)
class _Rank:
    """The state of a rank."""

    life: int = 0  # Number of its deaths: events of an earlier life do not happen.
    present_since: float | None = None  # Its start, None while it is away [s].
    piece: Piece | None = None  # Its piece, None if it is idle.
    begun_at: float = 0.0  # Begin of the piece, with its environment built [s].


class _Cluster:
    """A cluster under way, event by event."""

    def __init__(self, jobs: Jobs, options: ClusterOptions, generator: np.random.Generator) -> None:
        self._jobs = jobs
        self._options = options
        self._generator = generator
        self._claims = SimulatedClaims(jobs, options.num_ranks)
        self._ranks = [_Rank() for _ in range(options.num_ranks)]
        self._idle: set[int] = set()
        self._left = sum(len(job.episode_s) for job in jobs)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._table_free_at = self._table_busy_s = self._longest_wait_s = self._makespan_s = 0.0
        self._begun_by_s = self._lost_s = 0.0
        self._presences: list[tuple[float, float]] = []
        self._num_failures = self._num_lost = self._num_committed = 0

    def run(self) -> ClusterOutcome:
        """Run until every episode is committed."""
        options = self._options
        num_nodes = -(-options.num_ranks // options.ranks_per_node)
        for node in range(num_nodes):
            self._join(options.joining_s * node / num_nodes, node)
        self._plan_failure(0.0)
        while self._left:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)
        present = [(rank.present_since, np.inf) for rank in self._ranks if rank.present_since is not None]
        return ClusterOutcome(
            makespan_s=self._makespan_s,
            lower_bound_s=lower_bound_s(
                self._jobs, [*self._presences, *present], build_s=options.build_s, lost_s=self._lost_s
            ),
            begun_by_s=self._begun_by_s,
            num_failures=self._num_failures,
            num_episodes_lost=self._num_lost,
            longest_wait_s=self._longest_wait_s,
            table_busy=self._table_busy_s / self._makespan_s + options.busy_with_words,
            num_builds=self._claims.num_builds,
            num_committed=self._num_committed,
        )

    def _at(self, at_s: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))

    def _of_node(self, node: int) -> range:
        size = self._options.ranks_per_node
        return range(node * size, min((node + 1) * size, self._options.num_ranks))

    def _join(self, at_s: float, node: int) -> None:
        def start(now_s: float, rank: int) -> None:
            self._ranks[rank].present_since = now_s
            self._ask(now_s, rank, num_episodes=1)

        for rank in self._of_node(node):
            start_up_s = self._options.start_up_s * self._generator.lognormal(sigma=0.5)
            self._in_life(rank, at_s + start_up_s, start)

    def _in_life(self, rank: int, at_s: float, happen: Callable[[float, int], None]) -> None:
        life = self._ranks[rank].life

        def unless_dead(now_s: float) -> None:
            if self._ranks[rank].life == life:
                happen(now_s, rank)

        self._at(at_s, unless_dead)

    def _ask(self, now_s: float, rank: int, *, num_episodes: int) -> None:
        """Let the claim table take the commits of a rank and answer its claim, after earlier questions."""
        # Heartbeats and questions take their share of the time, so everything else takes longer.
        service_s = self._options.service_s * num_episodes / max(0.01, 1 - self._options.busy_with_words)
        answered_at = max(now_s, self._table_free_at) + service_s
        self._table_free_at = answered_at
        self._table_busy_s += self._options.service_s * num_episodes
        self._longest_wait_s = max(self._longest_wait_s, answered_at - now_s)
        built = self._claims.built_environment(rank)
        piece = self._claims.next_piece(rank)
        state = self._ranks[rank]
        state.piece = piece
        if piece is None:
            self._idle.add(rank)
            return
        builds = self._claims.built_environment(rank) != built
        state.begun_at = answered_at + self._options.build_s * builds
        last = self._jobs[piece.job_index].episode_s[piece.episodes[-1][1] - 1]
        ends_at = state.begun_at + self._jobs[piece.job_index].seconds(piece.episodes)
        self._begun_by_s = max(self._begun_by_s, ends_at - float(last))
        self._in_life(rank, ends_at, self._end)

    def _end(self, now_s: float, rank: int) -> None:
        state = self._ranks[rank]
        assert state.piece is not None
        self._commit(now_s, state.piece.job_index, state.piece.episodes, now_s - state.begun_at)
        self._ask(now_s, rank, num_episodes=count_episodes(state.piece.episodes))

    def _commit(self, now_s: float, job_index: int, episodes: EpisodeRanges, seconds: float) -> None:
        self._claims.done(Piece(job_index=job_index, episodes=episodes), seconds)
        self._num_committed += count_episodes(episodes)
        self._left -= count_episodes(episodes)
        self._makespan_s = max(self._makespan_s, now_s)

    def _plan_failure(self, now_s: float) -> None:
        per_day = self._options.failures_per_gpu_day * self._options.num_ranks
        if per_day:
            self._at(now_s + self._generator.exponential(86_400 / per_day), self._fail)

    def _fail(self, now_s: float) -> None:
        self._plan_failure(now_s)
        first = int(self._generator.integers(self._options.num_ranks))
        node = first // self._options.ranks_per_node
        if self._ranks[first].present_since is None:
            return
        self._num_failures += 1
        for rank in self._of_node(node):
            state = self._ranks[rank]
            if state.present_since is not None:
                self._presences.append((state.present_since, now_s))
            if state.piece is not None:
                self._lose(now_s, state.piece, ran_s=now_s - state.begun_at)
            self._claims.forget(rank)
            self._idle.discard(rank)
            self._ranks[rank] = _Rank(life=state.life + 1)
        self._at(now_s + self._options.replaced_after_s, lambda at_s: self._join(at_s, node))

    def _lose(self, now_s: float, piece: Piece, *, ran_s: float) -> None:
        """Keep the ended episodes of a piece, and free the others once the loss is noticed."""
        indices = [index for begin, end in piece.episodes for index in range(begin, end)]
        episode_s = self._jobs[piece.job_index].episode_s[indices]
        num_ended = int(np.searchsorted(episode_s.cumsum(), ran_s, side="right")) if ran_s > 0 else 0
        if num_ended:
            ended = tuple((index, index + 1) for index in indices[:num_ended])
            self._commit(now_s, piece.job_index, ended, float(episode_s[:num_ended].sum()))
        self._num_lost += ran_s > 0
        self._lost_s += max(0.0, ran_s - float(episode_s[:num_ended].sum()))
        rest = Piece(job_index=piece.job_index, episodes=tuple((index, index + 1) for index in indices[num_ended:]))

        def give_back(at_s: float) -> None:
            self._claims.give_back(rest)
            if self._idle:
                self._ask(at_s, self._idle.pop(), num_episodes=1)

        if rest.episodes:
            self._at(now_s + self._options.give_back_s, give_back)


def lower_bound_s(jobs: Jobs, presences: list[tuple[float, float]], *, build_s: float, lost_s: float = 0.0) -> float:
    """Return the lower bound of every order of the work [s]: present ranks build once and never wait."""
    begins = np.array([begin for begin, _ in presences]) + build_s
    ends = np.array([end for _, end in presences])
    work_s = sum(job.total_s for job in jobs) + lost_s
    # The possible work grows linearly between any two of these times.
    low_s, high_s = float(begins.min()), float(begins.max()) + work_s
    while high_s - low_s > 1e-6 * high_s:
        middle_s = (low_s + high_s) / 2
        enough = np.clip(np.minimum(ends, middle_s) - begins, 0.0, None).sum() >= work_s
        low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
    return max(high_s, float(begins.min()) + max(float(job.episode_s.max()) for job in jobs))
