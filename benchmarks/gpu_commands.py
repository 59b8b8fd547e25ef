"""What ``make gpu-check`` runs: a command for everything that is checked or measured, part by part."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
BENCHMARKS = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TRAINER = ("-m", "isaaclab_arena.training.train")

RESULTS = BENCHMARKS / "results"

Part = Literal["tests", "training", "jobs", "physics", "pictures", "episodes", "policies"]
PARTS: tuple[Part, ...] = ("tests", "training", "jobs", "physics", "pictures", "episodes", "policies")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to check.

    Attributes:
        name: What the machine is called in file names; the GPU's name by default.
        parts: What is run; the others' results stay as they are.
        missing: Whether to run only what the results lack.
        limit_s: Time for all of it, None for as long as it takes; what was not run is told [s].
        device: Where it runs.
        folder: Where results and page go; by default into the repository, where figures of a CPU do not belong.
        tasks: Environments whose physics is measured.
        worlds: Numbers of worlds whose physics is measured.
        picture_worlds: Numbers of worlds whose pictures are measured.
        evaluations: Jobs of `gpu_episodes.JOBS` that are evaluated.
        num_envs: Rows of each of these; by default those that `gpu_episodes.JOBS` names.
        control_steps: Control steps of a turn of physics and pictures.
        rounds: Turns of physics and pictures.
    """

    name: str = ""
    parts: tuple[Part, ...] = PARTS
    missing: bool = False
    limit_s: float | None = None
    device: str = "cuda:0"
    folder: Path | None = None
    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)
    picture_worlds: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    evaluations: tuple[str, ...] = ("zero_action", "go1", "push_cube", "gr00t")
    num_envs: tuple[int, ...] = ()
    control_steps: int = 20
    rounds: int = 3


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to run.

    Attributes:
        name: What it shows.
        command: What is run.
        variables: Environment variables beside those that are there.
        rows: For a benchmark, the part that its rows belong to.
    """

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    rows: Part | None = None


def checks(options: Options, folder: Path, num_gpus: int) -> Iterator[Check]:
    """Yield what is run, in order.

    Args:
        options: What is asked for.
        folder: Where programs may write.
        num_gpus: GPUs of this machine.
    """
    of_part = {
        "tests": tests,
        "training": lambda: trainings(folder, num_gpus),
        "jobs": lambda: job_files(options, folder),
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
    yield Check(name="tests that need a GPU", command=(sys.executable, "-m", "pytest", "-q", "-m", "gpu"))


def trainings(folder: Path, num_gpus: int) -> Iterator[Check]:
    """Yield trainings on one GPU and on all."""
    logs = ("--log_root", str(folder / "logs"))
    short = (*TRAINER, "cartpole", "--num_envs", "64", "--max_iterations", "20", *logs)
    yield Check(
        name=f"training, a rank on each GPU ({num_gpus})", command=(*TORCHRUN, f"--nproc_per_node={num_gpus}", *short)
    )
    yield Check(
        name="training over gloo, 2 ranks on one GPU",
        command=(*TORCHRUN, "--nproc_per_node=2", *short),
        variables={"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]},
    )
    yield Check(
        name="training on MuJoCo-Warp, 4,096 environments",
        command=(
            *(sys.executable, *TRAINER, "velocity_go1", "--num_envs", "4096"),
            *("--max_iterations", "20", "env.backend=warp", *logs),
        ),
    )


def job_files(options: Options, folder: Path) -> Iterator[Check]:
    """Yield every job file."""
    evaluate = (sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner", "--device", options.device)
    for file in sorted(path for path in (ROOT / "jobs").iterdir() if path.suffix in {".json", ".yaml"}):
        output = ("--output_dir", str(folder / file.stem))
        yield Check(name=f"jobs/{file.name} on the GPU", command=(*evaluate, "--eval_jobs_config", str(file), *output))


def physics(options: Options) -> Iterator[Check]:
    """Yield the benchmark of physics, task by task."""
    numbers = ("--worlds", *map(str, options.worlds))
    for task in options.tasks:
        command = _program("gpu_throughput", options, "--tasks", task, *numbers, *_turns(options))
        yield Check(name=f"physics of {task}", command=command, rows="physics")


def pictures(options: Options) -> Iterator[Check]:
    """Yield the benchmark of pictures."""
    command = _program("gpu_pictures", options, "--worlds", *map(str, options.picture_worlds), *_turns(options))
    yield Check(name="pictures", command=command, rows="pictures")


def episodes(options: Options) -> Iterator[Check]:
    """Yield the benchmark of whole evaluations, job by job."""
    num_envs = ("--num_envs", *map(str, options.num_envs)) if options.num_envs else ()
    for job in options.evaluations:
        command = _program("gpu_episodes", options, "--jobs", job, *num_envs)
        yield Check(name=f"episodes of {job}", command=command, rows="episodes")


def policies(options: Options) -> Iterator[Check]:
    """Yield what a GR00T model's answers cost, compiled too, and what it gives to divide rows into two groups."""
    results = options.folder or RESULTS
    for name, program, arguments in (
        ("answers of GR00T", "gr00t_policy", ("--devices", options.device, "--compiled_on", options.device)),
        ("two groups of rows", "pipeline", ("--device", options.device, "--backend", "warp", "--num_envs", "64")),
    ):
        output = ("--output", str(results / f"{program}-{options.name}.md"))
        repeated = ("--starts", "1", "--runs", "1") if program == "gr00t_policy" else ("--pairs", "3")
        command = (sys.executable, str(BENCHMARKS / f"{program}.py"), *arguments, *repeated, *output)
        yield Check(name=name, command=command)


def _turns(options: Options) -> tuple[str, ...]:
    return ("--control_steps", str(options.control_steps), "--rounds", str(options.rounds))


def _program(name: str, options: Options, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(BENCHMARKS / f"{name}.py"), "--device", options.device, *arguments)
