"""Measure the cost of a query to ``isaaclab-arena serve`` in each protocol, beside the same policy in this process.

Clients ask one query after the other, each on a thread and a connection of its own, about two pictures of 224 x 224
pixels, a state and an instruction.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT
from benchmarks.gr00t.wires import ENVIRONMENT, SIZE, WORDS, shown_pictures
from benchmarks.harness.environments import build
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run, spread, timed
from benchmarks.harness.policies import GlancePolicy
from benchmarks.harness.workers import cpu_s
from isaaclab_arena.remote.connection import PolicyServerConnection
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION, ServerAddress
from isaaclab_arena.remote.vla_eval import EPISODE_START, VlaEvalCodec
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec

IN_PROCESS = "in this process"
PROTOCOLS = ("vla_eval", "openpi", "gr00t")
STATE, STATE_SIZE = "robot_joint_pos", 7
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    clients: tuple[int, ...] = (1, 8, 32)  # Clients that ask at the same time.
    queries: int = 192  # Queries of all clients together in a measurement.
    max_wait_ms: int = 5  # Longest wait of the first query of a call for others [ms].
    long_wait_ms: int = 50  # The same of one more server in the first protocol [ms].
    rounds: int = 3  # Measurements of each kind.


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of the queries of a measurement."""

    per_s: float  # Queries per second.
    server_ms: float  # CPU time of the process with the policy, per query [ms].
    client_ms: float  # CPU time of all clients, per query [ms].
    fill: float  # Share of the batch entries of the policy's calls that answer a query.
    p50_ms: float  # Half of the queries took no longer than this [ms].
    p95_ms: float  # 95 % of them [ms].

    @property
    def cpu_ms(self) -> float:
        """CPU time of both sides, per query [ms]."""
        return self.server_ms + self.client_ms


