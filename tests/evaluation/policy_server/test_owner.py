import os
import signal
import sys
import time
from contextlib import suppress

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.policy_client import PolicyServer, ServerOrders

ORDERS = ServerOrders(networks={}, max_batch=4, max_wait_ms=1.0)
SAYS_ITS_NUMBER = """
import json, os, socket, sys, threading
orders = json.loads(sys.stdin.buffer.readline())
listening = socket.socket(fileno=orders["listening"])
def accept():
    while True:
        connection, _ = listening.accept()
        connection.sendall(f"{os.getpid()} {orders['token']} {'RANK' in os.environ}".encode())
        connection.close()
threading.Thread(target=accept, daemon=True).start()
sys.stdin.buffer.read()
"""


def started(tmp_path, script=SAYS_ITS_NUMBER, host=None) -> PolicyServer:
    command = (sys.executable, "-S", "-c", script)
    return PolicyServer(ORDERS, host=host, log_file=tmp_path / "server.log", command=command)


def asked(server: PolicyServer) -> tuple[int, str, str]:
    """Return a server's process, its token, and whether it takes itself for a rank.

    One that is killed may take a connection with it, as ranks know.
    """
    while True:
        with server.address.connected(30.0) as connection, suppress(ConnectionError):
            if words := connection.recv(1000).decode().split():
                return int(words[0]), words[1], words[2]


def test_a_server_that_is_killed_is_started_again_and_whoever_asks_meanwhile_waits(tmp_path):
    server = started(tmp_path)
    pid, token, _ = asked(server)
    assert token == server.address.token
    os.kill(pid, signal.SIGKILL)
    again, token, _ = asked(server)
    assert again != pid
    assert token == server.address.token
    server.close()


def test_a_server_does_not_take_itself_for_the_rank_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    server = started(tmp_path)
    assert asked(server)[2] == "False"
    server.close()


def test_a_server_ends_with_its_owner_and_leaves_nothing(tmp_path):
    server = started(tmp_path, host="127.0.0.1")
    pid, *_ = asked(server)
    server.close()
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionError):
        server.address.connected(1.0)


def test_a_server_that_dies_again_and_again_is_given_up_and_whoever_asks_is_refused(tmp_path, caplog):
    server = started(tmp_path, script="print('no memory'); raise SystemExit(3)")
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s and "it is not started again" not in caplog.text:
        time.sleep(0.01)
    with pytest.raises(ConnectionError):
        server.address.connected(1.0)
    assert "exit code 3" in caplog.text
    assert (tmp_path / "server.log").read_text().count("no memory") == 5
    server.close()


def test_a_host_that_is_not_this_machine_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="the policy server cannot listen on 192"):
        started(tmp_path, host="192.0.2.1")
