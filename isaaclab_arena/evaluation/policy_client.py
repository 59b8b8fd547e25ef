"""A policy server as its run uses it: refused jobs, the process that a rank owns, its messages, and a network there."""

import logging
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.schema import JobConfig, PolicyServerConfig
from isaaclab_arena.distributed.context import variables_of_child
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import Entries
from isaaclab_arena.policy.catalog import POLICIES, resolve_policy_class
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.ledger import ServerUsage
from isaaclab_arena.workers import PolicyElsewhere, patience_s, program

# The orders that a policy server starts with: its socket and its networks.


@dataclass(frozen=True, kw_only=True)
class NetworkOrder:
    """A policy whose network the server provides."""

    policy_type: str  # registered name or dotted path
    options: Mapping[str, Any] = field(default_factory=dict)  # of the policy's `from_dict`


@dataclass(frozen=True, kw_only=True)
class ServerOrders:
    """The networks of a server, and its socket and limits."""

    networks: Mapping[str, NetworkOrder]  # by key; loaded when first asked for
    max_batch: int  # most entries answered together
    max_wait_ms: float  # wait of a query for others [ms]
    listening: int = -1  # file descriptor of the listening socket
    token: str = ""  # secret of the clients
    # As many as ranks have: the last digits of an answer may depend on the number.
    torch_threads: int = 1
    deterministic: bool = False


# Messages between a policy server and the ranks that ask it: frames over a Unix socket, or TCP with a token.

VERSION = 1
"""Of these messages. Server and ranks are of one program, so another one is a mistake."""

ERRORS: Mapping[str, type[ArenaError]] = {"config": ConfigError, "lost": PolicyLostError, "policy": PolicyError}
"""The error that a client raises, by the kind in the server's answer."""

MAX_FIRST_BYTES = 1 << 16
"""Size limit of the first message [bytes]; its sender is not authenticated yet."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a policy server."""

    token: str  # secret of the clients
    path: str | None = None  # Unix socket, None for TCP
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def connected(self, timeout_s: float) -> socket.socket:
        """Return a connection; `OSError` if no server listens there."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send a message; `OSError` if the other side is gone."""
    connection.sendall(program.encode(message, arrays or {}))


