"""Check and measure everything that needs a GPU, on a machine that has one: ``make gpu-check``.

Runs the tests that are marked ``gpu``, training with one rank on each GPU (over NCCL if there are several), two ranks
that share a GPU over gloo, every job file, and the benchmarks of physics, pictures, whole evaluations, a GR00T model's
answers and two groups of env slots. Writes benchmarks/results/gpu-<name>.json after each of them, and
docs/concepts/performance.md. Without a GPU it prints that, and does nothing.

Usage: python -m benchmarks.gpu.check [--name h200] [--parts physics pictures] [--limit_s 540 --missing]

If a GPU is there for minutes only, the last of these goes on each time with the checks that the results lack. With
``--device cpu --directory DIRECTORY`` the same programs run on the CPU, as a test of the programs.
"""

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import results
from benchmarks.gpu.page import page
from benchmarks.gpu.results import OUT_OF_TIME
from benchmarks.harness import measure
from benchmarks.harness.measure import processor, versions
from benchmarks.harness.workers import module

TORCHRUN = ("torch.distributed.run", "--standalone")
TRAINER = "isaaclab_arena.training.train"

TESTS = ("tests", "submodules/Isaac-GR00T/tests")
LONGEST_JOBS = "gr00t_evaluation.json"

Part = Literal["tests", "training", "jobs", "physics", "pictures", "episodes", "policies"]
PARTS: tuple[Part, ...] = ("tests", "training", "jobs", "physics", "pictures", "episodes", "policies")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    name: str = ""  # Name of the machine in file names; the GPU's name by default.
    parts: tuple[Part, ...] = PARTS  # Parts to run; the results of the others stay.
    missing: bool = False  # Run only the checks that the results lack.
    limit_s: float | None = None  # Time for all checks, None without a limit; those left out are printed [s].
    device: str = "cuda:0"  # Device of the simulation.
    # Where results and page go; by default into the repository, where figures of a CPU do not belong.
    directory: Path | None = None
    tasks: tuple[str, ...] = (
        "lift_object",
        "velocity_go1",
        "walk_humanoid",
    )  # Environments of the benchmark of physics.
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)  # Numbers of worlds of the benchmark of physics.
    picture_worlds: tuple[int, ...] = (16, 64, 256, 1024, 2048)  # Numbers of worlds of the benchmark of pictures.
    # Jobs of `episodes.JOBS` to evaluate.
    evaluations: tuple[str, ...] = ("zero_action", "go1", "push_cube", "gr00t")
    num_envs: tuple[int, ...] = ()  # Env slots of each of these; by default those that `episodes.JOBS` names.
    control_steps: int = 20  # Control steps of a turn of physics and pictures.
    rounds: int = 3  # Turns of physics and pictures.


@dataclass(frozen=True, kw_only=True)
class Check:
    """One command to run."""

    name: str  # Its name on the page.
    command: Sequence[str]  # Program and arguments.
    variables: Mapping[str, str] = field(default_factory=dict)  # Environment variables beside those that are there.
    rows: Part | None = None  # For a benchmark, the part that its rows of figures belong to.


def checks(options: Options, directory: Path, num_gpus: int) -> Iterator[Check]:
    """Yield the checks of the chosen parts, in order."""
    of_part = {
        "tests": tests,
        "training": lambda: trainings(directory, num_gpus),
        "jobs": lambda: job_files(options, directory),
        "physics": lambda: physics(options),
        "pictures": lambda: pictures(options),
        "episodes": lambda: episodes(options),
        "policies": lambda: policies(options),
    }
    for part in PARTS:
        if part in options.parts:
            yield from of_part[part]()


