"""``gr00t-server`` from its command line to its exit code."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gr00t.eval.run_gr00t_server import main
from gr00t.policy.server_client import PolicyClient

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def then(port: int, action: Callable[[PolicyClient], None], **options) -> threading.Thread:
    """Do something, in another thread, with the server that is about to listen."""

    def wait_and_do() -> None:
        client = PolicyClient("127.0.0.1", port, timeout_ms=500, **options)
        while not client.ping():
            pass
        client.close()
        patient = PolicyClient("127.0.0.1", port, timeout_ms=20_000, **options)
        action(patient)
        patient.close()

    thread = threading.Thread(target=wait_and_do)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGTERM), 143),
        (lambda _: os.kill(os.getpid(), signal.SIGINT), 130),
        (lambda client: client.kill_server(), 0),
    ],
    ids=["SIGTERM", "SIGINT", "kill"],
)
def test_the_exit_code_says_who_stopped_the_server(checkpoint, port, end, exit_code):
    before = signal.getsignal(signal.SIGTERM)
    thread = then(port, end)
    assert main(["--model_path", str(checkpoint), "--port", str(port), "--device", "cpu"]) == exit_code
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_clients_must_show_can_stand_in_a_file(checkpoint, port, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    thread = then(port, lambda client: client.kill_server(), api_token="secret")
    assert main(["--model-path", str(checkpoint), "--port", str(port), "--api_token_file", str(token)]) == 0
    thread.join()


def test_a_server_for_everyone_is_warned_of(checkpoint, port, caplog):
    thread = then(port, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["--model_path", str(checkpoint), "--port", str(port), "--host", "0.0.0.0"]) == 143
    thread.join()
    assert "everyone who can reach 0.0.0.0 may use this server" in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model_path", "no/such/directory"], "no/such/directory"),
        (["--model_path", "CHECKPOINT", "--embodiment_tag", "OXE_DROID"], "(?i)oxe_droid"),
        (["--model_path", "CHECKPOINT", "--embodiment_tag", "nonsense"], "nonsense"),
        (["--model_path", "CHECKPOINT", "--max_batch", "0"], "max_batch"),
        (["--model_path", "CHECKPOINT", "--api_token", "a", "--api_token_file", "b"], "not both"),
    ],
)
def test_options_that_cannot_be_used_end_with_2_and_say_why(checkpoint, caplog, options, says):
    words = [str(checkpoint) if word == "CHECKPOINT" else word for word in options]
    assert main([*words, "--port", "0"]) == 2
    assert re.search(says, caplog.text)


def test_a_port_in_use_ends_with_1_and_is_named(checkpoint, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--model_path", str(checkpoint), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in caplog.text


def test_the_program_serves_the_model_that_this_process_would_load(checkpoint, policy, observe):
    words = ["--model-path", str(checkpoint), "--port", "0", "--device", "cpu", "--use-sim-policy-wrapper"]
    program = [sys.executable, "-m", "gr00t.eval.run_gr00t_server", *words]
    with subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        address = next(found for line in lines if (found := re.search(r"on tcp://127\.0\.0\.1:(\d+)", line)))
        client = PolicyClient("127.0.0.1", int(address.group(1)))
        action, info = client.get_action(observe(3), {"noise_seeds": [1, 2, 3]})
        expected, _ = policy.get_action(observe(3), {"noise_seeds": [1, 2, 3]})
        assert info == {}
        assert set(action) == set(expected)
        for key, values in expected.items():
            # torch uses another number of threads there.
            np.testing.assert_allclose(action[key], values, atol=1e-4)
        assert client.get_modality_config() == policy.get_modality_config()
        seen = observe(3)
        flat = {f"{modality}.{key}": seen[modality][key] for modality in ("video", "state") for key in seen[modality]}
        flat |= {key: [text for (text,) in texts] for key, texts in seen["language"].items()}
        flat_action, _ = client.get_action(flat, {"noise_seeds": [1, 2, 3]})
        assert {f"action.{key}": values.tolist() for key, values in action.items()} == {
            key: values.tolist() for key, values in flat_action.items()
        }
        with pytest.raises(RuntimeError, match="head"):
            client.get_action({**observe(1), "video": {}})
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
