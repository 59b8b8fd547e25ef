"""How long a GR00T model takes to answer: by rows, precision and device, and in another process instead of this one."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gr00t.policy.gr00t_policy import Gr00tPolicy
from gr00t_checkpoint import shown

from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs, read_policy_config
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import (
    Gr00tRemoteClosedloopPolicy,
    Gr00tRemoteClosedloopPolicyArgs,
)
from isaaclab_arena_gr00t.remote.wire.gr00t_wire import pack

ROOT = Path(__file__).parents[1]
WARM_UP = 2
_SERVER_START_S = 120.0
_ADDRESS = re.compile(r"on tcp://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Query:
    """What one call took.

    Attributes:
        wall_s: Wall time [s].
        cpu_s: CPU time of this process [s].
        elsewhere_cpu_s: CPU time of the server [s].
    """

    wall_s: float
    cpu_s: float
    elsewhere_cpu_s: float = 0.0


def timed(call: Callable[[], Any], server_pid: int | None = None) -> Query:
    """Call something and return what that took. Answers are arrays in memory, so a GPU has finished by then."""
    elsewhere = cpu_s_of(server_pid)
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Query(wall_s=wall_s, cpu_s=cpu_s, elsewhere_cpu_s=cpu_s_of(server_pid) - elsewhere)


def cpu_s_of(pid: int | None) -> float:
    """Return the CPU time of another process so far [s], 0 for none."""
    # The number of its clock as clock_getcpuclockid makes it on Linux; /proc counts in hundredths of a second.
    return 0.0 if pid is None else time.clock_gettime((~pid << 3) | 2)


def interleaved(
    calls: Mapping[Any, Callable[[], Any]], repetitions: int, server_pid: int | None = None
) -> dict[Any, list[Query]]:
    """Make all calls in turn, again and again, in one order and then in the other; return what each took."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    taken: dict[Any, list[Query]] = {name: [] for name in calls}
    for repetition in range(repetitions):
        for name in list(calls)[:: -1 if repetition % 2 else 1]:
            taken[name].append(timed(calls[name], server_pid))
    return taken


def median_ms(queries: Sequence[Query], part: str = "wall_s") -> float:
    return 1000 * statistics.median(getattr(query, part) for query in queries)


def ratio(queries: Sequence[Query], others: Sequence[Query]) -> float:
    """Return how much longer the first took: the median over neighbours in time."""
    return statistics.median(a.wall_s / b.wall_s for a, b in zip(queries, others, strict=True))


def asking(policy: Any, observation: dict[str, Any], num_rows: int) -> Callable[[], Any]:
    return lambda: policy.get_action(observation, {"noise_seeds": list(range(num_rows))})


def latency_table(
    yaml: str, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int, compiled_on: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the table of one query of the model.

    Args:
        yaml: The policy's YAML file.
        devices: Where the model runs.
        batch_sizes: Rows of a query.
        repetitions: Queries of each kind.
        compiled_on: Those of the devices on which it is also measured compiled.
    """
    config = read_policy_config(yaml)
    calls: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for device in devices:
        for precision in ("float32", "bfloat16"):
            for variant in (precision, f"{precision}, compiled")[: 1 + (device in compiled_on)]:
                dtype = getattr(torch, precision)
                policy = Gr00tPolicy(config.embodiment_tag, config.model_path, device=device, dtype=dtype)
                if variant != precision:
                    policy.compile()
                sizes = policy.get_dimensions()
                for rows in batch_sizes:
                    observation = shown(policy.get_modality_config(), sizes, rows, config)
                    calls[device, variant, rows] = asking(policy, observation, rows)
    taken = interleaved(calls, repetitions)
    lines = [
        "| device | weights | rows | ms | CPU ms | ms a row | times float32 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (device, variant, rows), queries in taken.items():
        wall_ms = median_ms(queries)
        against = ratio(queries, taken[device, "float32", rows])
        lines.append(
            f"| {device} | {variant} | {rows} | {wall_ms:.1f} | {median_ms(queries, 'cpu_s'):.1f} "
            f"| {wall_ms / rows:.2f} | {against:.2f} |"
        )
    return lines


@contextmanager
def serving(model_path: str, embodiment_tag: str, device: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Serve a checkpoint in a process of its own for the length of a ``with`` block.

    Yields:
        The number of the process and its port.
    """
    words = ["--model_path", model_path, "--embodiment_tag", embodiment_tag, "--device", device, "--port", "0"]
    program = [sys.executable, "-c", _SERVER, str(torch.get_num_threads()), *words]
    log = folder / "server.log"
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
    yaml: str, folder: Path, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int
) -> list[str]:
    """Return the lines of the table of queries to a server beside queries to the same checkpoint in this process."""
    lines = [
        "| device | rows | request kB | here ms | served ms | more ms | times | CPU ms here | client | server |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    config = read_policy_config(yaml)
    for device in devices:
        here = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, policy_device=device))
        with serving(config.model_path, config.embodiment_tag, device, folder) as (pid, port):
            options: dict[str, Any] = {"remote_host": "127.0.0.1", "remote_port": port}
            served = Gr00tRemoteClosedloopPolicy(
                Gr00tRemoteClosedloopPolicyArgs(policy_config_yaml_path=yaml, **options)
            )
            dimensions = here.dimensions() or {}
            observations = {rows: shown(here.modality_config(), dimensions, rows, config) for rows in batch_sizes}
            calls: dict[tuple[str, int], Callable[[], Any]] = {
                (where, rows): _querying(policy, observation, rows)
                for rows, observation in observations.items()
                for where, policy in (("here", here), ("served", served))
            }
            taken = interleaved(calls, repetitions, pid)
            served.close()
        here.close()
        for rows, observation in observations.items():
            ours, theirs = taken["here", rows], taken["served", rows]
            more_ms = 1000 * statistics.median(b.wall_s - a.wall_s for a, b in zip(ours, theirs, strict=True))
            lines.append(
                f"| {device} | {rows} | {len(pack({'observation': observation})) / 1000:.0f} | {median_ms(ours):.1f} "
                f"| {median_ms(theirs):.1f} | {more_ms:.1f} | {ratio(theirs, ours):.2f} "
                f"| {median_ms(ours, 'cpu_s'):.1f} | {median_ms(theirs, 'cpu_s'):.1f} "
                f"| {median_ms(theirs, 'elsewhere_cpu_s'):.1f} |"
            )
    return lines


def _querying(
    policy: Gr00tClosedloopPolicy | Gr00tRemoteClosedloopPolicy, observation: dict[str, Any], num_rows: int
) -> Callable[[], Any]:
    return lambda: policy.query(observation, list(range(num_rows)))
