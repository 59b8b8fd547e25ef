"""Measure whole evaluations: the runner with a job file, on MuJoCo-Warp and, right after it, on the CPU.

Usage: python benchmarks/gpu_episodes.py [--device cuda:0] [--jobs zero_action go1] [--num_envs 64 512]

Each evaluation is a process of its own, as a user starts it, and records its episodes. The policy runs on the same
device as the simulation. The GR00T checkpoint is a fresh one of the usual size with random weights, and sees two
cameras: how long an answer takes does not depend on the weights.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import tyro
from gpu_page import episodes_lines
from gpu_rows import ROW_KEYS, EpisodesRow, Evaluation
from gpu_worlds import known_keys, measure_all
from gr00t_checkpoint import save_random_checkpoint, write_policy_yaml

from isaaclab_arena.sim.threads import available_cores

ROOT = Path(__file__).parents[1]
_LAST_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is evaluated.

    Attributes:
        title: What it is called in the table.
        environment: The environment.
        policy_type: The policy.
        policy: Its options; a GR00T policy gets its checkpoint besides.
        arguments: Further options of the environment.
        num_envs: Numbers of rows to run it with, unless others are asked for.
        torch_threads: Threads of torch on the CPU; None for all cores, which a large network is quickest with.
    """

    title: str
    environment: str
    policy_type: str
    num_envs: tuple[int, ...]
    policy: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    torch_threads: int | None = 1


def _trained(environment: str, num_envs: tuple[int, ...]) -> Job:
    folder = f"models/{environment}"
    return Job(
        title=f"`{folder}`",
        environment=environment,
        policy_type="rsl_rl",
        policy={"checkpoint_path": str(ROOT / folder)},
        num_envs=num_envs,
    )


GR00T = "gr00t"
JOBS = {
    "zero_action": Job(
        title="`zero_action` on `lift_object`",
        environment="lift_object",
        policy_type="zero_action",
        num_envs=(64, 512, 2048),
    ),
    "go1": _trained("velocity_go1", (64, 512, 2048)),
    "push_cube": _trained("push_cube", (64, 512, 2048)),
    GR00T: Job(
        title="GR00T on `lift_object`, two cameras",
        environment="lift_object",
        policy_type="gr00t_closedloop",
        arguments={"enable_cameras": True, "camera_size": 64},
        num_envs=(16, 64, 256),
        torch_threads=None,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        device: Where MuJoCo-Warp and the policy run, beside the CPU.
        jobs: Which of `JOBS`.
        num_envs: Rows of every job; by default those that `JOBS` names.
        episodes_per_row: Episodes for each row.
        rounds: Evaluations of each on either side; the figures are those of the median one.
        limit_s: Time for all of it, None for as long as it takes [s].
        known: Results file; what is in it is not measured again.
        output: Where the figures go, as JSON; nowhere by default.
    """

    device: str = "cuda:0"
    jobs: tuple[str, ...] = tuple(JOBS)
    num_envs: tuple[int, ...] = ()
    episodes_per_row: int = 2
    rounds: int = 1
    limit_s: float | None = None
    known: Path | None = None
    output: Path | None = None


def measured(job: Job, num_envs: int, options: Options, yaml: str | None) -> EpisodesRow:
    """Evaluate a job on both sides in turn."""
    sides: dict[str, list[Evaluation]] = {"warp": [], "cpu": []}
    for _ in range(options.rounds):
        for side, found in sides.items():
            found.append(evaluated(job, num_envs, options, yaml, on_cpu=side == "cpu"))
    return EpisodesRow(job=job.title, worlds=num_envs, **{side: median(found) for side, found in sides.items()})


def median(evaluations: list[Evaluation]) -> Evaluation:
    """Return the evaluation in the middle, by its time without building."""
    return sorted(evaluations, key=lambda each: each.per_s)[(len(evaluations) - 1) // 2]


def evaluated(job: Job, num_envs: int, options: Options, yaml: str | None, *, on_cpu: bool) -> Evaluation:
    """Evaluate a job in a process of its own, and read what it took from the runner's table."""
    document = {
        "name": "job",
        "arena_env_args": {
            "environment": job.environment,
            "num_envs": num_envs,
            "backend": "mujoco" if on_cpu else "warp",
            **job.arguments,
        },
        "policy_type": job.policy_type,
        "policy_config_dict": {**job.policy, **({} if yaml is None else {"policy_config_yaml_path": yaml})},
        "num_episodes": num_envs * options.episodes_per_row,
    }
    device = "cpu" if on_cpu else options.device
    threads = (job.torch_threads or available_cores()) if device == "cpu" else 1
    with tempfile.TemporaryDirectory(prefix="gpu_episodes_") as name:
        jobs, output = Path(name) / "jobs.json", Path(name) / "out"
        jobs.write_text(json.dumps({"jobs": [document]}), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner", "--eval_jobs_config", str(jobs)),
            *("--output_dir", str(output), "--device", device, "--policy_device", device),
            *("--torch_threads", str(threads)),
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            said = (ended.stdout + ended.stderr)[-_LAST_CHARACTERS:]
            raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {said}")
        return evaluation(json.loads((output / "results.json").read_text(encoding="utf-8")))


def evaluation(results: Mapping[str, Any]) -> Evaluation:
    """Return what the one job of a run's ``results.json`` took."""
    (row,) = results["jobs"]
    return Evaluation(**{each.name: row[each.name] for each in fields(Evaluation)})


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    known = known_keys(options.known, "episodes", ROW_KEYS["episodes"])
    wanted = [
        (name, num_envs)
        for name in options.jobs
        for num_envs in options.num_envs or JOBS[name].num_envs
        if (JOBS[name].title, num_envs) not in known
    ]
    with tempfile.TemporaryDirectory(prefix="gpu_episodes_") as folder:
        yaml = checkpoint(Path(folder)) if any(name == GR00T for name, _ in wanted) else None
        rows, code = measure_all(
            wanted,
            lambda key: measured(JOBS[key[0]], key[1], options, yaml if key[0] == GR00T else None),
            output=options.output,
            limit_s=options.limit_s,
        )
    print("\n".join(episodes_lines(rows)))
    return code


def checkpoint(folder: Path) -> str:
    """Write a GR00T checkpoint, and return the path of the YAML file that names it."""
    save_random_checkpoint(folder / "checkpoint")
    return write_policy_yaml(folder / "policy.yaml", folder / "checkpoint")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
