"""Measure the cost of each transport to a policy in another process, beside the same policy in this one.

The policy takes no time. For each env slot it gets two pictures of 224 x 224 pixels, a state and an instruction, and
answers with a chunk of 16 actions, so only the transport takes time.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT
from benchmarks.gr00t.wire_servers import TOKEN
from benchmarks.gr00t.wire_worker.answers import ACTION_DIM, NUM_STEPS
from benchmarks.harness.environments import build
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, run, timed, values
from benchmarks.harness.workers import cpu_s
from isaaclab_arena.evaluation.policy_client import ServedNetwork
from isaaclab_arena.evaluation.policy_client import ServerAddress as RanksAddress
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.remote.connection import PolicyServerConnection, SlotConnections
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION, ServerAddress
from isaaclab_arena.remote.vla_eval import PictureFormat, VlaEvalCodec
from isaaclab_arena.workers import WorkerProcess
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec

ENVIRONMENT = "pick_by_colour"
WORDS = "pick up the red cube and lift it"
SIZE = 224
TIMEOUT_S = 60.0
IN_PROCESS = "in this process"
FORMATS: tuple[PictureFormat, ...] = ("raw", "png", "jpeg")

Ask = Callable[[int], object]
"""Asks about so many env slots at once."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    env_slots: tuple[int, ...] = (1, 8, 32)  # Env slots of a query.
    queries: int = 64  # Env slots in a measurement.
    rounds: int = 5  # Measurements of each kind.
    openpi_python: str | None = None  # Interpreter with openpi's own server, which then takes part.
    vla_eval_python: str | None = None  # Interpreter with vla-eval's own server, which then takes part.


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Mean cost of asking for one env slot."""

    client_ms: float  # CPU time of this process [ms].
    server_ms: float  # CPU time of the other process [ms].
    wall_ms: float  # Wall time of asking about all env slots at once [ms].

    @property
    def cpu_ms(self) -> float:
        """CPU time of both processes [ms]."""
        return self.client_ms + self.server_ms


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to the policy."""

    ask: Ask
    server_pid: int | None = None


def shown_pictures() -> dict[str, np.ndarray]:
    """Return two pictures of a scene. Shape of each: (224, 224, 3), uint8."""
    environment = build(ENVIRONMENT, 1, enable_cameras=True, camera_size=SIZE)
    conditions = [environment.draw_conditions(np.random.default_rng(0))]
    observation = environment.reset(torch.zeros(1, dtype=torch.int64), conditions)
    pictures = {name: values[0].numpy().copy() for name, values in observation[CAMERAS].items()}
    environment.close()
    return pictures


def ways(stack: ExitStack, pictures: Mapping[str, np.ndarray], options: Options) -> dict[str, Way]:
    """Start every server, and return the ways to the policy by name."""
    state = np.zeros(ACTION_DIM, np.float32)

    def in_process(num_slots: int) -> object:
        return np.stack([np.zeros((NUM_STEPS, ACTION_DIM), np.float32) for _ in range(num_slots)])

    def ask_gr00t(num_slots: int) -> object:
        observation = {
            "video": {name: np.stack([picture[None]] * num_slots) for name, picture in pictures.items()},
            "state": {"state": np.stack([state[None]] * num_slots)},
            "language": {"annotation.human.task_description": [[WORDS]] * num_slots},
        }
        seeds = list(range(num_slots))
        return connection.ask("get_action", {"observation": observation, "options": {"noise_seeds": seeds}})

    def ask_server_of_ranks(num_slots: int) -> object:
        entries: dict[str, Any] = {name: np.stack([picture] * num_slots) for name, picture in pictures.items()}
        entries |= {"state": np.stack([state] * num_slots), "words": [WORDS] * num_slots, "seeds": np.arange(num_slots)}
        return network.ask(entries, slots_per_call=num_slots)

    def ask_worker(num_slots: int) -> object:
        arrays = {name: np.stack([picture[None]] * num_slots) for name, picture in pictures.items()}
        arrays["state"] = np.stack([state[None]] * num_slots)
        request = {"request": "predict", "words": [WORDS] * num_slots, "seeds": list(range(num_slots))}
        return worker.ask(request, TIMEOUT_S, arrays)

    found = {IN_PROCESS: Way(ask=in_process)}
    port, pid = stack.enter_context(server("gr00t"))
    connection = PolicyServerConnection(address(port), Gr00tCodec())
    connection.wait_until_ready()
    stack.callback(connection.close)
    found["gr00t"] = Way(ask=ask_gr00t, server_pid=pid)
    found |= websocket_ways(stack, pictures, state, options)
    path, pid = stack.enter_context(server("policy_server"))
    network = ServedNetwork(RanksAddress(token=TOKEN, path=path), "zeros")
    stack.callback(network.close)
    found["policy server"] = Way(ask=ask_server_of_ranks, server_pid=pid)
    worker = WorkerProcess(Path(__file__).with_name("wire_worker"), sys.executable, {})
    stack.callback(worker.close)
    found["lerobot"] = Way(ask=ask_worker, server_pid=worker.pid)
    return found


