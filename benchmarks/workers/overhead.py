"""Measure the cost of a worker process per step: an environment that does nothing, with and without pictures."""

import sys
import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import ROOT
from benchmarks.harness.environments import build
from benchmarks.harness.gym_environments import STILL
from benchmarks.harness.measure import Page, PageOptions, Table, run


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    steps: int = 600  # Steps of each measurement.
    rounds: int = 3  # Measurements of each kind, in turn; the page shows the least disturbed one.


def measure(num_pictures: int, options: Options) -> tuple[float, float, float]:
    """Return the fastest and the median wall time of a step, and the mean CPU time in this process [ms]."""
    environment = build(
        f"gym:{STILL}",
        1,
        python=sys.executable,
        environment_variables={"PYTHONPATH": str(ROOT)},
        make_kwargs={"num_pictures": num_pictures},
    )
    environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    action, times_s = torch.zeros(1, 7), []
    began_s = time.process_time()
    for _ in range(options.steps):
        step_began_s = time.perf_counter()
        environment.step(action)
        times_s.append(time.perf_counter() - step_began_s)
    cpu_s = (time.process_time() - began_s) / options.steps
    environment.close()
    return 1e3 * min(times_s), 1e3 * float(np.median(times_s)), 1e3 * cpu_s


def main(options: Options) -> None:
    """Measure all kinds in turn, and write the page."""
    page = Page("worker_overhead", "What a worker adds to a step", options)
    kinds = (0, 1, 2)
    rounds = [{kind: measure(kind, options) for kind in kinds} for _ in range(options.rounds)]
    table = Table("pictures of 256 x 256", "fastest step, ms", "median step, ms", "CPU of this process, ms")
    for kind in kinds:
        table.add(str(kind), *(f"{min(each[kind][column] for each in rounds):.2f}" for column in range(3)))
    text = """\
One env slot in a worker of this interpreter. Its environment does nothing and observes 30 numbers, so all of the time
is that of the worker, of the pipes and of the batch. The median counts what else the machine does, the fastest step
hardly."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
