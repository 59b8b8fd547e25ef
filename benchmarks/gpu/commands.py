"""List what ``make gpu-check`` runs: a command for everything that is checked or measured, part by part."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks import RESULTS, ROOT
from benchmarks.harness.workers import module

TORCHRUN = ("torch.distributed.run", "--standalone")
TRAINER = "isaaclab_arena.training.train"

TESTS = ("tests", "submodules/Isaac-GR00T/tests")
LONGEST_JOBS = "gr00t_evaluation.json"

Part = Literal["tests", "training", "jobs", "physics", "pictures", "episodes", "policies"]
PARTS: tuple[Part, ...] = ("tests", "training", "jobs", "physics", "pictures", "episodes", "policies")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to check."""

    name: str = ""  # What the machine is called in file names; the GPU's name by default.
    parts: tuple[Part, ...] = PARTS  # What is run; the others' results stay as they are.
    missing: bool = False  # Whether to run only what the results lack.
    limit_s: float | None = None  # Time for all of it, None for as long as it takes; what was not run is told [s].
    device: str = "cuda:0"  # Where it runs.
    # Where results and page go; by default into the repository, where figures of a CPU do not belong.
    directory: Path | None = None
    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")  # Environments whose physics is measured.
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)  # Numbers of worlds whose physics is measured.
    picture_worlds: tuple[int, ...] = (16, 64, 256, 1024, 2048)  # Numbers of worlds whose pictures are measured.
    # Jobs of `episodes.JOBS` that are evaluated.
    evaluations: tuple[str, ...] = ("zero_action", "go1", "push_cube", "gr00t")
    num_envs: tuple[int, ...] = ()  # Env slots of each of these; by default those that `episodes.JOBS` names.
    control_steps: int = 20  # Control steps of a turn of physics and pictures.
    rounds: int = 3  # Turns of physics and pictures.


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to run."""

    name: str  # What it shows.
    command: Sequence[str]  # What is run.
    variables: Mapping[str, str] = field(default_factory=dict)  # Environment variables beside those that are there.
    rows: Part | None = None  # For a benchmark, the part that its rows of figures belong to.


def checks(options: Options, directory: Path, num_gpus: int) -> Iterator[Check]:
    """Yield what is run, in order.

    Args:
        options: What is asked for.
        directory: Where programs may write.
        num_gpus: GPUs of this machine.
    """
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
    """Yield what a GR00T model's answers cost, compiled too, and what it gives to divide env slots into two groups."""
    results = options.directory or RESULTS
    answers = ("--devices", options.device, "--compiled_on", options.device, "--starts", "1", "--runs", "1")
    groups = ("--device", options.device, "--backend", "warp", "--num_envs", "64", "--pairs", "3")
    for name, program, page, words in (
        ("answers of GR00T", "policy", "gr00t_policy", answers),
        ("two groups of env slots", "pipeline", "pipeline", groups),
    ):
        output = ("--output", results / f"{page}-{options.name}.md")
        yield Check(name=name, command=module(f"benchmarks.gr00t.{program}", *words, *output))


def _turns(options: Options) -> tuple[object, ...]:
    return ("--control_steps", options.control_steps, "--rounds", options.rounds)


def _program(name: str, options: Options, *words: object) -> Sequence[str]:
    return module(f"benchmarks.gpu.{name}", "--device", options.device, *words)