def in_process(num_slots: int, pictures: Mapping[str, np.ndarray]) -> Callable[[int], Cost]:
    """Return a call that asks the policy for all env slots at once, without a server."""
    environment = build(ENVIRONMENT, num_slots, enable_cameras=True, camera_size=SIZE)
    batch = {name: torch.from_numpy(np.stack([picture] * num_slots)) for name, picture in pictures.items()}
    policy, shown = GlancePolicy(), {"camera_obs": batch, "policy": {STATE: torch.zeros(num_slots, STATE_SIZE)}}
    environment.close()

    def measured(queries: int) -> Cost:
        calls = max(1, queries // num_slots)
        took = timed(lambda: [policy.get_action(environment, shown) for _ in range(calls)])
        call_ms, asked = 1000 * took.wall_s / calls, calls * num_slots
        costs = {"per_s": asked / took.wall_s, "server_ms": 1000 * took.cpu_s / asked, "client_ms": 0.0}
        return Cost(**costs, fill=1.0, p50_ms=call_ms, p95_ms=call_ms)

    return measured


@contextmanager
def server(
    protocol: str, num_sessions: int, max_wait_ms: int, pictures: Mapping[str, np.ndarray]
) -> Iterator[tuple[ServerAddress, int]]:
    """Run ``isaaclab-arena serve``, and give its address and its process."""
    policy = f"{GlancePolicy.__module__}.{GlancePolicy.__name__}"
    words = [policy, ENVIRONMENT, "--enable_cameras", "--camera_size", str(SIZE), "--protocol", protocol, "--port", "0"]
    words += ["--max_sessions", str(num_sessions), "--max_wait_ms", str(max_wait_ms), "--states", f"state={STATE}"]
    command = [sys.executable, "-m", "isaaclab_arena_gr00t.serving.serve", *words]
    command += ["--images", *(f"{name}={name}" for name in pictures)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if " serving " in line)
            port = int(line.rpartition(":")[2])
            yield ServerAddress(host="127.0.0.1", port=port, timeout_s=TIMEOUT_S), process.pid
        finally:
            process.kill()


def asking(protocol: str, address: ServerAddress, pictures: Mapping[str, np.ndarray]) -> Callable[[], np.ndarray]:
    """Return a call that asks one query in a connection of its own and returns the action."""
    state = np.zeros(STATE_SIZE, np.float32)
    if protocol == "vla_eval":
        connection = PolicyServerConnection(address, VlaEvalCodec())
        connection.begin((EPISODE_START, {"task": {"name": WORDS}}))
        shown = {"images": dict(pictures), "state": state, "task_description": WORDS}
        return lambda: connection.ask(OBSERVATION, shown)["actions"]
    if protocol == "openpi":
        connection = PolicyServerConnection(address, OpenpiCodec())
        connection.wait_until_ready()
        return lambda: connection.ask(OBSERVATION, {**pictures, "state": state, "prompt": WORDS})["actions"][0]
    connection = PolicyServerConnection(address, Gr00tCodec())
    connection.wait_until_ready()
    observation = {
        "video": {name: picture[None, None] for name, picture in pictures.items()},
        "state": {"state": state[None, None]},
        "language": {"annotation.human.task_description": [[WORDS]]},
    }
    return lambda: connection.ask("get_action", {"observation": observation, "options": None})[0]["action"][0, 0]


def from_clients(asks: list[Callable[[], np.ndarray]], pid: int, queries: int) -> Cost:
    """Let every client ask its share of the queries."""
    took_ms: list[float] = []
    counts: list[float] = []

    def ask_share(ask: Callable[[], np.ndarray]) -> None:
        for _ in range(max(1, queries // len(asks))):
            began_s = time.perf_counter()
            counts.append(float(ask()[0]))
            took_ms.append(1000 * (time.perf_counter() - began_s))

    threads = [threading.Thread(target=ask_share, args=(ask,)) for ask in asks]
    before_s = cpu_s(pid)
    took = timed(lambda: [*map(threading.Thread.start, threads), *map(threading.Thread.join, threads)])
    calls = max(counts) - min(counts) + 1
    return Cost(
        per_s=len(took_ms) / took.wall_s,
        server_ms=1000 * (cpu_s(pid) - before_s) / len(took_ms),
        client_ms=1000 * took.cpu_s / len(took_ms),
        fill=len(took_ms) / (calls * len(asks)),
        p50_ms=float(np.percentile(took_ms, 50)),
        p95_ms=float(np.percentile(took_ms, 95)),
    )


def ways(stack: ExitStack, options: Options) -> dict[tuple[int, str], Callable[[], Cost]]:
    """Start every server, and return a measurement of each number of clients and each way to the policy."""
    pictures, found = shown_pictures(), {}
    for num_clients in options.clients:
        found[num_clients, IN_PROCESS] = partial(in_process(num_clients, pictures), options.queries)
        waits_ms = {protocol: (protocol, options.max_wait_ms) for protocol in PROTOCOLS}
        if num_clients > 1:
            waits_ms[f"{PROTOCOLS[0]}, {options.long_wait_ms} ms"] = PROTOCOLS[0], options.long_wait_ms
        for name, (protocol, max_wait_ms) in waits_ms.items():
            address, pid = stack.enter_context(server(protocol, num_clients, max_wait_ms, pictures))
            asks = [asking(protocol, address, pictures) for _ in range(num_clients)]
            found[num_clients, name] = partial(from_clients, asks, pid, options.queries)
    return found


def main(options: Options) -> None:
    """Measure all ways by turns, and write the page."""
    page = Page("serving", "What serving a policy costs a query", options, "torch", "msgpack", "websockets")
    torch.set_num_threads(1)
    with ExitStack() as stack:
        costs: dict[Any, list[Cost]] = in_turn(ways(stack, options), options.rounds, warm_up=1)
    heading = ("queries/s", "batch fill", "CPU ms, server", "of the policy's own", "CPU ms, client", "overhead ms")
    table = Table("clients", "way", *heading, "p50 ms", "p95 ms", words=2)
    for (num_clients, name), each in costs.items():
        own = costs[num_clients, IN_PROCESS]
        table.add(
            num_clients,
            name,
            f"{median(each, 'per_s'):,.0f}",
            f"{median(each, 'fill'):.2f}",
            f"{median(each, 'server_ms'):.2f}",
            "" if name == IN_PROCESS else spread(ratios(each, own, "server_ms"), digits=1),
            f"{median(each, 'client_ms'):.2f}",
            "" if name == IN_PROCESS else f"{median(each, 'cpu_ms') - median(own, 'cpu_ms'):.2f}",
            *(f"{median(each, figure):.2f}" for figure in ("p50_ms", "p95_ms")),
        )
    sizes = {"rounds": options.rounds, "queries": options.queries}
    waits = {"wait": options.max_wait_ms, "long": options.long_wait_ms}
    page.write(TEXT.format(environment=ENVIRONMENT, **sizes, **waits), table)


TEXT = """\
A query is two pictures of 224 x 224 pixels (cameras of `{environment}`), a state and an instruction. The policy pools
the pictures and asks a small network, so that what is left is mostly the serving. `isaaclab-arena serve` runs in a
process of its own on the same machine, with as many env slots as there are clients; each client is a thread with a
connection of its own, and asks its next query as soon as it has the answer to the one before. In this process the
policy is asked about as many env slots at once. Calls always have as many batch entries as there are env slots, and
`batch fill` is the share of them that a client asked about. `overhead` is the CPU time of both sides without the
policy's own. Figures are medians of {rounds} measurements of {queries} queries, by turns; ratios are of neighbours,
with the smallest and the largest. The clients share the cores with the server, and one interpreter.

The first query of a call waits for others for {wait} ms (`--max_wait_ms`), and for {long} ms in the lines that say so.
The pictures of 32 clients take longer to read than {wait} ms, so that calls are about half full; the longer wait fills
them. It costs nothing where all clients ask, because a call that is full does not wait."""


if __name__ == "__main__":
    run(main, Options)
