"""Measure how long a GR00T model takes to answer: by batch size, precision and device, and in another process."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gr00t.policy.gr00t_policy import Gr00tPolicy

from benchmarks import ROOT
from benchmarks.gr00t.checkpoint import shown
from benchmarks.harness.tables import markdown_table
from benchmarks.harness.timing import Timing, in_turn, median, ratios, timed
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs, read_policy_config
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import (
    Gr00tRemoteClosedloopPolicy,
    Gr00tRemoteClosedloopPolicyArgs,
)
from isaaclab_arena_gr00t.remote.wire.gr00t_wire import pack

WARM_UP = 2
_SERVER_START_S = 120.0
_ADDRESS = re.compile(r"on tcp://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Query(Timing):
    """What one query took."""

    server_cpu_s: float = 0.0  # CPU time of the server [s].


def timed_query(call: Callable[[], Any], server_pid: int | None = None) -> Query:
    """Call something and return what that took. Answers are arrays in memory, so a GPU has finished by then."""
    before_s = cpu_s_of(server_pid)
    took = timed(call)
    return Query(**vars(took), server_cpu_s=cpu_s_of(server_pid) - before_s)


def cpu_s_of(pid: int | None) -> float:
    """Return the CPU time of another process so far [s], 0 for none."""
    # The number of its clock as clock_getcpuclockid makes it on Linux; /proc counts in hundredths of a second.
    return 0.0 if pid is None else time.clock_gettime((~pid << 3) | 2)


def _milliseconds(queries: Sequence[Query], *figures: str) -> list[str]:
    return [f"{1000 * median(queries, figure):.1f}" for figure in figures]


def latency_table(
    yaml: str, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int, compiled_on: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the table of one query of the model.

    Args:
        yaml: The policy's YAML file.
        devices: Where the model runs.
        batch_sizes: Env slots of a query.
        repetitions: Queries of each kind.
        compiled_on: Those of the devices on which it is also measured compiled.
    """
    config = read_policy_config(yaml)
    calls: dict[tuple[str, str, int], Callable[[], Query]] = {}
    for device in devices:
        for precision in ("float32", "bfloat16"):
            for variant in (precision, f"{precision}, compiled")[: 1 + (device in compiled_on)]:
                dtype = getattr(torch, precision)
                policy = Gr00tPolicy(config.embodiment_tag, config.model_path, device=device, dtype=dtype)
                if variant != precision:
                    policy.compile()
                for batch_size in batch_sizes:
                    observation = shown(policy.get_modality_config(), policy.get_dimensions(), batch_size, config)
                    ask = partial(policy.get_action, observation, {"noise_seeds": list(range(batch_size))})
                    calls[device, variant, batch_size] = partial(timed_query, ask)
    taken = in_turn(calls, repetitions, warm_up=WARM_UP)
    table = []
    for (device, variant, batch_size), queries in taken.items():
        per_slot = 1000 * median(queries, "wall_s") / batch_size
        against = statistics.median(ratios(queries, taken[device, "float32", batch_size], "wall_s"))
        ms = _milliseconds(queries, "wall_s", "cpu_s")
        table.append((device, variant, str(batch_size), *ms, f"{per_slot:.2f}", f"{against:.2f}"))
    heading = ("device", "weights", "env slots", "ms", "CPU ms", "ms a slot", "times float32")
    return markdown_table(heading, table, words=2)


@contextmanager
def serving(model_path: str, embodiment_tag: str, device: str, directory: Path) -> Iterator[tuple[int, int]]:
    """Serve a checkpoint in a process of its own for the length of a ``with`` block.

    Yields:
        The number of the process and its port.
    """
    words = ["--model_path", model_path, "--embodiment_tag", embodiment_tag, "--device", device, "--port", "0"]
    program = [sys.executable, "-c", _SERVER, str(torch.get_num_threads()), *words]
    log = directory / "server.log"
    with log.open("wb") as stream, subprocess.Popen(program, cwd=ROOT, stderr=stream) as process:
        try:
            yield process.pid, _port(log, process)
        finally:
            process.terminate()


_SERVER = """
import sys
import torch
from gr00t.eval.run_gr00t_server import main
torch.set_num_threads(int(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""
"""The server with as many threads as the model has here."""


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + _SERVER_START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := _ADDRESS.search(log.read_text(encoding="utf-8")):
            return int(found.group(1))
        time.sleep(0.05)
    raise RuntimeError(f"the server does not listen: {log.read_text(encoding='utf-8')[-2000:]}")


def remote_table(
    yaml: str, directory: Path, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int
) -> list[str]:
    """Return the lines of the table of queries to a server beside queries to the same checkpoint in this process."""
    config = read_policy_config(yaml)
    table = []
    for device in devices:
        here = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, policy_device=device))
        with serving(config.model_path, config.embodiment_tag, device, directory) as (pid, port):
            address: dict[str, Any] = {"remote_host": "127.0.0.1", "remote_port": port}
            served = Gr00tRemoteClosedloopPolicy(
                Gr00tRemoteClosedloopPolicyArgs(policy_config_yaml_path=yaml, **address)
            )
            dimensions = here.dimensions() or {}
            observations = {size: shown(here.modality_config(), dimensions, size, config) for size in batch_sizes}
            calls = {
                (where, size): partial(timed_query, partial(policy.query, observation, list(range(size))), pid)
                for size, observation in observations.items()
                for where, policy in (("here", here), ("served", served))
            }
            taken = in_turn(calls, repetitions, warm_up=WARM_UP)
            served.close()
        here.close()
        for size, observation in observations.items():
            ours, theirs = taken["here", size], taken["served", size]
            more_ms = 1000 * statistics.median(b.wall_s - a.wall_s for a, b in zip(ours, theirs, strict=True))
            table.append(
                (
                    *(device, str(size), f"{len(pack({'observation': observation})) / 1000:.0f}"),
                    *(*_milliseconds(ours, "wall_s"), *_milliseconds(theirs, "wall_s"), f"{more_ms:.1f}"),
                    f"{statistics.median(ratios(theirs, ours, 'wall_s')):.2f}",
                    *(*_milliseconds(ours, "cpu_s"), *_milliseconds(theirs, "cpu_s", "server_cpu_s")),
                )
            )
    milliseconds = ("here ms", "served ms", "more ms", "times", "CPU ms here", "client", "server")
    return markdown_table(("device", "env slots", "request kB", *milliseconds), table)