def websocket_ways(
    stack: ExitStack, pictures: Mapping[str, np.ndarray], state: np.ndarray, options: Options
) -> dict[str, Way]:
    """Start the servers that have a connection for each env slot: loops around codecs, and those of the packages."""
    flat = {**{f"observation/{name}": picture for name, picture in pictures.items()}, "observation/state": state}
    observation = {"images": dict(pictures), "states": state, "task_description": WORDS}

    def way(wire: Callable[[], Any], kind: str, shown: Mapping[str, Any], protocol: str, python: str | None) -> Way:
        port, pid = stack.enter_context(server(protocol, python))
        slots = SlotConnections(address(port), wire)
        stack.callback(slots.close)
        # Each env slot asks in its own connection, all at once.
        return Way(ask=lambda n: slots.ask(kind, ((env_id, shown) for env_id in range(n))), server_pid=pid)

    shown = {**flat, "prompt": WORDS}
    found = {"openpi": way(OpenpiCodec, OBSERVATION, shown, "openpi", None)}
    if options.openpi_python is not None:
        own = way(OpenpiCodec, OBSERVATION, shown, "openpi", options.openpi_python)
        found["openpi, its own server"] = own
    for picture_format in FORMATS:
        wire = partial(VlaEvalCodec, picture_format)
        found[f"vla_eval, {picture_format}"] = way(wire, OBSERVATION, observation, "vla_eval", None)
    if options.vla_eval_python is not None:
        wire = partial(VlaEvalCodec, FORMATS[0])
        own = way(wire, OBSERVATION, observation, "vla_eval", options.vla_eval_python)
        found[f"vla_eval, {FORMATS[0]}, its own server"] = own
    return found


@contextmanager
def server(wire: str, python: str | None = None) -> Iterator[tuple[str, int]]:
    """Run a server of a protocol, by default with this interpreter, and give its port or path, and its process."""
    command = [sys.executable, "-m", "benchmarks.gr00t.wire_servers", wire]
    if python is not None:
        command = [python, str(Path(__file__).with_name("wire_worker") / "own_servers.py"), wire]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


def address(port: str) -> ServerAddress:
    """Return the address of a server of this machine."""
    return ServerAddress(host="127.0.0.1", port=int(port), timeout_s=TIMEOUT_S)


def measured(way: Way, num_slots: int, num_queries: int) -> Cost:
    """Ask for ``num_queries`` env slots, and return the mean cost."""
    number = max(1, num_queries // num_slots)
    before = cpu_s(way.server_pid) if way.server_pid else 0.0
    took = timed(lambda: [way.ask(num_slots) for _ in range(number)])
    per_slot = 1000 / (number * num_slots)
    server_s = cpu_s(way.server_pid) - before if way.server_pid else 0.0
    return Cost(
        client_ms=per_slot * took.cpu_s, server_ms=per_slot * server_s, wall_ms=per_slot * num_slots * took.wall_s
    )


def kilobytes(pictures: Mapping[str, np.ndarray], picture_format: PictureFormat) -> float:
    """Return the size of vla-eval's message for an env slot [KB]."""
    wire = VlaEvalCodec(picture_format)
    return len(wire.encode(OBSERVATION, {"images": dict(pictures)})) / 1000


def main(options: Options) -> None:
    """Measure all ways by turns, and write the page."""
    page = Page("wires", "What a policy in another process costs a query", options, "numpy", "msgpack", "websockets")
    pictures = shown_pictures()
    with ExitStack() as stack:
        found = ways(stack, pictures, options)
        calls = {
            (num_slots, name): partial(measured, way, num_slots, options.queries)
            for num_slots in options.env_slots
            for name, way in found.items()
        }
        costs = in_turn(calls, options.rounds, warm_up=1)
    heading = ("CPU ms per env slot", "of it here", "of it there", "wall ms, all env slots")
    table = Table("env slots", "way", *heading, words=2)
    for (num_slots, name), each in costs.items():
        figures = [median(each, figure) for figure in ("cpu_ms", "client_ms", "server_ms")]
        table.add(num_slots, name, *(f"{figure:.2f}" for figure in (*figures, min(values(each, "wall_ms")))))
    sizes = ", ".join(f"{kilobytes(pictures, each):,.0f} KB as {each}" for each in FORMATS)
    page.write(TEXT.format(environment=ENVIRONMENT, rounds=options.rounds, sizes=sizes), table)


TEXT = """\
The policy takes no time: what is left is the way there and back for two pictures of 224 x 224 pixels (cameras of
`{environment}`), a state, an instruction, and a chunk of 16 actions of 8 numbers. Servers run in a process of their
own on the same machine. CPU times are medians of {rounds} measurements of each kind, by turns; wall times, which
depend on what else the machine does, are the smallest. `gr00t`, `policy server` and `lerobot` ask about all env slots
in one request, the others in one connection per env slot, all at once. The server of `gr00t` is the included one, those
of `openpi` and `vla_eval` are loops around this package's codecs, or the package's own where the line says so; `policy
server` is that of a run's ranks, and `lerobot` is the way to a worker of another interpreter, without LeRobot.

The pictures of an env slot take {sizes}. On one machine raw pictures cost least; the other formats pay behind a
network that takes longer for the rest of the bytes than encoding and decoding does."""


if __name__ == "__main__":
    run(main, Options)
