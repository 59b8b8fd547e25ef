"""Measure the stages from a GR00T model's directory to its first answer.

Usage: python -m benchmarks.gr00t.start YAML DEVICE NUM_THREADS, which starts once and prints the seconds
"""

import importlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.harness.measure import in_turn, markdown_table, timed
from benchmarks.harness.workers import Worker, module

STAGES = ("import torch", "import gr00t", "load", "first query", "second query")
Start = dict[str, dict[str, float]]
"""Stage to wall and CPU seconds."""


def start_once(yaml: str, device: str, num_threads: int) -> Start:
    """Load the model of a YAML file in this process, which has loaded nothing, and ask it twice."""
    found: Start = {}

    def stage(name: str, call: Callable[[], Any]) -> Any:
        results = []
        found[name] = vars(timed(lambda: results.append(call())))
        return results.pop()

    torch = stage("import torch", lambda: importlib.import_module("torch"))
    torch.set_num_threads(num_threads)
    policy_class = stage("import gr00t", lambda: importlib.import_module("gr00t.policy.gr00t_policy").Gr00tPolicy)
    # These imports are stages above.
    from benchmarks.gr00t.checkpoint import shown  # noqa: PLC0415
    from isaaclab_arena_gr00t.config import read_policy_config  # noqa: PLC0415

    config = read_policy_config(yaml)
    policy = stage("load", lambda: policy_class(config.embodiment_tag, config.model_path, device=device))
    observation = shown(policy.get_modality_config(), policy.get_dimensions(), 1, config)
    for name in STAGES[-2:]:
        stage(name, lambda: policy.get_action(observation, {"noise_seeds": [0]}))
    return found


def start_table(yaml: str, *, devices: Sequence[str], num_threads: int, repetitions: int) -> list[str]:
    """Return the lines of the table of starts."""

    def start_elsewhere(device: str) -> Start:
        worker = Worker(module("benchmarks.gr00t.start", yaml, device, num_threads), os.environ)
        found = worker.answer()
        worker.close()
        return found

    calls = {device: partial(start_elsewhere, device) for device in devices}
    table = []
    for device, starts in in_turn(calls, repetitions).items():
        for name, clock in (("wall", "wall_s"), ("CPU", "cpu_s")):
            seconds = [statistics.median(start[stage][clock] for start in starts) for stage in STAGES]
            whole = statistics.median(sum(start[stage][clock] for stage in STAGES[:-1]) for start in starts)
            table.append((device, name, *(f"{each:.2f}" for each in (*seconds, whole))))
    return markdown_table(("device", "seconds", *STAGES, "to the first answer"), table, words=2)


if __name__ == "__main__":
    print(json.dumps(start_once(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
