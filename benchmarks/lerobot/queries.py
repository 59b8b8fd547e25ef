"""Measure the time of a query to an ACT policy in LeRobot's interpreter, from here and in its own process, in turn."""

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT
from benchmarks.harness.measure import (
    Page,
    PageOptions,
    Table,
    Timing,
    in_turn,
    median,
    ratios,
    run,
    spread,
    timed,
    values,
)
from benchmarks.harness.runs import cpu_of_all_s
from benchmarks.harness.workers import Worker
from isaaclab_arena.policy.lerobot_network import LeRobotNetwork, LeRobotPolicyCfg

PICTURES, EDGE_PX = ("observation.images.front", "observation.images.wrist"), 224
THREADS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    python: str = ".venv-lerobot/bin/python"  # Interpreter with LeRobot 0.4.4.
    chunk: int = 50  # Actions of an answer.
    num_slots: tuple[int, ...] = (1, 8, 32)  # Env slots of a query.
    rounds: int = 10  # Queries of each kind, in turn.


def ask_here(network: LeRobotNetwork, num_slots: int) -> Timing:
    """Ask from this process."""
    entries: dict[str, Any] = {
        f"shown.{name}": np.zeros((num_slots, 1, EDGE_PX, EDGE_PX, 3), np.uint8) for name in PICTURES
    }
    entries |= {"shown.observation.state": np.zeros((num_slots, 1, 2), np.float32)}
    entries |= {"words": ["push"] * num_slots, "noise_seeds": np.arange(num_slots)}
    return timed(lambda: network.ask(entries, slots_per_call=num_slots), cpu_of_all_s)


def ask_there(worker: Worker, num_slots: int) -> Timing:
    """Ask the policy in its own process."""
    worker.ask(num_slots)
    return Timing(**worker.answer())


def main(options: Options) -> None:
    """Measure in turn, and write the page."""
    page = Page("lerobot_queries", "A policy of LeRobot from here and in its own process", options, "torch")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="lerobot_queries_") as name:
        inside, variables = [options.python, "-m", "benchmarks.lerobot.inside"], {**os.environ, **THREADS}
        made = [*inside, "untrained_act", name, str(options.chunk), str(EDGE_PX), *PICTURES]
        subprocess.run(made, check=True, cwd=ROOT, env=variables)
        there = Worker([*inside, "query_loop", name, str(EDGE_PX), *PICTURES], variables)
        there.answer()
        config = LeRobotPolicyCfg(pretrained=name, python=options.python, environment_variables=THREADS)
        with closing(LeRobotNetwork(Path(name), torch.device("cpu"), config)) as network:
            calls: dict[tuple[str, int], Callable[[], Timing]] = {}
            for size in options.num_slots:
                calls["here", size] = partial(ask_here, network, size)
                calls["there", size] = partial(ask_there, there, size)
            found = in_turn(calls, options.rounds, warm_up=1)
        there.close()
    heading = ("CPU ms in its process", "CPU ms from here", "more", "times", "ms in its process", "ms from here")
    table = Table("env slots", *heading)
    for size in options.num_slots:
        here, inside = found["here", size], found["there", size]
        more_s = statistics.median(a.cpu_s - b.cpu_s for a, b in zip(here, inside, strict=True))
        table.add(
            size,
            f"{1e3 * median(inside, 'cpu_s'):.0f}",
            f"{1e3 * median(here, 'cpu_s'):.0f}",
            f"{1e3 * more_s:.0f}",
            spread(ratios(here, inside, "cpu_s")),
            spread([1e3 * each for each in values(inside, "wall_s")], 0),
            spread([1e3 * each for each in values(here, "wall_s")], 0),
        )
    text = f"""\
Untrained ACT of LeRobot (resnet18, width 128, chunks of {options.chunk} actions), two pictures of {EDGE_PX} x {EDGE_PX}
pixels per env slot, on a CPU with one thread; medians of {options.rounds} queries in turn, some with the least and the
most. In its own process the policy is asked by LeRobot's `preprocess_observation`, its processors and
`predict_action_chunk`. From here the pictures go to that process, where every action of the chunk passes through the
processors as in LeRobot's loop, and the chunk comes back. CPU time is that of both processes."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
