"""A policy server as its run uses it: refused jobs, the process that owns it, and a network that is asked."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.distributed.context import variables_of_child
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, PolicyError, Problem
from isaaclab_arena.evaluation.policy_server import wire
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress, ServerOrders, SoFar
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import Entries
from isaaclab_arena.policy.catalog import POLICIES, resolve_policy_class
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.reports import ServerUsage
from isaaclab_arena.workers.program.frames import FrameError
from isaaclab_arena.workers.worker_process import PolicyElsewhere, patience_s

# Refuse jobs whose policy cannot be in a policy server, before anything runs.

DEVICE_OPTION = "policy_device"


def refuse_unshareable(policy_class: type[PolicyBase], job: JobConfig, *, options: Collection[str] | None) -> None:
    """Raise `ConfigError` with every reason why a job's policy cannot be in its policy server."""
    server = job.policy_server  # without one nothing is refused
    if server is None:
        return
    problems = []
    if server.max_batch < job.num_envs:
        message = f"{job.num_envs} env slots of a rank do not fit into {server.max_batch}; give {job.num_envs} or more"
        problems.append(Problem(message, key="policy_server.max_batch"))
    if server.device is not None and re.fullmatch(r"cpu|cuda(:\d{1,3})?", server.device) is None:
        message = f"must be cpu, cuda or cuda:<index>, got '{server.device}'"
        problems.append(Problem(message, key="policy_server.device"))
    if "network" not in policy_class.offers:
        problems.append(Problem(f"policy '{job.policy_type}' {_why_not(policy_class)}", key="policy_server"))
    # A policy whose options are unknown (None) cannot promise this one.
    elif server.device is not None and DEVICE_OPTION not in (options or ()):
        message = f"policy '{job.policy_type}' has no option {DEVICE_OPTION}; leave it out"
        problems.append(Problem(message, key="policy_server.device"))
    problems += [
        Problem("is where a rank's own network runs; say policy_server.device", key=f"policy_config_dict.{name}")
        for name in (DEVICE_OPTION, "policy_device_id", "device")
        if job.policy_config_dict.get(name) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _why_not(policy_class: type[PolicyBase]) -> str:
    reason = "has no network that ranks can share"
    if policy_class.traits.remote or "is_remote" in policy_class.offers:
        reason = "asks a server of its own, which all ranks share already"
    able = []
    for name in POLICIES.names():
        # The class of a package that is not installed cannot be loaded.
        with suppress(ConfigError):
            if "network" in resolve_policy_class(name).offers:
                able.append(name)
    return (
        f"{reason}; leave policy_server out. These can have one: {', '.join(able)}, and classes with the methods of "
        "isaaclab_arena.policies.AsksNetwork"
    )


# Start a policy server, watch it, restart it if it dies, and stop it: the part of the rank that owns it.

PROGRAM = (sys.executable, "-m", "isaaclab_arena.evaluation.policy_server")

_LOG = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_MOST_STARTS = 5
"""How often a server is started that dies again within a minute."""
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
            if self._is_closed.is_set():
                _stop(process)
                return
            starts = starts + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 1
            _LOG.warning(
                "the policy server at %s ended with exit code %s; its last words are in %s",
                self.address,
                process.returncode,
                self._log_file,
            )
            _stop(process)
        if not self._is_closed.is_set():
            _LOG.error("the policy server died %d times; it is not started again", starts)
            # Clients in the queue are refused now.
            self._listening.close()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server by closing its stdin; kill it if that takes too long."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# The client's end of a network in the run's policy server.

_CONNECT_TIMEOUT_S = 20.0
_LOAD_TIMEOUT_S = 3600.0
"""How long a server may take to load a network [s]."""
ANSWER_TIMEOUT_S = 300.0
"""How long an answer may take [s]."""
_Query = tuple[dict[str, Any], dict[str, np.ndarray]]
_Answer = tuple[ServerUsage, dict[str, np.ndarray]]

_MOST_LOSSES = 3
"""How often the server may be lost over one query."""


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
        self._seen: SoFar | None = None
        self.max_batch = 1
        self._exchange(None)

    @property
    def about(self) -> Mapping[str, Any]:
        """The network's description of itself."""
        return self._elsewhere.stated or {}

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        """Return the answers by name; see `NetworkElsewhere.ask`."""
        texts, arrays = wire.split(entries)
        self._number += 1
        query = {"number": self._number, "slots_per_call": slots_per_call, "texts": texts}
        usage, answers = self._exchange((query, arrays))
        self.usage += usage
        return answers

    def look_away(self) -> None:
        """Do not count what the server does for other clients until the next answer."""
        self._seen = None

    def close(self) -> None:
        """Close the connection; a later query opens another."""
        self.look_away()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, query: _Query | None) -> _Answer:
        """Return the usage and the answers of a query; with None only connect."""
        try:
            return self._elsewhere.asked(
                lambda: self._tried(query),
                (OSError, EOFError),
                comes_back=lambda error: not isinstance(error, TimeoutError),
            )
        except (FrameError, KeyError, TypeError) as error:
            raise PolicyError(f"{self._elsewhere.name} answered nonsense: {error}") from error

    def _tried(self, query: _Query | None) -> _Answer:
        try:
            return self._ask_once(query)
        except Exception:
            # A late answer would be taken for that of the next query.
            self.close()
            raise

    def _ask_once(self, query: _Query | None) -> _Answer:
        if self._connection is None:
            self._connection = self._connected()
            # Name the network and receive its description; refuse another one than before.
            hello = {"hello": wire.VERSION, "token": self._address.token, "network": self._key}
            wire.send(self._connection, hello)
            said, _ = self._heard(self._connection, patience_s(_LOAD_TIMEOUT_S))
            self._elsewhere.meet(said["about"])
            self.max_batch = said["max_batch"]
        if query is None:
            return ServerUsage(), {}
        wire.send(self._connection, *query)
        said, arrays = self._heard(self._connection, patience_s(self._answer_timeout_s))
        if said["number"] != query[0]["number"]:
            raise FrameError(f"the answer to query {said['number']} came to query {query[0]['number']}")

        # Add the server's work for all clients since the last answer.
        usage, now = ServerUsage(**said["usage"]), SoFar(**said["so_far"])
        before, self._seen = self._seen or now, now
        seen = ServerUsage(
            seen_s=now.at_s - before.at_s,
            seen_busy_s=now.busy_s - before.busy_s,
            seen_entries=now.entries - before.entries,
        )
        return usage + seen, arrays

    def _connected(self) -> socket.socket:
        try:
            return self._address.connected(_CONNECT_TIMEOUT_S)
        except OSError as error:
            # The rank that started the server listens while it lives, also during a restart of the server. Its end is
            # no error of the episodes under way: they stay missing, and a later attempt runs them.
            message = f"the rank that ran the policy server at {self._address} is gone ({error.strerror or error})"
            raise DistributedError(message) from error

    def _heard(self, connection: socket.socket, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        said, arrays = wire.received(connection, timeout_s=timeout_s)
        if "error" in said:
            raise wire.ERRORS[said["kind"]](f"in the policy server: {said['error']}")
        return said, arrays
