"""Measure how many env slots pay on a CPU: the CPU time of a control step, for each of 1 to 64 env slots.

A job that names no number of env slots gets as many as `paying_num_envs` of its environment says; this page is why.
"""

import time
from dataclasses import dataclass
from itertools import count

import torch

from benchmarks.harness.environments import build, make_policy, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run

SHOWN = (
    ("reach", "scripted"),
    ("lift_object", "scripted"),
    ("lift_object", "random_action"),
    ("stack", "scripted"),
    ("cartpole", "random_action"),
    ("velocity_go1", "random_action"),
)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: tuple[int, ...] = (1, 4, 8, 16, 32, 64)  # Numbers of env slots.
    seconds: float = 2.0  # CPU time of each measurement.


def cpu_ms_per_step(task: str, policy_type: str, num_envs: int, seconds: float) -> float:
    """Return the CPU time of a control step of one env slot, loop and policy included [ms]."""
    environment, policy = build(task, num_envs), make_policy(policy_type)
    tally(environment, policy, num_envs)  # the first steps compile and allocate
    begin, steps = time.process_time(), 0
    for _ in count():
        steps += tally(environment, policy, 4 * num_envs).busy
        spent_s = time.process_time() - begin
        if spent_s >= seconds:
            environment.close()
            return 1000 * spent_s / steps
    raise AssertionError


def main(options: Options) -> None:
    """Measure each environment, and write the page."""
    torch.set_num_threads(1)
    page = Page("env_slots", "How many env slots pay", options)
    table = Table("environment and policy", *(f"{number} env slots" for number in options.num_envs), words=1)
    for task, policy_type in SHOWN:
        found = [cpu_ms_per_step(task, policy_type, number, options.seconds) for number in options.num_envs]
        table.add(f"{task}, {policy_type}", *(f"{ms:.3f}, {found[0] / ms:.1f} times" for ms in found))
    page.write(
        "CPU milliseconds of a control step of one env slot, with loop and policy, and how many times as fast as with\n"
        "one env slot. One physics thread. Episodes run to their end, so the rest of the last ones counts.",
        table,
    )


if __name__ == "__main__":
    run(main, Options)
