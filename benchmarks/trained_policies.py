"""Measure how often the trained policies in models/ solve their tasks.

Usage: python benchmarks/trained_policies.py [--episodes 200] [--output FILE]
"""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from success_table import write_success_table

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "jobs" / "trained.json"
RESULTS = Path(__file__).parent / "results" / "trained_policies.md"
NOTES = """\
The jobs of jobs/trained.json, seed 0, which neither training nor the evaluations during training have seen. What \
each task calls success is in docs/machines.md and docs/task_catalog.md; how each policy was made, in its folder of \
models/."""
WANTED = {"cartpole": 90, "reach": 90, "push-cube": 90, "velocity-go1": 80}
"""What each is to reach at least [%]; the others are told as they are."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        episodes: Episodes per row of the table.
        output: Where the table goes.
    """

    episodes: int = 200
    output: Path = RESULTS


def main(options: Options) -> None:
    document = json.loads(JOBS.read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = options.episodes
    write_success_table(
        document,
        options.output,
        title="How often the trained policies in this repository solve their tasks",
        command=f"python benchmarks/trained_policies.py --episodes {options.episodes}",
        notes=NOTES,
        wanted={name: f"at least {rate} %" for name, rate in WANTED.items()},
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
