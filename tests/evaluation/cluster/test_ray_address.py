"""A cluster that is not there, or something else in its place: one message within seconds, and no directory."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import write_jobs

ray_engine = pytest.importorskip(
    "isaaclab_arena.evaluation.cluster.ray_engine", reason="needs ray", exc_type=ImportError
)

JOB = {
    "name": "reach",
    "arena_env_args": {"environment": "reach"},
    "policy_type": "random_action",
    "num_episodes": 1,
}


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Give the address of something that serves each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def until_it_closes(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def as_a_web_server(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


@pytest.fixture
def said(tmp_path, capsys) -> Callable[[str], str]:
    jobs = write_jobs(tmp_path / "jobs.json", [JOB])

    def run(address: str) -> str:
        output = tmp_path / "run"
        words = ["--eval_jobs_config", jobs, "--output_dir", output, "--cluster", "ray", "--ray_address", address]
        assert main([*map(str, words)]) == 2
        assert not output.exists()
        return capsys.readouterr().err

    return run


def test_an_address_at_which_nobody_listens_is_refused(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    message = said(f"127.0.0.1:{free}")
    assert f"--ray_address: no Ray cluster can be reached at '127.0.0.1:{free}'" in message
    assert "start one with: ray start --head, or say --ray_address local" in message


@pytest.mark.parametrize("serve", [until_it_closes, as_a_web_server])
def test_something_else_that_listens_is_no_cluster(said, serve):
    with listening(serve) as address:
        assert f"'{address}' (something listens there, but no Ray cluster)" in said(address)


def test_another_address_than_that_of_the_head_is_named(said):
    assert "start the command on a node of the cluster, or by ray job submit" in said("ray://head:10001")
    assert "'head:first' (invalid literal for int() with base 10: 'first')" in said("head:first")


def test_a_cluster_that_asks_for_a_token_says_where_that_is(said, monkeypatch):
    def refuse(**_: object) -> None:
        raise ray_engine.exceptions.RayError("RPC error: InvalidAuthToken: it is missing. Note: RAY_AUTH_MODE is ...")

    monkeypatch.setattr(ray_engine.ray, "init", refuse)
    message = said("auto")
    assert "cluster can be reached at 'auto' (RPC error: InvalidAuthToken: it is missing); this cluster" in message
    assert "copy ~/.ray/auth_token from its head, and set the variable RAY_AUTH_MODE to token" in message
