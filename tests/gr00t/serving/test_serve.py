"""The program that serves a policy."""

import http.client
import json
import os
import signal
import socket
import threading
from typing import Any

import pytest
from gr00t.policy.server_client import PolicyClient

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.serve import ServeOptions, main, served_job
from tests.end_to_end.launching import free_port, patience_s, wait_until

# The command, from what is typed to the exit code.


def is_healthy(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        client.request("GET", "/health")
    except OSError:
        return False
    return client.getresponse().status == 200


def is_up(port: int) -> bool:
    try:
        return PolicyClient("127.0.0.1", port, timeout_ms=1000).ping()
    except RuntimeError:
        return False


@pytest.mark.parametrize(
    ("protocol", "is_there", "end", "code"),
    [
        ("openpi", is_healthy, lambda port: os.kill(os.getpid(), signal.SIGINT), 130),
        ("openpi", is_healthy, lambda port: os.kill(os.getpid(), signal.SIGTERM), 143),
        ("gr00t", is_up, lambda port: PolicyClient("127.0.0.1", port).kill_server(), 0),
    ],
    ids=["interrupt", "termination", "kill in GR00T's protocol"],
)
def test_a_signal_or_a_kill_ends_the_server_with_its_exit_code(protocol, is_there, end, code):
    port = free_port()

    def end_it() -> None:
        wait_until(lambda: is_there(port), timeout_s=patience_s(60.0))
        end(port)

    thread = threading.Thread(target=end_it)
    thread.start()
    assert main(["zero_action", "reach", "--protocol", protocol, "--port", str(port)]) == code
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["zero_action", "reach", "--images", "a=front"], "--images: the environment has no camera 'front'"),
        (["zero_action", "reach", "--states", "a=eef_pos", "b=eef_pos"], "'eef_pos' twice"),
        (["scripted", "reach"], "'scripted' cannot be served"),
        (["zero_action", "reach", "--max_sessions", "0"], "max_sessions"),
        (["zero_action", "reach", "--max_wait_ms", "-1"], "max_wait_ms"),
        (["zero_action", "reach", "--port", "70000"], "port"),
        (["zero_action", "reach", "--api_token", "a", "--api_token_file", "b"], "not both"),
        (["zero_action", "reach", "--api_token_file", "none"], "cannot read"),
        (["zero_action", "reach", "--health_port", "0"], "--health_port: is for gr00t"),
        (["zero_action", "reach", "--images", "=front"], "'=front'"),
        (["zero_action"], "one environment is needed"),
        (["no.json:still"], "no.json"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(arguments, says, capsys):
    assert main([*arguments, "--protocol", "vla_eval"]) == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["zero_action", "reach", "--protocol", "vla_eval", "--port", str(port)]) == 1
    assert f"127.0.0.1, port {port}" in capsys.readouterr().err


# What may be served is found, and what is wrong is refused before anything is built.


JOB = {"policy_type": "zero_action", "arena_env_args": {"environment": "reach"}, "seed": 5}


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [{**JOB, "name": "still"}, {**JOB, "name": "reach"}]}))
    return str(path)


def options(**given: Any) -> ServeOptions:
    return ServeOptions(protocol="vla_eval", **given)


def test_a_message_may_be_as_large_as_for_the_protocols_own_server():
    assert options().listen().max_message_bytes == 64 * 2**20
    assert ServeOptions(protocol="gr00t").listen().max_message_bytes == 256 * 2**20
    assert ServeOptions(protocol="gr00t", max_message_mb=1).listen().max_message_bytes == 2**20


def test_a_job_is_named_by_its_file_or_by_policy_and_environment(file):
    assert served_job(options(), [f"{file}:still"]).config.name == "still"
    assert served_job(options(job="reach"), [file]).config.seed == 5
    job = served_job(options(), ["random_action", "lift_object", "--object", "can"])
    assert (job.config.policy_type, job.config.environment) == ("random_action", "lift_object")
    assert job.environment_config.object == "can"


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (["--port"], "JOBS_FILE:JOB"),
        (["FILE"], "still, reach"),
        (["FILE:stil"], "'stil'; did you mean 'still'"),
        (["FILE:still", "reach"], "says all of its jobs"),
    ],
)
def test_a_job_that_is_not_there_is_refused(file, rest, says):
    with pytest.raises(ConfigError, match=says):
        served_job(options(), [word.replace("FILE", file) for word in rest])


def test_names_are_read_as_pairs_and_a_token_from_its_file(tmp_path):
    given = options(images=("a/b=front",), states=("s=x,y", "t.u=z"))
    assert given.client_keys() == ({"a/b": "front"}, {"s": ["x", "y"], "t.u": ["z"]})
    assert options().client_keys() == (None, None)
    (tmp_path / "token").write_text("secret\n")
    assert options(api_token_file=str(tmp_path / "token")).listen().api_token == "secret"
    ServeOptions(protocol="gr00t", health_port=0).check()


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("machine", False), ("*", False)],
)
def test_only_this_machine_can_reach_a_loopback_address(host, local):
    assert options(host=host).is_local() is local