def tests() -> Iterator[Check]:
    """Yield the tests."""
    # Their files alone: others may need packages that a machine with a GPU lacks.
    everywhere = (path for room in TESTS for path in sorted((ROOT / room).rglob("test_*.py")))
    files = [path.relative_to(ROOT) for path in everywhere if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
    yield Check(name="tests that need a GPU", command=module("pytest", "-q", "-m", "gpu", *files))


def trainings(directory: Path, num_gpus: int) -> Iterator[Check]:
    """Yield trainings on one GPU and on all."""
    logs = ("--log_root", directory / "logs", "--max_iterations", "20")
    short = ("-m", TRAINER, "cartpole", "--num_envs", "64", *logs)
    yield Check(
        name=f"training, a rank on each GPU ({num_gpus})",
        command=module(*TORCHRUN, f"--nproc_per_node={num_gpus}", *short),
    )
    yield Check(
        name="training over gloo, 2 ranks on one GPU",
        command=module(*TORCHRUN, "--nproc_per_node=2", *short),
        variables={"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]},
    )
    yield Check(
        name="training on MuJoCo-Warp, 4,096 environments",
        command=module(TRAINER, "velocity_go1", "--num_envs", "4096", "env.backend=warp", *logs),
    )


def job_files(options: Options, directory: Path) -> Iterator[Check]:
    """Yield every job file, the one that takes longest last."""
    found = sorted(path for path in (ROOT / "jobs").iterdir() if path.suffix in {".json", ".yaml"})
    for file in sorted(found, key=lambda path: path.name == LONGEST_JOBS):
        words = ("--device", options.device, "--eval_jobs_config", file, "--output_dir", directory / file.stem)
        yield Check(
            name=f"jobs/{file.name} on the GPU", command=module("isaaclab_arena.evaluation.eval_runner", *words)
        )


def physics(options: Options) -> Iterator[Check]:
    """Yield the benchmark of physics, task by task."""
    numbers = ("--worlds", *options.worlds)
    for task in options.tasks:
        command = _program("throughput", options, "--tasks", task, *numbers, *_turns(options))
        yield Check(name=f"physics of {task}", command=command, rows="physics")


def pictures(options: Options) -> Iterator[Check]:
    """Yield the benchmark of pictures."""
    command = _program("pictures", options, "--worlds", *options.picture_worlds, *_turns(options))
    yield Check(name="pictures", command=command, rows="pictures")


def episodes(options: Options) -> Iterator[Check]:
    """Yield the benchmark of whole evaluations, job by job."""
    num_envs = ("--num_envs", *options.num_envs) if options.num_envs else ()
    for job in options.evaluations:
        command = _program("episodes", options, "--jobs", job, *num_envs)
        yield Check(name=f"episodes of {job}", command=command, rows="episodes")


def policies(options: Options) -> Iterator[Check]:
    """Yield the costs of a GR00T model's answers, compiled too, and the gain of two groups of env slots."""
    directory = options.directory or RESULTS
    answers = ("--devices", options.device, "--compiled_on", options.device, "--starts", "1", "--runs", "1")
    groups = ("--device", options.device, "--backend", "warp", "--num_envs", "64", "--pairs", "3")
    for name, program, title, words in (
        ("answers of GR00T", "policy", "gr00t_policy", answers),
        ("two groups of env slots", "pipeline", "pipeline", groups),
    ):
        output = ("--output", directory / f"{title}-{options.name}.md")
        yield Check(name=name, command=module(f"benchmarks.gr00t.{program}", *words, *output))


def _turns(options: Options) -> tuple[object, ...]:
    return ("--control_steps", options.control_steps, "--rounds", options.rounds)


def _program(name: str, options: Options, *words: object) -> Sequence[str]:
    return module(f"benchmarks.gpu.{name}", "--device", options.device, *words)


DOCUMENT = ROOT / "docs" / "concepts" / "performance.md"
LIMIT_S = 1800
LAST_LINES = 15
PRINTED_LINES = 200
LEAST_S = 20
"""Remaining time with which no further check begins [s]."""

Outcome = Literal["passed", "FAILED", "out of time"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a check."""

    name: str  # Name of the check.
    outcome: Outcome
    seconds: float  # Its duration [s].
    last_lines: tuple[str, ...] = ()  # End of its output unless it passed.


def verdict(check: Check, *, limit_s: float = LIMIT_S, arguments: Sequence[str] = ()) -> Verdict:
    """Run a check for ``limit_s`` at most, with further arguments."""
    began = time.monotonic()
    code, output = run_to_the_end([*check.command, *arguments], check.variables, limit_s)
    outcome: Outcome = "passed" if code == 0 else "FAILED"
    if (code is None and limit_s < LIMIT_S) or (code == OUT_OF_TIME and check.rows):
        outcome = "out of time"
    lines = () if outcome == "passed" else tuple(output.splitlines())
    result = Verdict(name=check.name, outcome=outcome, seconds=time.monotonic() - began, last_lines=lines[-LAST_LINES:])
    print(f"{outcome}  {check.name}  {result.seconds:.0f} s", flush=True)
    for line in lines[-PRINTED_LINES:]:
        print(f"    {line}", flush=True)
    return result


def run_to_the_end(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
    """Return the exit code of a command, None if it was ended after ``limit_s`` with its children, and its output."""
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
        output, _ = process.communicate(timeout=limit_s)
    except BaseException as error:
        # Its children would go on, and hold the GPU.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None, f"{output}\ntook longer than {limit_s:.0f} s"
    return process.returncode, output


def run_all(
    planned: Iterable[Check], options: Options, path: Path, machine: Mapping[str, str], directory: Path
) -> bool:
    """Run checks, write the results after each, and return if all of them passed."""
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
        arguments, output = [], directory / f"rows_{number}.json"
        if check.rows:
            # A benchmark ends by itself, and one that was ended has written its rows so far.
            arguments = ["--output", str(output), "--limit_s", str(0.9 * left_s)]
            arguments += ["--known", str(path)] if options.missing else []
        result = verdict(check, limit_s=left_s, arguments=arguments)
        found = {**machine, "checks": [dataclasses.asdict(result)]}
        if check.rows:
            found[check.rows] = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else []
        results.write(path, results.merged(results.read(path), found))
        all_passed &= result.outcome == "passed"
    return all_passed


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
    machine = {"gpu": gpu, "cpu": processor(), "versions": versions("torch", "mujoco", "mujoco-warp", "warp-lang")}
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
    measure.run(main, Options)