def received(
    connection: socket.socket, *, timeout_s: float | None = None, max_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return message and arrays of the next frame. No limit of time [s] or size if the argument is None."""
    # `EOFError` if the other side is gone, `OSError` if the connection breaks or times out, `FrameError` if the frame
    # is damaged or too large.
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    left = max_bytes

    def read_exactly(size: int) -> bytearray:
        nonlocal left
        if left is not None:
            left -= size
            if left < 0:
                raise program.FrameError(f"the message has more than {max_bytes} bytes")
        taken = bytearray(size)
        view, filled = memoryview(taken), 0
        while filled < size:
            connection.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))
            count = connection.recv_into(view[filled:])
            if count == 0:
                raise EOFError
            filled += count
        return taken

    try:
        return program.decode(read_exactly)
    except (ValueError, KeyError, TypeError) as error:
        raise program.FrameError(f"the message is damaged: {error}") from error


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """The sums of a server at the end of a call, over all clients."""

    at_s: float  # end of the call, on the server's clock [s]
    busy_s: float = 0.0  # time of all calls [s]
    entries: int = 0  # batch entries answered


# Refuse jobs whose policy cannot be in a policy server, before anything runs.

DEVICE_OPTION = "policy_device"


def refuse_unshareable(
    policy_class: type[PolicyBase], job: JobConfig, server: PolicyServerConfig, *, options: Collection[str] | None
) -> None:
    """Raise `ConfigError` with every reason why a job's policy cannot be in its policy server."""
    problems = []
    if server.max_batch < job.num_envs:
        message = f"{job.num_envs} env slots of a rank do not fit into {server.max_batch}; give {job.num_envs} or more"
        problems.append(Problem(message, key="policy_server.max_batch"))
    if server.device is not None and re.fullmatch(r"cpu|cuda(:\d{1,3})?", server.device) is None:
        message = f"must be cpu, cuda or cuda:<index>, got '{server.device}'"
        problems.append(Problem(message, key="policy_server.device"))
    if "network" not in policy_class.offers:
        reason = "has no network that ranks can share"
        if policy_class.traits.remote or "is_remote" in policy_class.offers:
            reason = "asks a server of its own, which all ranks share already"
        able = []
        for name in POLICIES.names():
            # The class of a package that is not installed cannot be loaded.
            with suppress(ConfigError):
                if "network" in resolve_policy_class(name).offers:
                    able.append(name)
        message = f"policy '{job.policy_type}' {reason}; leave policy_server out. These can have one: {', '.join(able)}"
        message += ", and classes with the methods of isaaclab_arena.policies.AsksNetwork"
        problems.append(Problem(message, key="policy_server"))
    # A policy whose options are unknown (None) cannot promise this one.
    elif server.device is not None and DEVICE_OPTION not in (options or ()):
        message = f"policy '{job.policy_type}' has no option {DEVICE_OPTION}; leave it out"
        problems.append(Problem(message, key="policy_server.device"))
    problems += [
        Problem("sets the device of a rank's own network; use policy_server.device", key=f"policy_config_dict.{name}")
        for name in (DEVICE_OPTION, "policy_device_id", "device")
        if job.policy_config_dict.get(name) is not None
    ]
    if problems:
        raise ConfigError(problems)


# Start a policy server, watch it, restart it if it dies, and stop it: the part of the rank that owns it.

PROGRAM = (sys.executable, "-m", "isaaclab_arena.evaluation.policy_server")

_LOG = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_MOST_STARTS = 5
"""Most starts of a server that dies again within a minute."""
_SHORT_LIFE_S = 60.0
_MAX_WAITING = 256
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class PolicyServer:
    """A policy server that this rank starts and watches; `ConfigError` if it cannot listen."""

    def __init__(
        self, orders: ServerOrders, *, host: str | None, log_file: Path, command: Sequence[str] = PROGRAM
    ) -> None:
        # Only the user has access to the directory, and so to a Unix socket in it.
        self._directory = Path(tempfile.mkdtemp(prefix="arena-"))
        # The rank owns the listening socket: clients wait in its queue while a dead server is restarted. They are
        # refused only after `close` or the end of this rank. `host`: this machine's name for other ranks, None for
        # local ranks only.
        token = secrets.token_hex(16)
        try:
            if host is None:
                path = str(self._directory / "policy.sock")
                self._listening = socket.socket(socket.AF_UNIX)
                self._listening.bind(path)
                self.address = ServerAddress(path=path, token=token)
            else:
                self._listening = socket.create_server((host, 0))
                self.address = ServerAddress(host=host, port=self._listening.getsockname()[1], token=token)
            self._listening.listen(_MAX_WAITING)
        except OSError as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            where = f"on {host}" if host else f"in {self._directory}"
            raise ConfigError(f"the policy server cannot listen {where}: {error.strerror or error}") from error
        self._orders = replace(orders, listening=self._listening.fileno(), token=token)
        self._log_file, self._command = log_file, command
        self._is_closed = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="policy server", daemon=True)
        self._watching.start()

    def close(self) -> None:
        """Stop the server. May be called more than once."""
        self._is_closed.set()
        self._watching.join()
        self._listening.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _watch(self) -> None:
        """Keep a server running until `close`, unless it dies again and again."""
        starts = 0
        while not self._is_closed.is_set() and starts < _MOST_STARTS:
            began_s = time.monotonic()
            with self._log_file.open("ab") as log:
                # With a rank's variables the server would act as that rank and choose its device.
                variables = variables_of_child(sys.path).items()
                process = subprocess.Popen(  # noqa: S603  this program's own interpreter
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    # In its own session, so that Ctrl-C in a terminal stops only the ranks, which may still need the
                    # server.
                    start_new_session=True,
                    pass_fds=(self._listening.fileno(),),
                    env={name: value for name, value in variables if name not in _OF_RANKS},
                )
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.write(json_line(self._orders).encode() + b"\n")
                        process.stdin.flush()
            while process.poll() is None and not self._is_closed.wait(0.05):
                pass
            starts = starts + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 1
            if not self._is_closed.is_set():
                _LOG.warning(
                    "the policy server at %s ended with exit code %s; its output is in %s",
                    self.address,
                    process.returncode,
                    self._log_file,
                )
            # A server ends when its stdin does. It is killed if that takes too long.
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not self._is_closed.is_set():
            _LOG.error("the policy server died %d times; it is not started again", starts)
            # Clients in the queue are refused now.
            self._listening.close()


# The client's end of a network in the run's policy server.

