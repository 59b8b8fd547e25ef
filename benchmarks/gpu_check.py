"""Check and measure everything that needs a GPU, on a machine that has one: ``make gpu-check``.

Runs the tests that are marked ``gpu``, training with one rank on each GPU (over NCCL where there are several), two
ranks that share a GPU over gloo, every job file on the GPU, and the benchmark. Writes
benchmarks/results/gpu-<name>.json and the table in docs/performance.md. Without a GPU it says so, and does nothing.

Usage: python benchmarks/gpu_check.py [--name h200]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp
import torch
import tyro
import warp

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TRAIN = ("-m", "isaaclab_arena.training.train", "cartpole", "--num_envs", "64", "--max_iterations", "20")
EVALUATE = (sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner", "--device", "cuda")
LIMIT_S = 1800
LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to check.

    Attributes:
        name: What the machine is called in file names; the GPU's name by default.
        worlds: Numbers of worlds to measure with.
    """

    name: str = ""
    worlds: tuple[int, ...] = (64, 512, 4096)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to run.

    Attributes:
        name: What it shows.
        command: What is run.
        variables: Environment variables beside those that are there.
    """

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a check.

    Attributes:
        name: What it shows.
        passed: Whether it ended well.
        seconds: How long it took [s].
        last_lines: What it said last, where it failed.
    """

    name: str
    passed: bool
    seconds: float
    last_lines: tuple[str, ...] = ()


def checks(folder: Path, num_gpus: int) -> Iterator[Check]:
    """Yield what is run beside the benchmark."""
    yield Check(name="tests that need a GPU", command=(sys.executable, "-m", "pytest", "-q", "-m", "gpu"))
    logs = ("--log_root", str(folder / "logs"))
    yield Check(
        name=f"training, a rank on each GPU ({num_gpus})",
        command=(*TORCHRUN, f"--nproc_per_node={num_gpus}", *TRAIN, *logs),
    )
    yield Check(
        name="training over gloo, 2 ranks on one GPU",
        command=(*TORCHRUN, "--nproc_per_node=2", *TRAIN, *logs),
        variables={"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]},
    )
    yield Check(
        name="training on MuJoCo-Warp, 4,096 environments",
        command=(
            *(sys.executable, "-m", "isaaclab_arena.training.train", "velocity_go1", "--num_envs", "4096"),
            *("--max_iterations", "20", "env.backend=warp", *logs),
        ),
    )
    for file in sorted(path for path in (ROOT / "jobs").iterdir() if path.suffix in {".json", ".yaml"}):
        output = ("--output_dir", str(folder / file.stem))
        yield Check(name=f"jobs/{file.name} on the GPU", command=(*EVALUATE, "--eval_jobs_config", str(file), *output))


def verdict(check: Check) -> Verdict:
    """Run a check."""
    began = time.monotonic()
    try:
        finished = subprocess.run(
            check.command,
            cwd=ROOT,
            env={**os.environ, **check.variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        passed, said = finished.returncode == 0, finished.stdout + finished.stderr
    except subprocess.TimeoutExpired:
        passed, said = False, f"took longer than {LIMIT_S} s"
    last = () if passed else tuple(said.splitlines()[-LAST_LINES:])
    told = Verdict(name=check.name, passed=passed, seconds=time.monotonic() - began, last_lines=last)
    print(f"{'passed' if passed else 'FAILED'}  {check.name}  {told.seconds:.0f} s", flush=True)
    for line in last:
        print(f"    {line}")
    return told


def benchmark(options: Options, folder: Path) -> tuple[Verdict, list[dict[str, Any]]]:
    """Run the benchmark, and return its rows."""
    output = folder / "throughput.json"
    told = verdict(
        Check(
            name="benchmark",
            command=(
                *(sys.executable, str(Path(__file__).parent / "gpu_throughput.py"), "--output", str(output)),
                *("--worlds", *map(str, options.worlds)),
            ),
        )
    )
    return told, json.loads(output.read_text(encoding="utf-8")) if output.is_file() else []


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the document with a table for each machine that was measured."""
    from gpu_throughput import Row, table  # noqa: PLC0415  it needs Warp, and nothing is shown without

    lines = [
        "# What a GPU gives",
        "",
        "Physics steps per second of MuJoCo-Warp alone (what `mjwarp-testspeed` times), through this package's",
        "backend, through environments with observations, rewards and new episodes, and of MuJoCo on the machine's",
        "CPU. Made by `make gpu-check`.",
        "",
    ]
    if not results:
        lines += ["No machine with a GPU has run it yet, so there is nothing to show.", ""]
    for result in results:
        lines += [f"## {result['gpu']}", "", f"{result['versions']}.", ""]
        lines += [f"- {'passed' if each['passed'] else 'FAILED'}: {each['name']}" for each in result["checks"]]
        lines += ["", *table([Row(**row) for row in result["throughput"]]), ""]
    return "\n".join(lines)


def main(options: Options) -> int:
    """Check, measure and write; return 0 if all is well or there is no GPU."""
    if not torch.cuda.is_available():
        print("no GPU: nothing was checked")
        return 0
    gpu = torch.cuda.get_device_name(0)
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as name:
        folder = Path(name)
        verdicts = [verdict(check) for check in checks(folder, torch.cuda.device_count())]
        told, rows = benchmark(options, folder)
    result = {
        "gpu": gpu,
        "versions": f"torch {torch.__version__}, MuJoCo {mujoco.__version__}, MuJoCo-Warp {mujoco_warp.__version__}, "
        f"Warp {warp.__version__}",
        "checks": [asdict(each) for each in (*verdicts, told)],
        "throughput": rows,
    }
    name = options.name or gpu.lower().replace(" ", "-")
    (RESULTS / f"gpu-{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    write_document()
    return 0 if all(each.passed for each in (*verdicts, told)) else 1


def write_document() -> None:
    """Write docs/performance.md from the results that are there."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("gpu-*.json"))]
    DOCUMENT.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
