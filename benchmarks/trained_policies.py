"""Measure how often the trained policies in models/ solve their tasks.

Usage: python benchmarks/trained_policies.py [--episodes 200] [--output FILE]
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import pandas as pd
import torch
import tyro

from isaaclab_arena.evaluation import eval_runner

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


def evaluate(options: Options, folder: Path) -> pd.DataFrame:
    """Run the jobs of the file, and return the table of results."""
    document = json.loads(JOBS.read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = options.episodes
    file = folder / "jobs.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    arguments = ["--eval_jobs_config", str(file), "--output_dir", str(folder / "run"), "--no_dataset"]
    if eval_runner.main([*arguments, "--device", "cpu"]) != 0:
        raise SystemExit("the evaluation did not complete")
    return pd.read_csv(folder / "run" / "results.csv")


def line(row: Any) -> str:
    """Return one row of the table."""
    wanted = f"at least {WANTED[row.name]} %" if row.name in WANTED else ""
    rate = f"{100 * row.success_rate:.1f} % [{100 * row.success_low:.1f}, {100 * row.success_high:.1f}]"
    others = f"{row.failures}/{row.timeouts}/{row.errors}"
    return f"| {row.name} | {row.environment} | {row.successes}/{row.episodes} | {rate} | {wanted} | {others} |"


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory(prefix="trained_policies_") as folder:
        table = evaluate(options, Path(folder))
    lines = [
        "# How often the trained policies in this repository solve their tasks",
        "",
        f"    python benchmarks/trained_policies.py --episodes {options.episodes}",
        "",
        f"MuJoCo {mujoco.__version__}, torch {torch.__version__}, CPU. {NOTES}",
        "",
        "| job | environment | successes | rate, Wilson 95 % | wanted | failure/timeout/error |",
        "|---|---|--:|---|---|---|",
        *(line(row) for row in table.itertuples(index=False, name="Row")),
        "",
    ]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(Options))
