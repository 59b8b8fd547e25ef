"""Check and measure everything that needs a GPU, on a machine that has one: ``make gpu-check``.

Runs the tests that are marked ``gpu``, training with one rank on each GPU (over NCCL where there are several), two
ranks that share a GPU over gloo, every job file on the GPU, and the benchmarks of physics, pictures and whole
evaluations, of a GR00T model's answers and of two groups of env slots. Writes benchmarks/results/gpu-<name>.json after
each of them, and docs/concepts/performance.md. Without a GPU it says so, and does nothing.

Usage: python -m benchmarks.gpu.check [--name h200] [--parts physics pictures] [--limit_s 540 --missing]

Where a GPU is there for minutes only, the last of these goes on each time with what the results lack. With
``--device cpu --directory DIRECTORY`` the same programs run on the CPU, to see that they work.
"""

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import results
from benchmarks.gpu.commands import Check, Options, checks
from benchmarks.gpu.measuring import OUT_OF_TIME
from benchmarks.gpu.page import page
from benchmarks.harness import pages
from benchmarks.harness.machine import processor, versions

DOCUMENT = ROOT / "docs" / "concepts" / "performance.md"
LIMIT_S = 1800
LAST_LINES = 15
PRINTED_LINES = 200
LEAST_S = 20
"""Time for which nothing is begun any more [s]."""

Outcome = Literal["passed", "FAILED", "out of time"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a check."""

    name: str  # What it shows.
    outcome: Outcome  # Whether it ended well.
    seconds: float  # How long it took [s].
    last_lines: tuple[str, ...] = ()  # What it said last, where it did not.


def verdict(check: Check, *, limit_s: float = LIMIT_S, arguments: Sequence[str] = ()) -> Verdict:
    """Run a check.

    Args:
        check: What is run.
        limit_s: Time after which it is ended [s].
        arguments: Added to its command.
    """
    began = time.monotonic()
    code, said = run_to_the_end([*check.command, *arguments], check.variables, limit_s)
    outcome: Outcome = "passed" if code == 0 else "FAILED"
    if (code is None and limit_s < LIMIT_S) or (code == OUT_OF_TIME and check.rows):
        outcome = "out of time"
    lines = () if outcome == "passed" else tuple(said.splitlines())
    told = Verdict(name=check.name, outcome=outcome, seconds=time.monotonic() - began, last_lines=lines[-LAST_LINES:])
    print(f"{outcome}  {check.name}  {told.seconds:.0f} s", flush=True)
    for line in lines[-PRINTED_LINES:]:
        print(f"    {line}", flush=True)
    return told


def run_to_the_end(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
    """Run a command, and return its exit code, None if it was ended, and what it said.

    Args:
        command: What is run.
        variables: Environment variables beside those that are there.
        limit_s: Time after which it is ended, with all that it has started [s].
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except BaseException as error:
        # What it has started would go on, and hold the GPU.
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None, f"{said}\ntook longer than {limit_s:.0f} s"
    return process.returncode, said


def run_all(
    planned: Iterable[Check], options: Options, path: Path, machine: Mapping[str, str], directory: Path
) -> bool:
    """Run checks and write the results after each; return whether all of them passed.

    Args:
        planned: The checks.
        options: Says which of them are left out, and how long all may take.
        path: The results file.
        machine: What was measured: ``gpu``, ``cpu`` and ``versions``.
        directory: Where benchmarks write their rows.
    """
    ends = time.monotonic() + (options.limit_s or float("inf"))
    before = results.merged(results.read(path), machine)
    results.write(path, before)
    passed_before = {each["name"] for each in before["checks"] if each["outcome"] == "passed"}
    all_passed = True
    for number, check in enumerate(planned):
        if options.missing and check.name in passed_before:
            continue
        left_s = min(ends - time.monotonic(), LIMIT_S)
        if left_s < LEAST_S:
            print(f"no time left for: {check.name}")
            all_passed = False
            continue
        told, rows = run(check, directory / f"rows_{number}.json", path if options.missing else None, left_s)
        found = {**machine, "checks": [dataclasses.asdict(told)], **({check.rows: rows} if check.rows else {})}
        results.write(path, results.merged(results.read(path), found))
        all_passed &= told.outcome == "passed"
    return all_passed


def run(check: Check, output: Path, known: Path | None, limit_s: float) -> tuple[Verdict, list[dict[str, Any]]]:
    """Run a check, and return the rows that it measured, those before its end if it was ended.

    Args:
        check: What is run.
        output: Where a benchmark writes its rows.
        known: Results whose rows it does not measure again.
        limit_s: Time after which it is ended [s].
    """
    if check.rows is None:
        return verdict(check, limit_s=limit_s), []
    arguments = ["--output", str(output), "--limit_s", str(0.9 * limit_s)]
    told = verdict(check, limit_s=limit_s, arguments=arguments + (["--known", str(known)] if known else []))
    return told, json.loads(output.read_text(encoding="utf-8")) if output.is_file() else []


def main(options: Options) -> int:
    """Check, measure and write; return 0 if all is well or there is no GPU."""
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was checked")
        return 0
    if device.type == "cpu" and options.directory is None:
        print("figures of a CPU are not written into the repository; give --directory")
        return 2
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    machine = {
        "gpu": gpu,
        "cpu": processor(),
        "versions": versions("torch", "mujoco", "mujoco-warp", "warp-lang"),
    }
    directory = options.directory or RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, name=options.name or gpu.lower().replace(" ", "-"))
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as name:
        planned = checks(options, Path(name), max(1, torch.cuda.device_count()))
        passed = run_all(planned, options, directory / f"gpu-{options.name}.json", machine, Path(name))
    write_document(directory, DOCUMENT if options.directory is None else directory / "performance.md")
    return 0 if passed else 1


def write_document(directory: Path, document: Path) -> None:
    """Write the page from the results that are there."""
    found = [results.read(path) for path in sorted(directory.glob("gpu-*.json"))]
    document.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    pages.run(main, Options)
