"""Evaluate jobs with the runner in a process of its own, as a user does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import Watched, watched
from benchmarks.harness.workers import module

RUNNER = "isaaclab_arena.evaluation.eval_runner"


def evaluate(
    directory: Path,
    document: Mapping[str, Any],
    *options: str,
    ranks: int = 1,
    program: str = RUNNER,
    variables: Mapping[str, str] | None = None,
) -> Watched:
    """Run a job file, and return what its process took.

    Args:
        directory: Gets the job file and the runner's output, in ``out``.
        document: Content of the job file.
        options: Further options of the runner.
        ranks: Number of ranks, started by torchrun where there are several.
        program: Module that takes the runner's command line.
        variables: Environment variables to add.

    Raises:
        RuntimeError: The run failed; with the end of its output.
    """
    directory.mkdir(parents=True, exist_ok=True)
    jobs = directory / "jobs.json"
    jobs.write_text(json.dumps(document), encoding="utf-8")
    launcher = ("torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m") if ranks > 1 else ()
    command = module(*launcher, program, "--eval_jobs_config", jobs, "--output_dir", directory / "out", *options)
    return watched(command, directory / "log.txt", variables)


def job_results(directory: Path) -> list[dict[str, Any]]:
    """Return what the results of an evaluation in a directory say of each job."""
    return json.loads((directory / "out" / "results.json").read_text(encoding="utf-8"))["jobs"]


def job_reports(directory: Path) -> list[dict[str, Any]]:
    """Return the reports of all ranks of an evaluation in a directory."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("out/*/job_report_*.json")]
