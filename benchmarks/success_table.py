"""Run the jobs of a document, and write a table of how often each succeeded. Used by benchmarks of policies."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import pandas as pd
import torch

from isaaclab_arena.evaluation import eval_runner


def write_success_table(
    document: Mapping[str, Any], output: Path, *, title: str, command: str, notes: str, wanted: Mapping[str, str]
) -> None:
    """Run jobs on the CPU, and write and print how often each succeeded.

    Args:
        document: What a job file holds.
        output: Where the table goes, in Markdown.
        title: Its heading.
        command: What was typed, to repeat it.
        notes: What a reader has to know.
        wanted: Job to what it is to reach, in words.
    """
    lines = [
        f"# {title}",
        "",
        f"    {command}",
        "",
        f"MuJoCo {mujoco.__version__}, torch {torch.__version__}, CPU. {notes}",
        "",
        "| job | environment | successes | rate, Wilson 95 % | wanted | failure/timeout/error |",
        "|---|---|--:|---|---|---|",
        *(_line(row, wanted) for row in _results(document).itertuples(index=False, name="Row")),
        "",
    ]
    output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def _results(document: Mapping[str, Any]) -> pd.DataFrame:
    with tempfile.TemporaryDirectory(prefix="success_table_") as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        arguments = ["--eval_jobs_config", str(file), "--output_dir", str(Path(folder) / "run"), "--no_dataset"]
        if eval_runner.main([*arguments, "--device", "cpu"]) != 0:
            raise SystemExit("the evaluation did not complete")
        return pd.read_csv(Path(folder) / "run" / "results.csv")


def _line(row: Any, wanted: Mapping[str, str]) -> str:
    rate = f"{100 * row.success_rate:.1f} % [{100 * row.success_low:.1f}, {100 * row.success_high:.1f}]"
    others = f"{row.failures}/{row.timeouts}/{row.errors}"
    successes = f"{row.successes}/{row.episodes}"
    return f"| {row.name} | {row.environment} | {successes} | {rate} | {wanted.get(row.name, '')} | {others} |"
