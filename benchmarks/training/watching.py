"""Measure the cost of a watch for a training on the same processor.

The training waits between its turns, and a watch is stopped outside of its turn. In each round the training does some
iterations alone, and the same number while `isaaclab-arena watch` evaluates a checkpoint beside it, with an equal claim
to the processor and with the least one; every other round in the opposite order. Rounds are short and many, so other
programs disturb all kinds alike.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, ratios, run, spread, values
from benchmarks.harness.runs import one_job
from benchmarks.harness.workers import module
from benchmarks.training.processes import RANK, Training, Turn

TRAINED = ROOT / "models" / "reach"
WARM_UP_ITERATIONS = 2
ALONE = "alone"
PATIENCE_S = 600.0
AUTOGROUP = "echo 19 > /proc/self/autogroup; "


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: int = 64  # Env slots of the training.
    rounds: int = 14  # Turns of each kind at most, an even number.
    iterations: int = 5  # Iterations of a turn.
    limit_s: float = 200.0  # No further rounds begin after this time [s].


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The start of a watch."""

    nice: int = 0
    is_of_another_terminal: bool = False  # It has a session of its own.
    before: str = ""  # First commands of its shell.


BESIDE = {
    "beside a watch": Watch(),
    "under nice -n 19": Watch(nice=19),
    "under nice -n 19, from another terminal": Watch(nice=19, is_of_another_terminal=True),
    f"the same after `{AUTOGROUP.rstrip('; ')}`": Watch(nice=19, is_of_another_terminal=True, before=AUTOGROUP),
}


@contextmanager
def watching(watch: Watch) -> Iterator[subprocess.Popen[bytes]]:
    """Evaluate a checkpoint by a watch that has finished its first episode, and is stopped."""
    with tempfile.TemporaryDirectory(prefix="watching_") as name:
        place = Path(name)
        # A training with one checkpoint, and a job that never ends.
        shutil.copytree(TRAINED, place / "training")
        arguments = {"environment": "reach", "num_envs": 16, "action_mode": "ee_delta"}
        jobs = one_job(arguments, "rsl_rl", 1_000_000, name="reach")
        (place / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        line = ["--eval_jobs_config", "jobs.json", "--output_dir", "watch", "--device", "cpu", "--no_dataset"]
        command = ["nice", "-n", str(watch.nice), *module("isaaclab_arena.cli", "watch", "training", *line)]
        # A group of its own, so that the process of the evaluation stops and ends with it. Each terminal has a session.
        own = watch.is_of_another_terminal
        with (place / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", f"{watch.before}exec {shlex.join(command)}"],
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=own,
                process_group=None if own else 0,
            )
            try:
                begun = time.monotonic()
                while not any(path.stat().st_size for path in place.glob("watch/*/*/episode_results_*.jsonl")):
                    output = (place / "log.txt").read_text(encoding="utf-8", errors="replace")
                    assert process.poll() is None, output
                    assert time.monotonic() - begun < PATIENCE_S, output
                    time.sleep(0.1)
                os.killpg(process.pid, signal.SIGSTOP)
                yield process
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def turn(training: Training, iterations: int, watch: subprocess.Popen[bytes] | None) -> Turn:
    """Do iterations, with a watch beside them if there is one."""
    if watch is None:
        return training.turn(iterations)
    os.killpg(watch.pid, signal.SIGCONT)
    try:
        done = training.turn(iterations)
        assert watch.poll() is None, "the watch ended before the training's turn did"
        return done
    finally:
        os.killpg(watch.pid, signal.SIGSTOP)


def rounds(options: Options, calls: Mapping[str, Callable[[], Turn]]) -> dict[str, list[Turn]]:
    """Make turns of each kind until the time is up."""
    begun, turns = time.monotonic(), {name: list[Turn]() for name in calls}
    for _ in range(options.rounds // 2):
        for name, found in in_turn(calls, 2).items():
            turns[name] += found
        if time.monotonic() - begun > options.limit_s:
            break
    return turns


def main(options: Options) -> None:
    """Measure, and write the page."""
    page = Page("watching_cost", "What a watch takes from a training on the same processor", options, "torch", "mujoco")
    training = Training([*RANK, "reach", "--num_envs", str(options.num_envs)], torch_threads=None)
    training.turn(WARM_UP_ITERATIONS)
    with ExitStack() as stack:
        kinds = {ALONE: None, **{name: stack.enter_context(watching(watch)) for name, watch in BESIDE.items()}}
        calls = {name: partial(turn, training, options.iterations, watch) for name, watch in kinds.items()}
        turns = rounds(options, calls)
    training.close()
    num_turns = len(turns[ALONE])
    table = Table("training", "iterations per second", "of that alone")
    for name, found in turns.items():
        speeds = [options.iterations / seconds for seconds in values(found, "wall_s")]
        share = "" if name == ALONE else f"{spread(ratios(turns[ALONE], found, 'wall_s'))}"
        table.add(name, spread(speeds), share)
    text = f"""\
A training of `reach` with {options.num_envs} env slots, as it is typed, and a watch in one process that evaluates a
checkpoint of `reach` all the time, with 16 env slots and without recordings. Medians of {num_turns} turns of
{options.iterations} iterations, with the smallest and the largest; ratios are of neighbours in time. There is no GPU in
it."""
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    autogroup = setting.read_text(encoding="ascii").strip() if setting.exists() else "not there"
    sessions = f"""\
This machine's /proc/sys/kernel/sched_autogroup_enabled is {autogroup}. Where it is 1, Linux divides the processor
between sessions first, of which each terminal has one, and a nice value counts within a session only."""
    page.write(text, table, sessions)


if __name__ == "__main__":
    run(main, Options)
