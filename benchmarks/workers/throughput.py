"""Compare workers with plain loops, one on each core, in the same interpreter: PushT, and Lift with pictures."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.environments import CPU, build, episodes, make_policy
from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.workers import children, cpu_s, memory_bytes
from benchmarks.workers.plain_loop import EPISODE_STEPS
from isaaclab_arena.distributed.devices import choose_opengl
from isaaclab_arena.evaluation.rollout import EnvGroup, group_sizes, pipelined_rollout, rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import Observer, Transition

_PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")

ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pusht": ("gym:gym_pusht:gym_pusht/PushT-v0", {"make_kwargs": {"obs_type": "state"}, "success_key": "is_success"}),
    "lift": ("robosuite:Lift", {"enable_cameras": True}),
}


TEXT = """\
Plain loops: one process on each core makes steps of one environment in a `for` loop. The others: this program's loop
with the policy `random_action`, and every picture drawn and looked at. All run in the same interpreter of the
environment, in turn in each round, and start with the second step. PushT begins an episode every 300 steps.

Steps per second are those of the best round; ratios are medians over rounds. CPU is that of workers and of this
process; its ratio is the share that is left to environments where every core is busy. Whatever else the machine does
takes caches away, and more so from processes that are woken for each step. Memory is that of the workers, for each env
slot; what processes share is divided among them."""

PUSHT_TEXT = """\


What was seen of PushT, on 2 cores where nothing else ran (2026-11-24). With four env slots in each of two workers, a
step of all eight takes 1.10 ms: first this process works for 0.25 ms, while the other core waits, then both workers for
0.85 ms. A plain loop's step takes 0.178 ms of CPU time in these workers' interpreter, 0.188 ms as a worker makes it,
and 0.211 ms where this process takes turns with it on a core. The loop's own code takes 0.07 of the 0.25 ms when it is
repeated without workers. So what a step costs beside the environment is mostly processes that wake, and memory that has
left the caches. It is paid for each exchange: with eight or more env slots in each worker it matters little.

