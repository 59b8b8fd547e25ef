"""A cluster that is not there, or something else in its place, and what ranks are called on one that is there."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.cluster.claim_server import Life
from isaaclab_arena.evaluation.eval_runner import asked_for, main
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.storage.ledger import JobState
from tests.end_to_end.launching import write_jobs
from tests.evaluation.cluster.test_claim_server import ATTEMPT, ORDERS

ray_engine = pytest.importorskip(
    "isaaclab_arena.evaluation.cluster.ray_engine", reason="needs ray", exc_type=ImportError
)

JOB = {
    "name": "reach",
    "arena_env_args": {"environment": "reach"},
    "policy_type": "random_action",
    "num_episodes": 1,
}


SERVED = {
    "arena_env_args": {"environment": "reach", "action_mode": "ee_delta"},
    "policy_type": "rsl_rl",
    "policy_config_dict": {"checkpoint_path": "models/reach"},
    "num_episodes": 2,
}


def test_a_shared_policy_server_is_refused_with_its_key_its_jobs_and_the_way_out(tmp_path):
    jobs = [
        {**SERVED, "name": "alone"},
        {**SERVED, "name": "served", "policy_server": {"shared": "node"}},
        {**SERVED, "name": "served by one", "policy_server": {"shared": "run"}},
    ]
    file = write_jobs(tmp_path / "jobs.json", jobs)
    request = asked_for(("--eval_jobs_config", str(file), "--cluster", "ray"))
    with pytest.raises(ConfigError) as refused:
        ray_engine.execute_on_cluster(request, ClusterOptions(cluster="ray"))
    problems = refused.value.problems
    assert {(str(each.file), each.job, each.key) for each in problems} == {
        (str(file), name, "policy_server.shared") for name in ("served", "served by one")
    }
    assert all("torchrun" in str(each) for each in problems)


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


def test_an_address_at_which_nobody_listens_or_that_is_none_of_the_head_is_refused(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    for address, words in ((free, "ray start --head"), ("ray://head:10001", "ray job submit"), ("head:first", "int()")):
        message = said(address)
        assert message.startswith("error: --ray_address: ")
        assert f"'{address}'" in message
        assert words in message


@pytest.mark.parametrize(
    ("serve", "reason"), [(until_it_closes, "timed out"), (as_a_web_server, "something listens there, but no")]
)
def test_something_else_that_listens_is_no_cluster(said, serve, reason):
    with listening(serve) as address:
        assert f"'{address}' ({reason}" in said(address)


def test_a_cluster_that_asks_for_a_token_says_where_that_is(said, monkeypatch):
    def refuse(**_: object) -> None:
        raise ray_engine.exceptions.RayError("RPC error: InvalidAuthToken: it is missing. Note: RAY_AUTH_MODE is ...")

    monkeypatch.setattr(ray_engine.ray, "init", refuse)
    message = said("auto")
    assert "(RPC error: InvalidAuthToken: it is missing)" in message
    assert "~/.ray/auth_token" in message


@pytest.mark.parametrize(
    ("jobs", "life", "name"),
    [
        (["coins"], Life(rank=3), "arena/run/coins/rank 3"),
        (["coins", "dice", "cards"], Life(rank=0), "arena/run/coins, dice, cards/rank 0"),
        (["c" * 50] * 4, Life(rank=0), f"arena/run/{'c' * 50}, {'c' * 50}, …/rank 0"),
        (["coins"], Life(rank=3, number=1), "arena/run/coins/rank 3, life 2"),
    ],
)
def test_a_rank_is_called_by_its_run_its_jobs_and_its_number(jobs, life, name):
    attempt = replace(ATTEMPT, jobs=tuple(JobState(job=job) for job in jobs))
    assert ray_engine.name_of_rank(replace(ORDERS, attempt=attempt), life) == name
    assert repr(ray_engine.RankActor(claim_server=None, rank=life.rank)) == f"rank {life.rank}"


@pytest.mark.parametrize(
    ("num_ranks", "cpus_per_rank", "cores"), [(1, 0.5, 1), (3, 0.5, 2), (2, 1.0, 2), (999, 4.0, 999)]
)
def test_a_cluster_that_starts_with_the_run_has_the_cores_that_its_ranks_can_use(
    monkeypatch, num_ranks, cpus_per_rank, cores
):
    asked: list[int] = []

    def begin(*, num_cpus: int, **_: object) -> None:
        asked.append(num_cpus)
        raise RuntimeError

    monkeypatch.setattr(ray_engine.ray, "init", begin)
    options = ClusterOptions(cluster="ray", ray_address="local", num_ranks=num_ranks, cpus_per_rank=cpus_per_rank)
    with pytest.raises(ConfigError, match="no Ray cluster"), ray_engine.connected(options):
        pass
    assert asked == [min(cores, int(ray_engine.get_num_cpus()))]


@pytest.mark.parametrize("options", [ray_engine.ONCE, ray_engine.CLAIM_SERVER_OPTIONS])
def test_ray_begins_no_actor_anew_and_calls_none_twice(options):
    assert (options["max_restarts"], options["max_task_retries"]) == (0, 0)
