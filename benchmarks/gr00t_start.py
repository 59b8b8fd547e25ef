"""How long a GR00T model takes from its folder to its first answer, by what the time goes into.

As a program, ``gr00t_start.py YAML DEVICE NUM_THREADS``, it starts once and prints the seconds.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("import torch", "import gr00t", "load", "first query", "second query")


class Stages:
    """Notes wall and CPU seconds of one stage after the other; what passes between them does not count."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the time inside the ``with`` block as that of a stage."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.seconds[stage] = (time.perf_counter() - wall, time.process_time() - cpu)


def start_once(yaml: str, device: str, num_threads: int) -> dict[str, tuple[float, float]]:
    """Load the model of a YAML file in this process, which has loaded nothing, and ask it twice.

    Returns:
        Stage to wall and CPU seconds.
    """
    stages = Stages()
    # The imports are what is measured, so they stand in their stages.
    with stages.measure("import torch"):
        import torch  # noqa: PLC0415
    torch.set_num_threads(num_threads)
    with stages.measure("import gr00t"):
        from gr00t.policy.gr00t_policy import Gr00tPolicy  # noqa: PLC0415
    from gr00t_checkpoint import shown  # noqa: PLC0415

    from isaaclab_arena_gr00t.config import read_policy_config  # noqa: PLC0415

    config = read_policy_config(yaml)
    with stages.measure("load"):
        policy = Gr00tPolicy(config.embodiment_tag, config.model_path, device=device)
    observation = shown(policy.get_modality_config(), policy.get_dimensions(), 1, config)
    for stage in ("first query", "second query"):
        with stages.measure(stage):
            policy.get_action(observation, {"noise_seeds": [0]})
    return stages.seconds


def start_elsewhere(yaml: str, device: str, num_threads: int) -> dict[str, list[float]]:
    """Do so in a process of its own."""
    command = [sys.executable, __file__, yaml, device, str(num_threads)]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def start_table(yaml: str, *, devices: Sequence[str], num_threads: int, repetitions: int) -> list[str]:
    """Return the lines of the table of starts."""
    starts: dict[str, list[dict[str, list[float]]]] = {device: [] for device in devices}
    for _ in range(repetitions):
        for device in devices:
            starts[device].append(start_elsewhere(yaml, device, num_threads))
    lines = [
        f"| device | seconds | {' | '.join(STAGES)} | to the first answer |",
        f"| --- | --- |{' ---: |' * (len(STAGES) + 1)}",
    ]
    for device in devices:
        for index, clock in enumerate(("wall", "CPU")):
            cells = [statistics.median(start[stage][index] for start in starts[device]) for stage in STAGES]
            whole = statistics.median(sum(start[stage][index] for stage in STAGES[:-1]) for start in starts[device])
            lines.append(f"| {device} | {clock} | {' | '.join(f'{cell:.2f}' for cell in (*cells, whole))} |")
    return lines


if __name__ == "__main__":
    print(json.dumps(start_once(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
