"""Measure the cost of late answers for the models in models/, by latency and by the robot's action meanwhile.

Latency counts in control steps of simulated time, so the table is the same on any machine.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks import ROOT
from benchmarks.harness.environments import success_rate
from benchmarks.harness.measure import WITHOUT_INFLUENCE, Page, PageOptions, markdown_table, run
from benchmarks.harness.runs import job_results
from benchmarks.success.models import evaluate

HEADING = ("job", "meanwhile", "late by", "successes", "rate, Wilson 95 %", "stale actions", "queries/s")
NOTES = """\
Seed 0: the same episodes in every line of a job. Latency is simulated time: an answer is played so many control steps
after its observation, on any machine. Stale actions are the share of control steps in which an answer was awaited,
queries are those in a second of robot time. At 0 steps no answer is late, and every way gives the same bytes.
Nothing here is timed, so other programs on the machine change no figure."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models that are measured together."""

    page: str  # Name of their page.
    jobs: str  # Their job file.
    names: tuple[str, ...]  # Their jobs in it.
    meanwhile: tuple[str, ...]  # Actions of the robot until an answer is there.
    notes: str  # Text of the page.


MODELS = {
    "gr00t": Models(
        page="late_answers_gr00t",
        jobs="gr00t_evaluation.json",
        names=("lift", "colour"),
        meanwhile=("hold", "chunk", "rtc"),
        notes="""\
Jobs of jobs/gr00t_evaluation.json. The models predict 16 actions of 50 ms and play 8 of them.""",
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
    """Options of the measurement."""

    models: Literal["gr00t", "trained"] = "gr00t"  # Group of models.
    steps: tuple[int, ...] = (0, 1, 2, 4, 8)  # Latencies in control steps, in the order of measuring.
    episodes: int = 200  # Episodes of each line.
    # Directory that keeps the run; an existing one is resumed.
    run: Path | None = field(default=None, metadata=WITHOUT_INFLUENCE)
    # Run nothing, and write the page of the finished jobs of the kept run.
    finished_only: bool = field(default=False, metadata=WITHOUT_INFLUENCE)


def jobs_document(options: Options) -> dict[str, Any]:
    """Return a job for each latency, model and way to bridge it, with the other content of their file."""
    models = MODELS[options.models]
    document = json.loads((ROOT / "jobs" / models.jobs).read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = options.episodes
    evaluated = [job for job in document["jobs"] if job["name"] in models.names]
    document["jobs"] = [
        job | {"name": f"{job['name']}-{way}-{steps}", "latency": {"steps": steps, "meanwhile": way}}
        for steps in options.steps
        for job in evaluated
        # An answer that is on time needs no bridge.
        for way in (models.meanwhile if steps else models.meanwhile[:1])
    ]
    return document


def lines(jobs: Iterable[Mapping[str, Any]], models: Models) -> list[tuple[str, ...]]:
    """Return the lines of the table: those of the jobs that have completed, by model, way and latency."""
    completed = [job for job in jobs if job["status"] == "completed"]
    found = []
    for job in sorted(completed, key=lambda job: _place(job["name"], models)):
        model, way, steps = job["name"].rsplit("-", 2)
        cells = (model, way if int(steps) else "any", job["latency"], f"{job['successes']}/{job['episodes']}")
        share, rate = f"{100 * job['stale_action_share']:.0f} %", success_rate(job["successes"], job["episodes"])
        found.append((*cells, rate, share, f"{job['queries_per_s']:.2f}"))
    return found


def _place(name: str, models: Models) -> tuple[int, int, int]:
    model, way, steps = name.rsplit("-", 2)
    return models.names.index(model), models.meanwhile.index(way), int(steps)


def main(options: Options) -> None:
    """Evaluate the models, print the table and write the page."""
    models = MODELS[options.models]
    page = Page(models.page, "What late answers cost", options, "mujoco", "torch")
    if options.finished_only:
        if options.run is None:
            raise SystemExit("--finished-only: say with --run which directory keeps the run")
        jobs = job_results(options.run)
    else:
        jobs = evaluate(jobs_document(options), options.run)
    jobs = [job for job in jobs if _place(job["name"], models)[2] in options.steps]
    rows, unfinished = lines(jobs, models), [job["name"] for job in jobs if job["status"] != "completed"]
    table = "\n".join(markdown_table(HEADING, rows, words=len(HEADING)))
    print(table)
    missing = [f"Not finished: {', '.join(unfinished)}."] if unfinished else []
    page.write(f"{models.notes}\n{NOTES}", table, *missing)


if __name__ == "__main__":
    run(main, Options)