What was tried for eight env slots: one short message for all env slots of a worker, whose numbers lie in shared memory,
and less work in the loop (from 0.56 to 0.66 of plain loops by wall time, from 0.66 to 0.71 by CPU time); workers that
collect no garbage within steps (at most 0.002 ms a step); two groups that take turns, so that no core waits (0.63: each
group is a loop of its own, which costs as much as the wait); workers or this process that look for messages for a while
before they sleep (0.42 to 0.63, beside 0.60 without), and workers that are bound to cores (0.61), on 2026-11-27. Two
cores that never wait reach 0.75 with 0.25 CPU ms a step. What is left is to wake processes less often, and a policy
that looks at every observation needs each of them."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the program."""

    pusht_python: str = ""  # Interpreter with gym-pusht 0.1.8; without it PushT is left out.
    robosuite_python: str = ""  # Interpreter with robosuite 1.5.2; without it Lift is left out.
    num_envs: int = 8  # Env slots of this program.
    pusht_steps: int = 4800  # Steps of all env slots together in each measurement.
    lift_steps: int = 160  # The same for Lift.
    rounds: int = 3  # Rounds, each of which measures everything in turn.


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Resources of some steps."""

    num_steps: int  # Steps of all env slots.
    wall_s: float  # Wall time [s].
    own_cpu_s: float  # CPU time of this process [s].
    env_cpu_s: float  # CPU time of the environments' processes [s].
    memory_bytes: float  # Memory of these processes, for each env slot [bytes].

    @property
    def cpu_ms(self) -> float:
        """CPU time of a step, of all processes [ms]."""
        return 1e3 * (self.own_cpu_s + self.env_cpu_s) / self.num_steps


def plain_loops(kind: str, python: str, num_steps: int) -> Measured:
    """Run a plain loop on each core at the same time."""
    num_loops = len(os.sched_getaffinity(0))
    command = [python, str(_PLAIN_LOOP), kind, str(num_steps // num_loops)]
    variables = {**os.environ, **choose_opengl(CPU, {}).variables}
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) for _ in range(num_loops)]
    found = [json.loads(loop.communicate()[0].splitlines()[-1]) for loop in loops]
    wall_s, memory = (max(each[figure] for each in found) for figure in ("wall_s", "memory_bytes"))
    env_cpu_s = sum(each["cpu_s"] for each in found)
    return Measured(num_steps=num_steps, wall_s=wall_s, own_cpu_s=0.0, env_cpu_s=env_cpu_s, memory_bytes=memory)


@dataclass(frozen=True, kw_only=True)
class Division:
    """Division of env slots into workers and groups."""

    num_envs: int  # Env slots.
    per_worker: int  # Env slots of a worker.
    groups: int = 1  # Groups that take turns.

    @property
    def label(self) -> str:
        """Name of the division in the table."""
        pipeline = f", --pipeline {self.groups}" if self.groups > 1 else ""
        return f"{self.num_envs} env slots, {self.per_worker} in each worker{pipeline}"


def in_workers(kind: str, python: str, num_steps: int, division: Division) -> Measured:
    """Run a job's loop with random actions in workers, in groups of env slots that take turns."""
    (name, arguments), groups, num_envs = ENVIRONMENTS[kind], division.groups, division.num_envs
    told = {"python": python, "envs_per_worker": division.per_worker, **arguments}
    environments = [build(name, size, **told) for size in group_sizes(num_envs, groups)]
    workers = children()
    policies = [make_policy("random_action") for _ in environments]
    limits = RolloutLimits(max_steps=num_steps // num_envs)
    pending = episodes(num_steps // EPISODE_STEPS[kind] + 2 * num_envs)
    clock = Clock(workers, groups)
    if groups == 1:
        rollout(environments[0], policies[0], pending, [clock], limits=limits)
    else:
        pairs = zip(environments, policies, strict=True)
        divided = [EnvGroup(environment=environment, policy=policy) for environment, policy in pairs]
        pipelined_rollout(divided, pending, [clock], limits=limits)
    measured = clock.measured(num_envs)
    for environment in environments:
        environment.close()
    return measured


class Clock(Observer):
    """Looks at every picture, and measures from the first step of every group."""

    def __init__(self, workers: list[int], groups: int) -> None:
        self._workers, self._first_steps = workers, groups
        self._num_steps = 0
        self._began = self._now()

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count the step."""
        del environment
        self._num_steps += transition.num_running
        if self._first_steps > 0:
            self._first_steps -= 1
            self._num_steps, self._began = 0, self._now()

    def measured(self, num_envs: int) -> Measured:
        """Return the resources of all steps except the first."""
        took_s = [now - began for now, began in zip(self._now(), self._began, strict=True)]
        memory = sum(map(memory_bytes, self._workers)) / num_envs
        taken = dict(zip(("wall_s", "own_cpu_s", "env_cpu_s"), took_s, strict=True))
        return Measured(num_steps=self._num_steps, **taken, memory_bytes=memory)

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(cpu_s, self._workers))


def in_rounds(kind: str, python: str, num_steps: int, options: Options) -> dict[str, list[Measured]]:
    """Measure everything in turn, in several rounds."""
    num_envs, num_cores = options.num_envs, len(os.sched_getaffinity(0))
    share = max(1, num_envs // num_cores)
    few = [Division(num_envs=num_envs, per_worker=size, groups=groups) for size in (1, share) for groups in (1, 2)]
    many = [Division(num_envs=n * num_envs, per_worker=n * share) for n in ((2, 4, 8) if kind == "pusht" else ())]
    found: dict[str, list[Measured]] = {}
    for _ in range(options.rounds):
        found.setdefault("plain loops, one on each core", []).append(plain_loops(kind, python, num_steps))
        for division in dict.fromkeys((*few, *many)):
            measured = in_workers(kind, python, num_steps, division)
            found.setdefault(division.label, []).append(measured)
    return found


def main(options: Options) -> None:
    """Measure, and write the page."""
    page = Page("worker_throughput", "Workers beside plain loops", options)
    tables = []
    for kind, python, num_steps in (
        ("pusht", options.pusht_python, options.pusht_steps),
        ("lift", options.robosuite_python, options.lift_steps),
    ):
        if not python:
            continue
        heading = {"pusht": "PushT, state", "lift": "Lift, two cameras of 84 x 84"}[kind]
        columns = "steps/s", "of plain loops", "CPU ms a step", "of it this process", "of plain loops by CPU"
        table = Table(heading, *columns, "MiB an env slot")
        found = in_rounds(kind, python, num_steps, options)
        plain = next(iter(found.values()))
        for label, rounds in found.items():
            pairs = list(zip(plain, rounds, strict=True))
            by_wall = [one.wall_s / one.num_steps * each.num_steps / each.wall_s for one, each in pairs]
            by_cpu = [one.cpu_ms / each.cpu_ms for one, each in pairs]
            best = min(rounds, key=lambda each: each.cpu_ms)
            fastest = max(each.num_steps / each.wall_s for each in rounds)
            own_ms = 1e3 * best.own_cpu_s / best.num_steps
            ratios = f"{median(by_wall):.2f}", f"{best.cpu_ms:.2f}", f"{own_ms:.2f}", f"{median(by_cpu):.2f}"
            table.add(label, f"{fastest:.0f}", *ratios, f"{best.memory_bytes / 2**20:.0f}")
        tables.append(table)
    page.write(TEXT + (PUSHT_TEXT if options.pusht_python else ""), *tables)


if __name__ == "__main__":
    run(main, Options)
