"""The command, from what is typed to the exit code."""

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gr00t.policy.server_client import PolicyClient

from isaaclab_arena_gr00t.serving.serve import main
from tests.end_to_end.launching import command, free_port, patience_s, start, wait_until


@contextmanager
def signalled_when_healthy(port: int, number: signal.Signals, found: list[int]) -> Iterator[None]:
    """Wait for a server in this process to say that it is well, then send the process a signal."""

    def watch() -> None:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline and not found:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
            try:
                client.request("GET", "/health")
                found.append(client.getresponse().status)
            except OSError:
                time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_server_with_its_exit_code(number, code):
    port, found = free_port(), []
    with signalled_when_healthy(port, number, found):
        assert main(["zero_action", "reach", "--protocol", "openpi", "--port", str(port)]) == code
    assert found == [200]


def is_up(port: int) -> bool:
    try:
        return PolicyClient("127.0.0.1", port, timeout_ms=1000).ping()
    except RuntimeError:
        return False


@pytest.mark.parametrize(("ending", "code"), [("kill", 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_speaks_gr00ts_protocol_ends_in_order_on_a_kill_and_on_signals(tmp_path, ending, code):
    port, log = free_port(), tmp_path / "log.txt"
    words = ("zero_action", "reach", "--protocol", "gr00t", "--port", port)
    process = start(command(*words, module=["-m", "isaaclab_arena_gr00t.serving.serve"]), log)
    wait_until(lambda: is_up(port), timeout_s=patience_s(60.0))
    if ending == "kill":
        PolicyClient("127.0.0.1", port).kill_server()
    else:
        process.send_signal(ending)
    assert process.wait(patience_s(30.0)) == code
    assert log.read_text().rstrip().endswith("stopped"), log.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["zero_action", "reach", "--images", "a=front"], 2, "--images: the environment has no camera 'front'"),
        (["zero_action", "reach", "--states", "a=eef"], 2, "the environment has no observation 'eef'; did you mean"),
        (["zero_action", "reach", "--states", "a=eef_pos", "b=eef_pos"], 2, "names the observation 'eef_pos' twice"),
        (["scripted", "reach"], 2, "the policy 'scripted' cannot be served: the scripted policy drives an arm"),
        (["zero_action", "reach", "--max_sessions", "0"], 2, "max_sessions"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(arguments, code, message, capsys):
    assert main([*arguments, "--protocol", "vla_eval"]) == code
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["zero_action", "reach", "--protocol", "vla_eval", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
