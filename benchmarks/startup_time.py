"""How long the runner takes from its start to its first step: ``python benchmarks/startup_time.py``.

Starts ``eval_runner`` as a user does, with a policy that notes when it is first asked for an action. The first start
warms the disk cache and is not counted.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[1]
POLICY = '''
import os
import time

import torch

from isaaclab_arena.interfaces.policy import PolicyBase


class Clock(PolicyBase):
    """Writes down when it is first asked."""

    def get_action(self, env, observation):
        path = os.environ["FIRST_STEP_FILE"]
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write(repr((time.time(), time.process_time())))
        return torch.zeros(env.action_space.shape)
'''


@dataclass(frozen=True)
class Options:
    """Time from the start of eval_runner to its first step."""

    environment: str = "lift_object"
    starts: int = 5


def first_step(directory: Path, environment: str) -> tuple[float, float]:
    """Return seconds from the start of the process to the first action: wall clock, and of its CPU."""
    (directory / "clock_policy.py").write_text(POLICY)
    job = {
        "name": "start",
        "arena_env_args": {"environment": environment, "num_envs": 4},
        "policy_type": "clock_policy.Clock",
        "num_steps": 1,
    }
    (directory / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    note = directory / "first_step"
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{directory}", "FIRST_STEP_FILE": str(note)}
    command = [sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner"]
    started = time.time()
    subprocess.run(
        [*command, "--eval_jobs_config", str(directory / "jobs.json"), "--output_base_dir", str(directory / "out")],
        env=variables,
        check=True,
        capture_output=True,
    )
    wall, cpu = map(float, note.read_text().strip("()").split(","))
    return wall - started, cpu


def main(options: Options) -> None:
    timings = []
    for start in range(options.starts + 1):
        with tempfile.TemporaryDirectory() as directory:
            timing = first_step(Path(directory), options.environment)
        if start > 0:
            timings.append(timing)
    wall, cpu = ([timing[unit] for timing in timings] for unit in (0, 1))
    print(f"first step of {options.environment} after a median of {statistics.median(wall):.2f} s", end="")
    print(f" ({min(wall):.2f} to {max(wall):.2f}), {statistics.median(cpu):.2f} CPU seconds, {options.starts} starts")


if __name__ == "__main__":
    main(tyro.cli(Options))
