"""Simulate a thousand ranks that start late, die and come back: the makespan over its lower bound.

The time of the claim server for an episode, a heartbeat and a question is the figure of `claim_rate`.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks import RESULTS
from benchmarks.harness.measure import Page, PageOptions, Table, line_of, run
from benchmarks.scheduling.cluster import ClusterOptions, ClusterOutcome, SimulatedJob, drawn_jobs, simulate

PAGE = "claim_rate"
ON_AN_EPISODE = "processor time of the claim server's process for an episode, with Ray's share"
ON_A_WORD = "the same for a heartbeat or a question of an idle rank"


RATES = {
    "none": 0.0,
    "Llama 3": 419 / 54 / 16_384,
    "RSC-1, nodes": 6.5 / 1000 / 8,
    "RSC-1, jobs of 1,024 GPUs": 24 / 7.9 / 1024,
    "a hundred times that": 100 * 24 / 7.9 / 1024,
}
"""Failures per GPU and day; the page has the sources."""

HEADING = (
    "failures", "per 10,000 GPU-days", "nodes lost", "episodes repeated", "over the bound", "at worst",
    "last one begun, of the bound", "longest wait for a claim [ms]", "claim server busy",
)  # fmt: skip

MEANS = ("num_failures", "num_episodes_lost", "over_bound", "table_busy")
AIM = 1.05
"""Upper limit of the mean makespan over its bound."""

TEXT = """\
Ranks are simulated, so the machine does not matter; who takes what is decided by the functions that real ranks decide
with (`evaluation/claims.py`), as in [makespan.md](makespan.md).

- **Jobs.** 40, two to an environment. Their numbers of episodes are log-normal (sigma 0.7), and so are their lengths
  (sigma 0.5 from job to job, 0.3 within a job). Episodes run one after the other on a rank.
- **Start.** Nodes of 8 ranks join within a minute. A rank claims its first piece 30 s after its node came (median,
  log-normal with sigma 0.5), and takes 15 s for each environment that it builds.
- **Failures.** Each takes a node with its 8 ranks and what they were running. 30 s later the unfinished episodes are
  free again, and after 10 min another node joins.
- **Claim server.** One for all ranks, busy for {episode_ms:.2f} ms with each episode (its commit and its share of a
  claim). Ranks wait for its answer in a queue. All ranks say that they live, and ask as ranks that have nothing to do,
  the whole time, as often as the claim server lets them; each time it is busy for {word_ms:.2f} ms. Both are measured,
  processor time with Ray's share ([claim_rate.md](claim_rate.md)).
- **Lower bound.** The ranks that are there never wait, build one environment when they start, and divide the work
  evenly. What failures ended of episodes under way is work that has to be done again, and counts: whatever the order,
  ranks that die are in the middle of something.

The rates of failures are published ones:

- *Llama 3*: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, 2024, section 3.3.4).
- *RSC-1, nodes*: 6.50 failures in a thousand node-days, on nodes of 8 A100 (Kokolis et al., Revisiting Reliability in
  Large-Scale Machine Learning Research Clusters, HPCA 2025, arXiv 2410.21680).
- *RSC-1, jobs of 1,024 GPUs*: one failure in 7.9 hours (the same paper); jobs of this size fail more often than the
  rate of the nodes says.

{ranks:,} simulated ranks, {draws} lists of jobs of each kind."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Makespan over its lower bound for a thousand ranks."""

    ranks: int = 1000  # Number of ranks.
    draws: int = 10  # Random lists of jobs of each kind.
    seed: int = 0  # Seed of the lists.
    service_ms: float | None = None  # Time of the claim server for an episode; by default the measured one.
    word_ms: float | None = None  # The same for a heartbeat or a question.


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of run: 40 jobs of unequal length."""

    hours: float  # Time for which they keep every rank busy [h].
    episode_s: float  # Median over the jobs of how long an episode takes [s].


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
    return drawn_jobs(numbers, lengths_s, generator)


def measured_ms(name: str) -> float:
    """Return a figure of the page of the claim server [ms]."""
    page = (RESULTS / f"{PAGE}.md").read_text(encoding="utf-8")
    return float(line_of(page, name)[0].removesuffix(" ms"))


def cluster_of(rate: str, options: Options) -> ClusterOptions:
    """Return the cluster with a rate of failures."""
    service_ms = measured_ms(ON_AN_EPISODE) if options.service_ms is None else options.service_ms
    word_ms = measured_ms(ON_A_WORD) if options.word_ms is None else options.word_ms
    return ClusterOptions(
        num_ranks=options.ranks, failures_per_gpu_day=RATES[rate], service_s=service_ms / 1000, word_s=word_ms / 1000
    )


def outcomes(kind: str, rate: str, options: Options) -> list[ClusterOutcome]:
    """Return the outcomes of runs of a kind, one for each draw, with the same jobs at every rate of failures."""
    cluster, ended = cluster_of(rate, options), []
    for draw in range(options.draws):
        drawn = [options.seed, list(KINDS).index(kind), draw]
        jobs = draw_jobs(KINDS[kind], options.ranks, np.random.default_rng(drawn))
        ended.append(simulate(jobs, cluster, np.random.default_rng([*drawn, 1 + list(RATES).index(rate)])))
    return ended


def main(options: Options) -> None:
    """Simulate, and write the page with a table for each kind of run."""
    page, cluster = Page("scale", "A thousand ranks", options), cluster_of("none", options)
    text = TEXT.format(
        episode_ms=1000 * cluster.service_s, word_ms=1000 * cluster.word_s, ranks=options.ranks, draws=options.draws
    )
    paragraphs, over = [text], {}
    for kind in KINDS:
        table = Table(*HEADING)
        for name, rate in RATES.items():
            ended = outcomes(kind, name, options)
            over[kind, name] = float(np.mean([each.over_bound for each in ended]))
            means = {each: np.mean([getattr(one, each) for one in ended]) for each in MEANS}
            begun = np.mean([each.begun_by_s / each.lower_bound_s for each in ended])
            table.add(
                *(name, f"{1e4 * rate:.2f}", f"{means['num_failures']:.1f}", f"{means['num_episodes_lost']:.1f}"),
                *(f"{means['over_bound']:.3f}", f"{max(each.over_bound for each in ended):.3f}", f"{begun:.3f}"),
                *(f"{1000 * max(each.longest_wait_s for each in ended):.0f}", f"{100 * means['table_busy']:.1f} %"),
            )
        paragraphs += [f"{kind[0].upper()}{kind[1:]}:", str(table)]
    page.write(*paragraphs, _conclusion(over))


def _conclusion(over: dict[tuple[str, str], float]) -> str:
    """Return the kinds within the aim at every rate, and the reason for the others."""
    worst = {kind: max(mean for (each, _), mean in over.items() if each == kind) for kind in KINDS}
    kept = [f"{kind} ({mean:.3f})" for kind, mean in worst.items() if mean <= AIM]
    missed = [f"{kind} ({mean:.3f})" for kind, mean in worst.items() if mean > AIM]
    lines = [f"At the worst rate the mean makespan is within {AIM:g} of its bound for: {'; '.join(kept) or 'no kind'}."]
    if missed:
        lines.append(f"It is not for: {'; '.join(missed)}.")
    return "\n".join(
        [
            *lines,
            "What is left is the end of a run. An episode is never cut, and the longest one is not known, so",
            "ranks are in the middle of one when the last one begins: a column says how near to the bound that is.",
        ]
    )


if __name__ == "__main__":
    run(main, Options)
