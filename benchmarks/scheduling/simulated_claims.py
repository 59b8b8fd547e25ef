"""Jobs whose future is known, and the claims of simulated ranks on them.

Who takes what is decided by the functions that real ranks decide with.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes
from isaaclab_arena.evaluation.claims import Measured, Measurements, OpenWork, choose, expected_s, order_of_work
from isaaclab_arena.evaluation.planning import pieces_of


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job whose future is known: how long each of its episodes will take [s]."""

    environment: str
    episode_s: np.ndarray

    @property
    def episodes(self) -> EpisodeRanges:
        """All of its episodes."""
        return ((0, len(self.episode_s)),)

    @cached_property
    def total_s(self) -> float:
        """How long one rank would take for all of it [s]."""
        return float(self.episode_s.sum())

    def seconds(self, ranges: EpisodeRanges) -> float:
        """Return how long some episodes take [s]."""
        return float(sum(self.episode_s[begin:end].sum() for begin, end in ranges))


Jobs = Sequence[SimulatedJob]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Episodes of a job that a rank runs without asking again."""

    job_index: int
    episodes: EpisodeRanges


class SimulatedClaims:
    """What the ranks know of the jobs, and who works on which.

    Args:
        jobs: The jobs.
        num_ranks: How many ranks share them.
    """

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
        """Take note of how long episodes took [s]."""
        measured = Measured(episodes=count_episodes(piece.episodes), env_steps=0, seconds=seconds)
        self._measurements.add(piece.job_index, measured)

    def forget(self, rank: int) -> None:
        """Take note that a rank has died, and its environment with it."""
        self._leave(rank)
        self._built.pop(rank, None)

    def give_back(self, piece: Piece) -> None:
        """Let other ranks claim what a rank that died had not finished of a piece."""
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
