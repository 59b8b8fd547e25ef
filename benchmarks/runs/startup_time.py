"""Measure the time from the runner's start to its first step.

Starts ``eval_runner`` with a policy that notes the time of its first action, or of its model's first answer. The first
start of each warms the disk cache, the compiled kernels and Python's cache of modules, and does not count. With
``--cold`` GR00T also starts without compiled kernels, as after an installation, but with its files in memory.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, run, spread, values
from benchmarks.harness.policies import NOTE
from benchmarks.harness.runs import evaluate


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    environment: str = "lift_object"  # Environment.
    starts: int = 5  # Number of starts that count.
    cold: bool = False  # Start GR00T without compiled kernels too, half a minute each time.


def with_gr00t(environment: str) -> dict[str, Any]:
    """Return a job of the shipped GR00T model, with two cameras."""
    return {
        "arena_env_args": {
            "environment": environment,
            "embodiment": "panda",
            "num_envs": 8,
            "camera_size": 64,
            "enable_cameras": True,
        },
        "policy_type": "benchmarks.gr00t.policies.FirstAnswerPolicy",
        "policy_config_dict": {
            "policy_config_yaml_path": str(ROOT / "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml"),
            "model_path": str(ROOT / "models/panda_tabletop"),
        },
    }


def first_step(job: Mapping[str, Any], cache: Path, *, compiles: bool = False) -> Timing:
    """Start the runner with a job, and return the time to the policy's note."""
    with tempfile.TemporaryDirectory(prefix="startup_time_") as name:
        note = Path(name) / "first_step.json"
        document = {"jobs": [{**job, "name": "start", "num_steps": 1}]}
        # Python keeps compiled modules, as for a user, for any variables of this benchmark's shell.
        variables = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache), NOTE: str(note)}
        if compiles:
            variables["WARP_CACHE_PATH"] = str(Path(name) / "kernels")
        began = evaluate(Path(name), document, variables=variables).began
        now, cpu_s = json.loads(note.read_text(encoding="utf-8"))
    return Timing(wall_s=now - began, cpu_s=cpu_s)


def main(options: Options) -> None:
    """Start the runner several times, and write the page."""
    page = Page("startup_time", "From the start of the runner to its first step", options, "torch", "transformers")
    with tempfile.TemporaryDirectory(prefix="startup_modules_") as cache:
        jobs = {
            "state only, to the first action": {
                "arena_env_args": {"environment": options.environment, "num_envs": 4},
                "policy_type": "benchmarks.harness.policies.FirstStepPolicy",
            },
            "GR00T with two cameras, to the first answer": with_gr00t(options.environment),
        }
        calls = {label: partial(first_step, job, Path(cache)) for label, job in jobs.items()}
        if options.cold:
            cold = partial(first_step, with_gr00t(options.environment), Path(cache), compiles=True)
            calls["the same, where no kernel was compiled"] = cold
        taken = in_turn(calls, options.starts, warm_up=1)
    table = Table("job", "seconds", "CPU seconds")
    for label, starts in taken.items():
        table.add(label, spread(values(starts, "wall_s")), spread(values(starts, "cpu_s")))
    text = f"""\
`{options.environment}`, medians of {options.starts} starts with the smallest and the largest; kernels were compiled
before, unless it says otherwise. Where other programs run, the seconds are theirs too, and the CPU seconds say what a
start costs."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
