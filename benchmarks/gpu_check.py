"""Check and measure everything that needs a GPU, on a machine that has one: ``make gpu-check``.

Runs the tests that are marked ``gpu``, training with one rank on each GPU (over NCCL where there are several), two
ranks that share a GPU over gloo, every job file on the GPU, and the benchmarks of physics, pictures and whole
evaluations, of a GR00T model's answers and of two groups of rows. Writes benchmarks/results/gpu-<name>.json after
each of them, and docs/performance.md. Without a GPU it says so, and does nothing.

Usage: python benchmarks/gpu_check.py [--name h200] [--parts physics pictures] [--limit_s 540 --missing]

Where a GPU is there for minutes only, the last of these goes on each time with what the results lack. With
``--device cpu --folder FOLDER`` the same programs run on the CPU, to see that they work.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gpu_results
import mujoco
import mujoco_warp
import torch
import tyro
import warp
from gpu_commands import RESULTS, ROOT, Check, Options, checks
from gpu_page import page
from gpu_worlds import OUT_OF_TIME

from isaaclab_arena.evaluation.provenance import provenance

DOCUMENT = ROOT / "docs" / "performance.md"
LIMIT_S = 1800
LAST_LINES = 15
LEAST_S = 20
"""Time for which nothing is begun any more [s]."""

Outcome = Literal["passed", "FAILED", "out of time"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a check.

    Attributes:
        name: What it shows.
        outcome: Whether it ended well.
        seconds: How long it took [s].
        last_lines: What it said last, where it did not.
    """

    name: str
    outcome: Outcome
    seconds: float
    last_lines: tuple[str, ...] = ()


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
    last = () if outcome == "passed" else tuple(said.splitlines()[-LAST_LINES:])
    told = Verdict(name=check.name, outcome=outcome, seconds=time.monotonic() - began, last_lines=last)
    print(f"{outcome}  {check.name}  {told.seconds:.0f} s", flush=True)
    for line in last:
        print(f"    {line}")
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


def run_all(options: Options, path: Path, machine: Mapping[str, str], num_gpus: int) -> bool:
    """Run what is asked for and write the results after each check; return whether all of it passed.

    Args:
        options: What is asked for.
        path: The results file.
        machine: What was measured: ``gpu``, ``cpu`` and ``versions``.
        num_gpus: GPUs of this machine.
    """
    ends = time.monotonic() + (options.limit_s or float("inf"))
    before = gpu_results.merged(gpu_results.read(path), machine)
    gpu_results.write(path, before)
    passed_before = {each["name"] for each in before["checks"] if each["outcome"] == "passed"}
    all_passed = True
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as name:
        for number, check in enumerate(checks(options, Path(name), num_gpus)):
            if options.missing and check.name in passed_before:
                continue
            left_s = min(ends - time.monotonic(), LIMIT_S)
            if left_s < LEAST_S:
                print(f"no time left for: {check.name}")
                all_passed = False
                continue
            told, rows = run(check, Path(name) / f"rows_{number}.json", path if options.missing else None, left_s)
            found = {**machine, "checks": [dataclasses.asdict(told)], **({check.rows: rows} if check.rows else {})}
            gpu_results.write(path, gpu_results.merged(gpu_results.read(path), found))
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
    if device.type == "cpu" and options.folder is None:
        print("figures of a CPU are not written into the repository; give --folder")
        return 2
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    machine = {
        "gpu": gpu,
        "cpu": processor(),
        "versions": f"torch {torch.__version__}, MuJoCo {mujoco.__version__}, MuJoCo-Warp {mujoco_warp.__version__}, "
        f"Warp {warp.__version__}",
    }
    folder = options.folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, name=options.name or gpu.lower().replace(" ", "-"))
    passed = run_all(options, folder / f"gpu-{options.name}.json", machine, max(1, torch.cuda.device_count()))
    write_document(folder, DOCUMENT if options.folder is None else folder / "performance.md")
    return 0 if passed else 1


def processor() -> str:
    """Return which processor this machine has, and how many of its cores are for this process."""
    here = provenance.node()
    return f"{here.cpu}, {here.cores} cores"


def write_document(folder: Path, document: Path) -> None:
    """Write the page from the results that are there."""
    results = [gpu_results.read(path) for path in sorted(folder.glob("gpu-*.json"))]
    document.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
