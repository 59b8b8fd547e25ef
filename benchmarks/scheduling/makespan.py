"""Simulate the makespan of uneven jobs, against its lower bound.

Ranks are simulated: no process, no file, no physics. But the functions of real ranks decide on every claim. An episode
takes about a second, episodes run in sequence on a rank, and ranks learn the length of a job from finished pieces.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.measure import markdown_table, run
from benchmarks.scheduling.cluster import Jobs, Piece, SimulatedClaims, SimulatedJob, drawn_jobs
from isaaclab_arena.evaluation.planning import split_shares
from isaaclab_arena.interfaces.episode import EpisodeRanges


@dataclass(frozen=True)
class Options:
    """Makespan over its lower bound, for uneven jobs."""

    ranks: int = 8
    draws: int = 50
    """Random lists of each kind; the table shows their mean."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A simulated run: when its last rank ended [s], and how many environments were built on all ranks."""

    makespan_s: float
    num_builds: int


def round_robin(jobs: Jobs, num_ranks: int) -> Outcome:
    """``--assignment round_robin``, the default."""
    indices = range(len(jobs))
    return _settled(
        jobs, [[(index, jobs[index].episodes) for index in indices[rank::num_ranks]] for rank in range(num_ranks)]
    )


def split(jobs: Jobs, num_ranks: int) -> Outcome:
    """``--assignment split``: every rank has a share of every job."""
    work: list[list[tuple[int, EpisodeRanges]]] = [[] for _ in range(num_ranks)]
    for index, job in enumerate(jobs):
        for rank, share in enumerate(split_shares(job.episodes, num_ranks, first_rank=index % num_ranks)):
            if share:
                work[rank].append((index, share))
    return _settled(jobs, work)


def dynamic(jobs: Jobs, num_ranks: int) -> Outcome:
    """``--assignment dynamic``: ranks claim pieces of jobs as they go."""
    claims = SimulatedClaims(jobs, num_ranks)
    free_at: list[tuple[float, int, Piece | None]] = [(0.0, rank, None) for rank in range(num_ranks)]
    makespan_s = 0.0
    while free_at:
        now_s, rank, ended = heapq.heappop(free_at)
        makespan_s = max(makespan_s, now_s)
        if ended is not None:
            claims.done(ended, jobs[ended.job_index].seconds(ended.episodes))
        claimed = claims.next_piece(rank)
        if claimed is not None:
            heapq.heappush(free_at, (now_s + jobs[claimed.job_index].seconds(claimed.episodes), rank, claimed))
    return Outcome(makespan_s=makespan_s, num_builds=claims.num_builds)


MODES: dict[str, Callable[[Jobs, int], Outcome]] = {"round_robin": round_robin, "split": split, "dynamic": dynamic}


def _settled(jobs: Jobs, work: list[list[tuple[int, EpisodeRanges]]]) -> Outcome:
    ends, num_builds = [], 0
    for pieces in work:
        ends.append(sum(jobs[index].seconds(ranges) for index, ranges in pieces))
        environments = [jobs[index].environment for index, _ in pieces]
        num_builds += sum(before != after for before, after in zip([None, *environments], environments, strict=False))
    return Outcome(makespan_s=max(ends), num_builds=num_builds)


def draw_jobs(kind: str, generator: np.random.Generator) -> list[SimulatedJob]:
    """Return a random list of jobs of a kind."""
    num_jobs = {"3 jobs": 3, "40 jobs, log-normal": 40}.get(kind, 16)
    episodes = np.full(num_jobs, 50)
    mean_s = np.ones(num_jobs)
    if kind == "one job 10 times longer":
        episodes[generator.integers(num_jobs)] *= 10
    if kind.endswith("log-normal"):
        episodes = np.ceil(50 * generator.lognormal(sigma=0.7, size=num_jobs)).astype(int)
        mean_s = generator.lognormal(sigma=0.7, size=num_jobs)
    return drawn_jobs(episodes, mean_s, generator)


KINDS = ("equal jobs", "one job 10 times longer", "16 jobs, log-normal", "40 jobs, log-normal", "3 jobs")


TABLES = (
    ("Makespan over its lower bound: an even share, or what is longest and not cut, a job or an episode", 2),
    ("Makespan over an even share, whatever can be cut", 2),
    ("Environments built on all ranks", 0),
)
"""Titles and decimals."""


def mean_of_draws(kind: str, options: Options) -> dict[str, np.ndarray]:
    """Return for each mode the makespan over its bound and over an even share, and the environments built."""
    values: dict[str, list[tuple[float, float, int]]] = {mode: [] for mode in MODES}
    for draw in range(options.draws):
        jobs = draw_jobs(kind, np.random.default_rng([options.seed, KINDS.index(kind), draw]))
        # No order of the work beats an even share, or the longest part that a mode does not cut.
        even_share_s = sum(job.total_s for job in jobs) / options.ranks
        longest_job_s = max(job.total_s for job in jobs)
        longest_episode_s = max(float(job.episode_s.max()) for job in jobs)
        for mode, simulate in MODES.items():
            outcome = simulate(jobs, options.ranks)
            bound_s = max(even_share_s, longest_job_s if mode == "round_robin" else longest_episode_s)
            over_bound, over_share = outcome.makespan_s / bound_s, outcome.makespan_s / even_share_s
            values[mode].append((over_bound, over_share, outcome.num_builds))
    return {mode: np.mean(drawn, axis=0) for mode, drawn in values.items()}


def main(options: Options) -> None:
    """Print the tables."""
    means = {kind: mean_of_draws(kind, options) for kind in KINDS}
    print(f"{options.ranks} simulated ranks, mean of {options.draws} lists of each kind.")
    for column, (title, digits) in enumerate(TABLES):
        table = [[kind, *(f"{means[kind][mode][column]:.{digits}f}" for mode in MODES)] for kind in KINDS]
        print("\n".join(["", f"{title}:", "", *markdown_table(("jobs", *MODES), table)]))


if __name__ == "__main__":
    run(main, Options)