_CONNECT_TIMEOUT_S = 20.0
_LOAD_TIMEOUT_S = 3600.0
"""Longest time of a server to load a network [s]."""
ANSWER_TIMEOUT_S = 300.0
"""Longest time of an answer [s]."""
_Query = tuple[dict[str, Any], dict[str, np.ndarray]]
_Answer = tuple[ServerUsage, dict[str, np.ndarray]]

_MOST_LOSSES = 3
"""Losses of the server over one query after which the policy counts as lost."""


class ServedNetwork:
    """Asks a network in a policy server; reconnects if the server was lost."""

    def __init__(self, address: ServerAddress, key: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        # To ask again is safe: the network keeps nothing between calls, and a policy's memory is not in the server.
        # `ConfigError` or `PolicyError` if the network cannot be loaded, `DistributedError` if the server's rank is
        # gone.
        self._address, self._key, self._answer_timeout_s = address, key, answer_timeout_s
        self._connection: socket.socket | None = None
        self._elsewhere = PolicyElsewhere[Mapping[str, Any]](
            f"the policy server at {address}", most_losses=_MOST_LOSSES
        )
        self._number = 0
        self.usage = ServerUsage()  # of all queries so far
        # The server's work for all clients is counted from here; None: from the next answer.
        self.seen: SoFar | None = None
        self.max_batch = 1
        self.about: Mapping[str, Any] = {}  # the network's description of itself
        self._exchange(None)

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        """Return the answers by name; see `NetworkElsewhere.ask`."""
        # Texts and arrays travel apart.
        arrays = {name: values for name, values in entries.items() if isinstance(values, np.ndarray)}
        texts = {name: list(values) for name, values in entries.items() if name not in arrays}
        self._number += 1
        query = {"number": self._number, "slots_per_call": slots_per_call, "texts": texts}
        usage, answers = self._exchange((query, arrays))
        self.usage += usage
        return answers

    def close(self) -> None:
        """Close the connection; a later query opens another."""
        self.seen = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, query: _Query | None) -> _Answer:
        """Return the usage and the answers of a query; with None only connect."""
        try:
            return self._elsewhere.asked(
                partial(self._ask_once, query),
                (OSError, EOFError),
                comes_back=lambda error: not isinstance(error, TimeoutError),
            )
        except (program.FrameError, KeyError, TypeError) as error:
            raise PolicyError(f"{self._elsewhere.name} sent an invalid answer: {error}") from error

    def _ask_once(self, query: _Query | None) -> _Answer:
        try:
            if self._connection is None:
                try:
                    self._connection = self._address.connected(_CONNECT_TIMEOUT_S)
                except OSError as error:
                    # The rank that started the server listens while it lives, also during a restart of the server. Its
                    # end is no error of the episodes under way: they stay missing, and a later attempt runs them.
                    gone = f"the rank that ran the policy server at {self._address} has ended"
                    raise DistributedError(f"{gone} ({error.strerror or error})") from error
                # Name the network and receive its description; refuse another one than before.
                send(self._connection, {"hello": VERSION, "token": self._address.token, "network": self._key})
                said, _ = self._heard(self._connection, _LOAD_TIMEOUT_S)
                self._elsewhere.meet(said["about"])
                self.about, self.max_batch = said["about"] or {}, said["max_batch"]
            if query is None:
                return ServerUsage(), {}
            send(self._connection, *query)
            said, arrays = self._heard(self._connection, self._answer_timeout_s)
            if said["number"] != query[0]["number"]:
                message = f"query {query[0]['number']} got the answer to query {said['number']}"
                raise program.FrameError(message)  # noqa: TRY301  the connection is closed, as after any error

            # Add the server's work for all clients since the last answer.
            usage, now = ServerUsage(**said["usage"]), SoFar(**said["so_far"])
            before, self.seen = self.seen or now, now
            seen = ServerUsage(
                seen_s=now.at_s - before.at_s,
                seen_busy_s=now.busy_s - before.busy_s,
                seen_entries=now.entries - before.entries,
            )
            return usage + seen, arrays
        except Exception:
            # A late answer would be taken for that of the next query.
            self.close()
            raise

    def _heard(self, connection: socket.socket, limit_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        said, arrays = received(connection, timeout_s=patience_s(limit_s))
        if "error" in said:
            raise ERRORS[said["kind"]](f"in the policy server: {said['error']}")
        return said, arrays
