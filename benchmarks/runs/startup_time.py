"""Measure how long the runner takes from its start to its first step.

Starts ``eval_runner`` as a user does, with a policy that notes when it is first asked for an action. The first start
warms the disk cache and is not counted.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.evaluations import evaluate
from benchmarks.harness.pages import run
from benchmarks.harness.tables import spread
from benchmarks.harness.timing import Timing, in_turn, values


@dataclass(frozen=True)
class Options:
    """What to measure."""

    environment: str = "lift_object"  # What is run.
    starts: int = 5  # Number of starts that count.


def first_step(environment: str) -> Timing:
    """Start the runner, and return what it took to the first action."""
    with tempfile.TemporaryDirectory(prefix="startup_time_") as name:
        note = Path(name) / "first_step.json"
        job = {
            "name": "start",
            "arena_env_args": {"environment": environment, "num_envs": 4},
            "policy_type": "benchmarks.runs.first_step_policy.FirstStepPolicy",
            "policy_config_dict": {"note": str(note)},
            "num_steps": 1,
        }
        began = evaluate(Path(name), {"jobs": [job]}).began
        now, cpu_s = json.loads(note.read_text(encoding="utf-8"))
    return Timing(wall_s=now - began, cpu_s=cpu_s)


def main(options: Options) -> None:
    """Start the runner several times, and print the medians."""
    taken = in_turn({"start": lambda: first_step(options.environment)}, options.starts, warm_up=1)["start"]
    wall, cpu = spread(values(taken, "wall_s")), spread(values(taken, "cpu_s"))
    print(f"first step of {options.environment} after {wall} s, {cpu} CPU seconds, {options.starts} starts")


if __name__ == "__main__":
    run(main, Options)
