"""Measure what late answers cost the models in models/, by how late they are and what the robot does meanwhile.

Latency counts in control steps of simulated time, so the table is the same on any machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks import ROOT
from benchmarks.harness.environments import success_rate
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import markdown_table
from benchmarks.success.models import evaluate

HEADING = ("job", "meanwhile", "late by", "successes", "rate, Wilson 95 %", "stale actions", "queries/s")
NOTES = """\
Seed 0: the same episodes in every line of a job. Latency is simulated time: an answer is played so many control steps
after its observation, on any machine. Stale actions are the share of control steps in which an answer was awaited,
queries are those in a second of robot time."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models that are measured together."""

    page: str  # Name of their page.
    jobs: str  # Their job file.
    names: tuple[str, ...]  # Their jobs in it.
    meanwhile: tuple[str, ...]  # What the robot does until an answer is there.
    notes: str  # What a reader of the page has to know.


MODELS = {
    "gr00t": Models(
        page="late_answers_gr00t",
        jobs="gr00t_evaluation.json",
        names=("lift", "colour"),
        meanwhile=("hold", "chunk", "rtc"),
        notes="""\
Jobs of jobs/gr00t_evaluation.json. The models predict 16 actions of 50 ms and play 8 of them. At 0 steps `hold` and
`chunk` are what there is without latency; `rtc` binds chunks to each other there too.""",
    ),
    "trained": Models(
        page="late_answers_trained",
        jobs="trained.json",
        names=("cartpole", "push-cube", "velocity-go1"),
        meanwhile=("hold",),
        notes="""\
Jobs of jobs/trained.json. The policies answer with one action, every 20 ms (push-cube: 50 ms), so the robot can only
hold still meanwhile: `chunk` and `rtc` are refused for them.""",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    models: Literal["gr00t", "trained"] = "gr00t"  # Which models.
    steps: tuple[int, ...] = (0, 1, 2, 4, 8)  # How many control steps late.
    episodes: int = 200  # Episodes of each line.


def jobs_document(options: Options) -> dict[str, Any]:
    """Return a job for each model, latency and way to bridge it, with what their file says besides."""
    models = MODELS[options.models]
    document = json.loads((ROOT / "jobs" / models.jobs).read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = options.episodes
    sweep = {"latency.meanwhile": list(models.meanwhile), "latency.steps": list(options.steps)}
    document["jobs"] = [job | {"sweep": sweep} for job in document["jobs"] if job["name"] in models.names]
    return document


def line(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a job's line of the table."""
    return (
        *(job["name"].rsplit("-", 2)[0], job["meanwhile"], job["latency"], f"{job['successes']}/{job['episodes']}"),
        *(success_rate(job["successes"], job["episodes"]), f"{100 * job['stale_action_share']:.0f} %"),
        f"{job['queries_per_s']:.2f}",
    )


def main(options: Options) -> None:
    """Evaluate the models, print the table and write the page."""
    models = MODELS[options.models]
    page = Page(models.page, "What late answers cost", options, "mujoco", "torch")
    lines = [line(job) for job in evaluate(jobs_document(options))]
    table = "\n".join(markdown_table(HEADING, lines, words=len(HEADING)))
    print(table)
    page.write(f"{models.notes}\n{NOTES}", table)


if __name__ == "__main__":
    run(main, Options)
