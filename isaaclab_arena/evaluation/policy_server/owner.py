"""Start a policy server, watch it, start it again where it dies, and stop it: what the rank does that owns it."""

import logging
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from isaaclab_arena.distributed.context import variables_of_child
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.policy_server.orders import ServerOrders
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.storage.json_values import json_line

PROGRAM = (sys.executable, "-m", "isaaclab_arena.evaluation.policy_server")

_LOG = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_MOST_STARTS = 5
"""How often a server is started that dies again within a minute."""
_SHORT_LIFE_S = 60.0
_MAX_WAITING = 256
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class PolicyServer:
    """A policy server of this rank's.

    The listening socket is the rank's. While a server that died is started again, whoever asks waits in the socket's
    queue. Only after the end of this rank, or `close`, they are refused.

    Args:
        orders: What it serves; ``listening`` and ``token`` are filled in.
        host: Name of this machine that the other ranks know, None for ranks of this machine alone.
        log_file: Where it writes.
        command: The program.

    Attributes:
        address: Where it listens.

    Raises:
        ConfigError: If it cannot listen there.
    """

    def __init__(
        self, orders: ServerOrders, *, host: str | None, log_file: Path, command: Sequence[str] = PROGRAM
    ) -> None:
        # Only the user may look into the directory, and so only the user reaches a Unix socket in it.
        self._directory = Path(tempfile.mkdtemp(prefix="arena-"))
        token = secrets.token_hex(16)
        try:
            self._listening, self.address = _listening(self._directory, host, token)
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
                process = self._started(log.fileno())
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
            # Who waits in the queue is refused now.
            self._listening.close()

    def _started(self, log: int) -> "subprocess.Popen[bytes]":
        # A rank's variables would make it take itself for that rank, and choose its device.
        variables = {name: value for name, value in variables_of_child(sys.path).items() if name not in _OF_RANKS}
        process = subprocess.Popen(  # noqa: S603  this program's own interpreter
            self._command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # In a session of its own, so that Ctrl-C in a terminal asks the ranks to stop, who may yet need it.
            start_new_session=True,
            pass_fds=(self._listening.fileno(),),
            env=variables,
        )
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.write(json_line(self._orders).encode() + b"\n")
                process.stdin.flush()
        return process


def _listening(directory: Path, host: str | None, token: str) -> tuple[socket.socket, ServerAddress]:
    if host is None:
        path = str(directory / "policy.sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        address = ServerAddress(path=path, token=token)
    else:
        listening = socket.create_server((host, 0))
        address = ServerAddress(host=host, port=listening.getsockname()[1], token=token)
    listening.listen(_MAX_WAITING)
    return listening, address


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server, which ends when its stdin does."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
