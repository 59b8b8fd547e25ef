"""Play the same task of LIBERO with this package, with vla-eval's own runner and with LeRobot's loop, in turn.

Two cameras, a policy that does nothing, one env slot each, the same interpreter of LIBERO. An episode is its reset, the
ten steps in which objects come to rest, and as many control steps as are asked for. What is made once is not counted.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, run, spread
from benchmarks.harness.workers import Worker, module

OURS, OURS_IN_CHUNKS, VLA_EVAL, LEROBOT = "this package", "this package, chunks of 8", "vla-eval 0.8.0", "LeRobot"
CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    python: str = ".venv-libero/bin/python"  # Interpreter with LIBERO's packages, vla-eval 0.8.0 and Gymnasium.
    libero_path: str = ""  # Checkout of LIBERO.
    lerobot: str = ""  # LeRobot's src/lerobot/envs/libero.py.
    revision: str = ""  # The commit that this file is from.
    steps: int = 68  # Control steps of an episode; the scripted expert needs as many.
    size: int = 128  # Width and height of each of the two pictures [pixels].
    rounds: int = 2  # Episodes of each harness that count, in turn; one before them does not.
    note: str = ""  # Further text of the page.


@dataclass(frozen=True, kw_only=True)
class Played:
    """CPU time of all processes and wall time of one episode [s]."""

    cpu_s: float
    wall_s: float


def variables(options: Options, directory: Path) -> dict[str, str]:
    """Return environment variables with which LIBERO is imported from its checkout without a question."""
    inside = Path(options.libero_path).resolve() / "libero" / "libero"
    parts = {"benchmark_root": "", "bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets"}
    lines = [f"{name}: {inside / part}\n" for name, part in parts.items()]
    (directory / "config.yaml").write_text("".join([*lines, f"datasets: {directory}\n"]), encoding="utf-8")
    return {
        **os.environ,
        "LIBERO_CONFIG_PATH": str(directory),
        "PYTHONPATH": str(Path(options.libero_path).resolve()),
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
    }


def commands(options: Options, directory: Path) -> Iterator[tuple[str, list[str], Mapping[str, str]]]:
    """Yield the name of each harness, the command that serves its episodes, and its environment variables."""
    theirs, sizes = variables(options, directory), [str(options.steps), str(options.size)]
    for name, chunk in ((OURS, 1), (OURS_IN_CHUNKS, CHUNK)):
        checked = [options.python, options.libero_path, *sizes, str(chunk)]
        yield name, module("benchmarks.libero.our_loop", *checked), os.environ
    inside = [options.python, "-m", "benchmarks.libero.inside"]
    yield VLA_EVAL, [*inside, "vla_eval", *sizes, str(directory)], theirs
    yield LEROBOT, [*inside, "lerobot", options.lerobot, *sizes], theirs


def play(worker: Worker, counts: dict[Worker, int]) -> Played:
    """Play the next episode of a harness."""
    worker.ask(counts.setdefault(worker, 0))
    counts[worker] += 1
    answer: dict[str, Any] = worker.answer()
    return Played(cpu_s=answer["cpu_s"], wall_s=answer["wall_s"])


def main(options: Options) -> None:
    """Play in turn, and write the page."""
    page = Page("libero_side_by_side", "LIBERO beside other harnesses", options)
    counts: dict[Worker, int] = {}
    with tempfile.TemporaryDirectory(prefix="libero_side_by_side_") as name, ExitStack() as stack:
        workers = {}
        for harness, command, environment in commands(options, Path(name)):
            workers[harness] = Worker(command, dict(environment))
            stack.callback(workers[harness].close)
            workers[harness].answer()
        plays = {harness: partial(play, worker, counts) for harness, worker in workers.items()}
        found = in_turn(plays, options.rounds, warm_up=1)
    heading = ("CPU s per episode", "episodes per hour and core", "over this package", "over its chunks of 8")
    table = Table("harness", *heading)
    for harness, played in found.items():
        cpu_s = [each.cpu_s for each in played]
        mean_s = sum(cpu_s) / len(cpu_s)
        ratios = [mean_s * len(cpu_s) / sum(each.cpu_s for each in found[ours]) for ours in (OURS, OURS_IN_CHUNKS)]
        table.add(harness, spread(cpu_s), f"{3600 / mean_s:.0f}", *(f"{ratio:.2f}" for ratio in ratios))
    size, steps, rounds, commit = options.size, options.steps, options.rounds, options.revision[:7]
    text = f"""\
libero_spatial 0, two cameras of {size} x {size} pixels drawn by OSMesa, one env slot. An episode is a reset, ten steps
of waiting and {steps} control steps; {rounds} of each harness count, in turn, after one that does not. CPU time is that
of all processes of a harness. vla-eval runs its own orchestrator, runner, connection and server; LeRobot its own
environment (commit {commit}) in Gymnasium's SyncVectorEnv, without its preparation of observations. Both draw every
picture, whatever a policy looks at. This package draws no picture of the reset and the waiting, and with chunks only
those that the policy looks at. The last two columns are ratios of CPU time.
{options.note}"""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
