"""Simulate a thousand ranks that start late, die and come back: the makespan over what is best possible."""

from dataclasses import dataclass

import numpy as np

from benchmarks.harness.pages import run
from benchmarks.harness.tables import markdown_table
from benchmarks.scheduling.cluster import ClusterOptions, ClusterOutcome, simulate
from benchmarks.scheduling.simulated_claims import SimulatedJob

RATES = {
    "none": 0.0,
    "Llama 3": 419 / 54 / 16_384,
    "RSC-1, nodes": 6.5 / 1000 / 8,
    "RSC-1, jobs of 1,024 GPUs": 24 / 7.9 / 1024,
    "a hundred times that": 100 * 24 / 7.9 / 1024,
}
"""Failures per GPU and day; `benchmarks/results/scale.md` has the sources."""

HEADING = (
    "failures", "per 10,000 GPU-days", "nodes lost", "episodes repeated", "over the bound", "at worst",
    "longest wait for a claim [ms]", "actor busy",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Makespan over its lower bound for a thousand ranks."""

    ranks: int = 1000
    draws: int = 10
    """Random lists of jobs of each kind."""
    seed: int = 0
    service_ms: float = 0.5
    """How long the claim actor is busy with an episode: its commit and its share of a claim."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of run: 40 jobs of unequal length.

    Attributes:
        hours: How long they keep every rank busy [h].
        episode_s: Median over the jobs of how long an episode takes [s].
    """

    hours: float
    episode_s: float


KINDS = {
    "an hour, episodes of 10 s": Kind(hours=1.0, episode_s=10.0),
    "an hour, episodes of 60 s": Kind(hours=1.0, episode_s=60.0),
    "12 hours, episodes of 60 s": Kind(hours=12.0, episode_s=60.0),
}


def draw_jobs(kind: Kind, num_ranks: int, generator: np.random.Generator) -> list[SimulatedJob]:
    """Return 40 jobs: log-normal in their number of episodes and in their length, two to an environment."""
    shares = generator.lognormal(sigma=0.7, size=40)
    lengths_s = kind.episode_s * generator.lognormal(sigma=0.5, size=40)
    total_s = kind.hours * 3600 * num_ranks
    numbers = np.maximum(1, total_s * shares / (shares * lengths_s).sum()).astype(int)
    return [
        SimulatedJob(
            environment=f"environment {index // 2}", episode_s=length_s * generator.lognormal(sigma=0.3, size=number)
        )
        for index, (number, length_s) in enumerate(zip(numbers, lengths_s, strict=True))
    ]


def outcomes(kind: str, rate: str, options: Options) -> list[ClusterOutcome]:
    """Return how runs of a kind end, one for each draw; the jobs are the same at every rate of failures."""
    cluster = ClusterOptions(
        num_ranks=options.ranks, failures_per_gpu_day=RATES[rate], service_s=options.service_ms / 1000
    )
    ended = []
    for draw in range(options.draws):
        drawn = [options.seed, list(KINDS).index(kind), draw]
        jobs = draw_jobs(KINDS[kind], options.ranks, np.random.default_rng(drawn))
        ended.append(simulate(jobs, cluster, np.random.default_rng([*drawn, 1 + list(RATES).index(rate)])))
    return ended


def main(options: Options) -> None:
    """Print a table for each kind of run."""
    counts = f"{options.ranks:,} simulated ranks, {options.draws} lists of jobs of each kind"
    print(f"{counts}, {options.service_ms} ms of the claim actor for an episode.")
    for kind in KINDS:
        table = [[name, f"{1e4 * rate:.2f}", *_cells(outcomes(kind, name, options))] for name, rate in RATES.items()]
        print("\n".join(["", f"{kind.capitalize()}:", "", *markdown_table(HEADING, table)]), flush=True)


def _cells(ended: list[ClusterOutcome]) -> list[str]:
    over = [each.over_bound for each in ended]
    return [
        f"{np.mean([each.num_failures for each in ended]):.1f}",
        f"{np.mean([each.num_episodes_lost for each in ended]):.1f}",
        f"{np.mean(over):.3f}",
        f"{max(over):.3f}",
        f"{1000 * max(each.longest_wait_s for each in ended):.0f}",
        f"{100 * np.mean([each.table_busy for each in ended]):.1f} %",
    ]


if __name__ == "__main__":
    run(main, Options)
