"""Starting the program as a user does, in processes of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tests.preloaded.interpreter import preloaded_python

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EVAL_RUNNER = ["-m", "isaaclab_arena.evaluation.eval_runner"]
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def command(*arguments: object, ranks: int = 1, module: Sequence[str] = EVAL_RUNNER) -> list[str]:
    """Return the command line that runs a module on a number of ranks, without torchrun for one."""
    launcher = [sys.executable] if ranks == 1 else [*TORCHRUN, "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, *module, *map(str, arguments)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment variables without those of a launcher, and with the checkout on the path."""
    plain = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # Where packages are found by this variable, programs need them too.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**plain, "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}


def run(
    arguments: Sequence[str],
    *,
    timeout_s: float = 120,
    extra: Mapping[str, str] | None = None,
    directory: Path = ROOT,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the project's root or another directory.

    Python is the preloaded one, unless it has to be a fresh one: whose process is that of the program itself.
    """
    return subprocess.run(
        arguments if fresh else _quick(arguments),
        cwd=directory,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(
    arguments: Sequence[str], log: Path, *, extra: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command as `run` does and let it run, its output going to a file."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            arguments if fresh else _quick(arguments),
            cwd=ROOT,
            env=environment(extra),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _quick(arguments: Sequence[str]) -> list[str]:
    """Return a command with the preloaded interpreter in place of this one, which takes two seconds to begin."""
    return [preloaded_python() if word == sys.executable else word for word in arguments]


def patience_s(seconds: float) -> float:
    """Return how long to wait for what takes some seconds [s]: with more to do than cores, all get a share of them."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait for something to come true, and fail if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def free_port() -> int:
    """Return the number of a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_jobs(path: Path, jobs: Sequence[Mapping[str, Any]], **top_level: Any) -> Path:
    """Write a job file."""
    path.write_text(json.dumps({**top_level, "jobs": list(jobs)}))
    return path


def jobs_table(output_directory: Path) -> pd.DataFrame:
    """Return the merged table, which holds neither times nor places."""
    return pd.read_parquet(output_directory / "results.parquet")


def episodes_table(output_directory: Path) -> pd.DataFrame:
    """Return the table of episodes, likewise."""
    return pd.read_parquet(output_directory / "episodes.parquet")


def same_tables(one: Path, other: Path) -> bool:
    """Whether two runs gave the same tables, byte for byte."""
    names = [f"{table}.{kind}" for table in ("results", "episodes") for kind in ("csv", "parquet")]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
