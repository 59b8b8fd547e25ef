"""Measure the success of the models in models/: trained policies, or the GR00T models.

The model that picks by colour also gets no colour, and the other colour.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import ROOT
from benchmarks.harness.environments import success_rate
from benchmarks.harness.measure import Page, PageOptions, markdown_table, run
from benchmarks.harness.runs import job_results
from isaaclab_arena.evaluation import eval_runner

SWAPPED = "colour-swapped"
HEADING = ("job", "environment", "successes", "rate, Wilson 95 %", "wanted", "failure/timeout/error")


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models that are measured together."""

    title: str  # Heading of their page.
    jobs: str  # Their job file.
    notes: str  # Text of the page.
    wanted: Mapping[str, str]  # Job to its wanted success rate, in words.


PAGES = {
    "trained_policies": Models(
        title="How often the trained policies in this repository solve their tasks",
        jobs="jobs/trained.json",
        notes="""\
The jobs of jobs/trained.json, seed 0, which neither training nor the evaluations during training have seen. What each
task calls success is in docs/reference/legged_robots.md and docs/reference/task_catalog.md; how each policy was made,
in its directory of models/.""",
        wanted={**dict.fromkeys(("cartpole", "reach", "push-cube"), "at least 90 %"), "velocity-go1": "at least 80 %"},
    ),
    "gr00t_success": Models(
        title="How often the models in this repository solve their tasks",
        jobs="jobs/gr00t_evaluation.json",
        notes="""\
The jobs of jobs/gr00t_evaluation.json, seed 0, from cameras, joints and the instruction alone. In `colour-not-named`
the instruction is "pick up the cube"; in `colour-swapped` the model is told the other colour, and success is still to
lift the cube that the task means.""",
        wanted={
            **dict.fromkeys(("lift", "place", "drawer", "colour"), "at least 80 %"),
            **dict.fromkeys(("colour-not-named", SWAPPED), "at most 60 %"),
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    # Page of results of the models.
    page: Literal["trained_policies", "gr00t_success"] = "trained_policies"
    episodes: int = 200  # Episodes of each job.


def jobs_document(models: Models, episodes: int) -> dict[str, Any]:
    """Return the jobs of a file, and one more for the model that gets the other colour."""
    document = json.loads((ROOT / models.jobs).read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = episodes
    if SWAPPED in models.wanted:
        (told,) = (job for job in document["jobs"] if job["name"] == "colour")
        policy = "benchmarks.gr00t.policies.SwappedColours"
        document["jobs"].append({**told, "name": SWAPPED, "policy_type": policy})
    return document


def evaluate(document: Mapping[str, Any], kept: Path | None = None) -> list[dict[str, Any]]:
    """Run jobs on the CPU, in this process; resume and keep a run in ``kept``. Return the results of each."""
    with tempfile.TemporaryDirectory(prefix="success_") as name:
        directory = kept or Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        file, output = directory / "jobs.json", directory / "out"
        file.write_text(json.dumps(document), encoding="utf-8")
        where = ("--resume" if output.exists() else "--output_dir", str(output))
        if eval_runner.main(["--eval_jobs_config", str(file), *where, "--no_dataset", "--device", "cpu"]) != 0:
            raise SystemExit("the evaluation did not complete")
        return job_results(directory)


def main(options: Options) -> None:
    """Evaluate models, print the table and write the page."""
    models = PAGES[options.page]
    page = Page(options.page, models.title, options, "mujoco", "torch")
    lines = [
        (
            *(job["name"], job["environment"], f"{job['successes']}/{job['episodes']}"),
            *(success_rate(job["successes"], job["episodes"]), models.wanted.get(job["name"], "")),
            f"{job['failures']}/{job['timeouts']}/{job['errors']}",
        )
        for job in evaluate(jobs_document(models, options.episodes))
    ]
    table = "\n".join(markdown_table(HEADING, lines, words=len(HEADING)))
    print(table)
    page.write(models.notes, table)


if __name__ == "__main__":
    run(main, Options)
