"""Measure what a watch beside a training takes from it on the same processor.

The training waits between its turns. In each round it does some iterations alone, and the same number while
`isaaclab-arena watch` evaluates a checkpoint beside it, with an equal claim to the processor and with the least one.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table, spread
from benchmarks.harness.timing import in_turn, ratios, values
from benchmarks.harness.workers import module
from benchmarks.training.processes import RANK, Training, Turn

TRAINED = ROOT / "models" / "reach"
WARM_UP_ITERATIONS = 2
ALONE = "alone"
PATIENCE_S = 120.0
AUTOGROUP = "echo 19 > /proc/self/autogroup; "


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    num_envs: int = 64  # Env slots of the training.
    rounds: int = 3  # Turns of each kind.
    iterations: int = 8  # Iterations of a turn.


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a watch is started."""

    nice: int = 0  # Its option.
    is_of_another_terminal: bool = False  # Whether it has a session of its own.
    before: str = ""  # What its shell does first.


BESIDE = {
    "beside a watch": Watch(),
    "with --nice 19": Watch(nice=19),
    "with --nice 19, from another terminal": Watch(nice=19, is_of_another_terminal=True),
    f"the same after `{AUTOGROUP.rstrip('; ')}`": Watch(nice=19, is_of_another_terminal=True, before=AUTOGROUP),
}


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Evaluate a checkpoint by a watch, from its first finished episode on."""
    with tempfile.TemporaryDirectory(prefix="watching_") as name:
        place = Path(name)
        training = place / "training"
        shutil.copytree(TRAINED, training)
        arguments = {"environment": "reach", "num_envs": 16, "action_mode": "ee_delta"}
        job = {"name": "reach", "policy_type": "rsl_rl", "num_episodes": 1_000_000, "arena_env_args": arguments}
        (place / "jobs.json").write_text(json.dumps({"jobs": [job]}), encoding="utf-8")
        words = [
            "--eval_jobs_config",
            "jobs.json",
            "--output_dir",
            "watch",
            "--device",
            "cpu",
            "--nice",
            str(watch.nice),
        ]
        command = module("isaaclab_arena.cli", "watch", "training", *words, "--no_dataset")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (place / "log.txt").open("wb") as log:
            # A group of its own, so that the process of the evaluation ends with it. Each terminal has a session.
            own = watch.is_of_another_terminal
            shell = ["sh", "-c", f"{watch.before}exec {shlex.join(command)}"]
            process = subprocess.Popen(
                shell,
                cwd=place,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=own,
                process_group=None if own else 0,
            )
            try:
                _wait_for_episode(place, process)
                yield
                assert process.poll() is None, "the watch ended before the training's turn did"
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for_episode(place: Path, process: subprocess.Popen[bytes]) -> None:
    begun = time.monotonic()
    while not any(path.stat().st_size for path in place.glob("watch/*/*/episode_results_*.jsonl")):
        said = (place / "log.txt").read_text(encoding="utf-8", errors="replace")
        assert process.poll() is None, said
        assert time.monotonic() - begun < PATIENCE_S, said
        time.sleep(0.1)


def turn(training: Training, iterations: int, watch: Watch | None) -> Turn:
    """Do iterations, alone where there is no watch."""
    if watch is None:
        return training.turn(iterations)
    with watching(watch):
        return training.turn(iterations)


def main(options: Options) -> None:
    """Measure, and write the page."""
    page = Page("watching_cost", "What a watch takes from a training on the same processor", options, "torch", "mujoco")
    training = Training([*RANK, "reach", "--num_envs", str(options.num_envs)], torch_threads=None)
    training.turn(WARM_UP_ITERATIONS)
    kinds: dict[str, Watch | None] = {ALONE: None, **BESIDE}
    calls = {name: partial(turn, training, options.iterations, watch) for name, watch in kinds.items()}
    turns = in_turn(calls, options.rounds)
    training.close()
    table = Table("training", "iterations per second", "of that alone")
    for name, found in turns.items():
        speeds = [options.iterations / seconds for seconds in values(found, "wall_s")]
        share = "" if name == ALONE else f"{spread(ratios(turns[ALONE], found, 'wall_s'))}"
        table.add(name, spread(speeds), share)
    text = f"""\
A training of `reach` with {options.num_envs} env slots, as it is typed, and a watch in one process that evaluates a
checkpoint of `reach` all the time, with 16 env slots and without recordings. Medians of {options.rounds} turns of
{options.iterations} iterations, with the smallest and the largest; ratios are of neighbours in time. There is no GPU in
it."""
    sessions = f"""\
This machine's /proc/sys/kernel/sched_autogroup_enabled is {_autogroup()}. Where it is 1, Linux divides the processor
between sessions first, of which each terminal has one, and a nice value counts within a session only."""
    page.write(text, table, sessions)


def _autogroup() -> str:
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return setting.read_text(encoding="ascii").strip() if setting.exists() else "not there"


if __name__ == "__main__":
    run(main, Options)
