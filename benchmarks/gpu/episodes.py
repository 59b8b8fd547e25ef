"""Measure whole evaluations: the runner with a job file, on MuJoCo-Warp and, right after it, on the CPU.

Each evaluation is a process of its own, as a user starts it, and records its episodes. The policy runs on the same
device as the simulation. The GR00T checkpoint is a fresh one of the usual size with random weights, and sees two
cameras: how long an answer takes does not depend on the weights.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gpu.page import episodes_lines
from benchmarks.gpu.results import EpisodesRow, Evaluation, GpuOptions, measure_all, unknown_keys
from benchmarks.gr00t.checkpoint import save_random_checkpoint, write_policy_yaml
from benchmarks.harness.measure import in_turn, run
from benchmarks.harness.runs import evaluate, job_results, one_job
from isaaclab_arena.distributed.devices import default_num_threads


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to evaluate."""

    title: str  # Its name in the table.
    environment: str
    policy_type: str
    num_envs: tuple[int, ...]  # Numbers of env slots by default.
    policy: Mapping[str, Any] = field(default_factory=dict)  # Options of the policy except a GR00T checkpoint.
    arguments: Mapping[str, Any] = field(default_factory=dict)  # Further options of the environment.
    # Threads of torch on the CPU; None for all cores, the quickest choice for a large network.
    torch_threads: int | None = 1


def _trained(environment: str, num_envs: tuple[int, ...]) -> Job:
    directory = f"models/{environment}"
    return Job(
        title=f"`{directory}`",
        environment=environment,
        policy_type="rsl_rl",
        policy={"checkpoint_path": str(ROOT / directory)},
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
class Options(GpuOptions):
    """Options of the measurement."""

    rounds: int = 1  # Evaluations of each on either side; the figures are those of the median one.
    jobs: tuple[str, ...] = tuple(JOBS)  # Names in `JOBS`.
    num_envs: tuple[int, ...] = ()  # Env slots of every job; by default those that `JOBS` names.
    episodes_per_slot: int = 2  # Episodes for each slot.


def measured(job: Job, num_envs: int, options: Options, yaml: str | None) -> EpisodesRow:
    """Evaluate a job on both sides in turn."""
    calls = {
        side: partial(evaluated, job, num_envs, options, yaml, on_cpu=on_cpu)
        for side, on_cpu in (("warp", False), ("cpu", True))
    }
    sides = {side: median(found) for side, found in in_turn(calls, options.rounds).items()}
    return EpisodesRow(job=job.title, worlds=num_envs, **sides)


def median(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return the median evaluation by its time without building."""
    return sorted(evaluations, key=lambda each: each.per_s)[(len(evaluations) - 1) // 2]


def evaluated(job: Job, num_envs: int, options: Options, yaml: str | None, *, on_cpu: bool) -> Evaluation:
    """Evaluate a job in a process of its own, and read its durations from the runner's table."""
    backend = "mujoco" if on_cpu else "warp"
    arguments = {"environment": job.environment, "num_envs": num_envs, "backend": backend, **job.arguments}
    policy = {**job.policy, **({} if yaml is None else {"policy_config_yaml_path": yaml})}
    document = one_job(arguments, job.policy_type, num_envs * options.episodes_per_slot, policy)
    device = "cpu" if on_cpu else options.device
    threads = (job.torch_threads or default_num_threads()) if device == "cpu" else 1
    with tempfile.TemporaryDirectory(prefix="gpu_episodes_") as name:
        devices = ("--device", device, "--policy_device", device, "--torch_threads", str(threads))
        evaluate(Path(name), document, *devices)
        return evaluation(job_results(Path(name)))


def evaluation(rows: Sequence[Mapping[str, Any]]) -> Evaluation:
    """Return the durations of the one job of a run from its results."""
    (row,) = rows
    return Evaluation(**{each.name: row[each.name] for each in fields(Evaluation)})


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    titles = {JOBS[name].title: name for name in options.jobs}
    keys = [(title, num) for title, name in titles.items() for num in options.num_envs or JOBS[name].num_envs]
    wanted = unknown_keys("episodes", keys, options.known)
    with tempfile.TemporaryDirectory(prefix="gpu_episodes_") as directory:
        model, made = None, Path(directory) / "checkpoint"
        if any(titles[title] == GR00T for title, _ in wanted):
            save_random_checkpoint(made)
            model = write_policy_yaml(Path(directory) / "policy.yaml", made)

        def measure(title: str, num_envs: int) -> EpisodesRow:
            name = titles[title]
            return measured(JOBS[name], num_envs, options, model if name == GR00T else None)

        rows, code = measure_all(wanted, measure, options)
    print("\n".join(episodes_lines(rows)))
    return code


if __name__ == "__main__":
    run(main, Options)
