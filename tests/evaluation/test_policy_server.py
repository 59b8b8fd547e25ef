"""A policy server in a thread of the tests, at a Unix socket that stays though the server ends."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.config.schema import PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation import policy_client
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.policy_client import (
    PolicyServer,
    ServedNetwork,
    ServerAddress,
    ServerOrders,
    refuse_unshareable,
)
from isaaclab_arena.evaluation.policy_server import Batcher, Serving
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.logs import ended_in
from isaaclab_arena.remote.openpi import OpenpiRemotePolicy
from isaaclab_arena.storage.ledger import JobReport, ReportedStatus, Reproducible
from tests.evaluation.jobs import coin_job, config_of, settings
from tests.fakes import CoinConfig, ShrugPolicy
from tests.fakes_network import RandomNetwork, ServablePolicy

TOKEN = "open sesame"


class Socket:
    """A listening socket, its address, and all that serves there."""

    def __init__(self, directory: Path) -> None:
        path = directory / "policy.sock"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen(16)
        self.address = ServerAddress(path=str(path), token=TOKEN)
        self.servings: list[Serving] = []

    def serve(self, max_wait_s: float = 0.005, **loaders) -> Serving:
        """Serve networks, each under its name."""
        self.servings.append(Serving(self.listening, loaders, max_batch=64, max_wait_s=max_wait_s, token=TOKEN))
        return self.servings[-1]

    def close(self) -> None:
        for serving in self.servings:
            serving.close()
        self.listening.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Socket]:
    made = Socket(tmp_path)
    yield made
    made.close()


SLOTS = 8


class RefusingNetwork(RandomNetwork):
    """Takes no seed 13, and may be held up until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_asked = threading.Event()

    def answer(self, entries):
        self.is_asked.set()
        assert self.may_go_on.wait(60.0)
        if 13 in np.asarray(entries["seed"]):
            raise ValueError("13 brings bad luck")
        return super().answer(entries)


def query(*seeds: int) -> dict:
    numbers = np.array([[seed / 7, seed / 3] for seed in seeds], np.float32)
    return {"numbers": numbers, "seed": np.array(seeds, np.int64), "words": ["lift" * (seed % 3) for seed in seeds]}


def asked_together(batcher: Batcher, *queries: dict, slots_per_call: int = SLOTS) -> list:
    """Ask from as many threads at once; an answer, or what was raised, for each query."""
    for _ in queries:
        batcher.count(1)
    with ThreadPoolExecutor(len(queries)) as pool:
        asked = [pool.submit(batcher.ask, each, slots_per_call=slots_per_call) for each in queries]
    for _ in queries:
        batcher.count(-1)
    return [each.exception() or each.result() for each in asked]


@pytest.fixture
def network():
    return RefusingNetwork()


@pytest.fixture
def batcher(network):
    made = Batcher(network, max_batch=64, max_wait_s=20.0)
    yield made
    network.may_go_on.set()
    made.close()


def test_an_answer_has_the_same_bits_whoever_else_asks(batcher, network):
    alone = [asked_together(batcher, query(*seeds))[0].answers["action"] for seeds in ((1, 2), (3,), (4, 5, 6))]
    together = asked_together(batcher, query(1, 2), query(3), query(4, 5, 6))
    assert [each.answers["action"].tobytes() for each in together] == [each.tobytes() for each in alone]
    assert network.calls == [SLOTS] * 4


@pytest.mark.parametrize(
    ("seeds", "max_batch", "max_wait_s", "least_s"), [((1,), 64, 0.01, 0.005), ((1, 2, 3, 4), 4, 20.0, 0.0)]
)
def test_a_query_waits_for_the_others_no_longer_than_it_may_and_a_full_batch_for_none(
    network, seeds, max_batch, max_wait_s, least_s
):
    batcher = Batcher(network, max_batch=max_batch, max_wait_s=max_wait_s)
    batcher.count(2)
    answered = batcher.ask(query(*seeds), slots_per_call=4)
    assert len(answered.answers["action"]) == len(seeds)
    assert least_s <= answered.usage.queue_s < 5.0
    batcher.close()


def test_a_query_that_the_network_refuses_or_that_contradicts_itself_takes_no_other_down(batcher):
    good, bad = asked_together(batcher, query(1), query(13))
    assert good.answers["action"].shape == (1, 2)
    assert isinstance(bad, PolicyError)
    assert "13 brings bad luck" in str(bad)
    with pytest.raises(PolicyError, match="the same number of entries"):
        batcher.ask({**query(1, 2), "words": ["one"]}, slots_per_call=SLOTS)


WIDE = {**query(2), "numbers": np.zeros((1, 2), np.float64)}


@pytest.mark.parametrize(
    ("max_batch", "queries", "sizes"),
    [
        (64, [query(1), WIDE], [SLOTS, SLOTS]),
        # Ranks with calls of other sizes.
        (64, [query(1), query(2)], [SLOTS, 4]),
        # More than a batch may have.
        (4, [query(1, 2, 3), query(4, 5, 6)], [SLOTS, SLOTS]),
    ],
    ids=["shapes", "sizes", "full"],
)
def test_queries_that_do_not_go_together_have_calls_of_their_own(network, max_batch, queries, sizes):
    batcher = Batcher(network, max_batch=max_batch, max_wait_s=0.1)
    batcher.count(2)
    with ThreadPoolExecutor(2) as pool:
        answered = list(pool.map(lambda each, size: batcher.ask(each, slots_per_call=size), queries, sizes))
    assert [each.usage.calls for each in answered] == [1.0, 1.0]
    assert sorted(network.calls) == sorted(sizes)
    batcher.close()


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


def test_a_server_is_no_rank_starts_again_when_it_is_killed_and_ends_with_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    server = started(tmp_path, host="127.0.0.1")
    pid, *rest = asked(server)
    assert rest == [server.address.token, "False"]
    os.kill(pid, signal.SIGKILL)
    again, *rest = asked(server)
    assert again != pid
    assert rest == [server.address.token, "False"]
    server.close()
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(again, 0)
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
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        started(tmp_path, host="192.0.2.1")


def refused(
    *,
    policy_class: type[PolicyBase] = ServablePolicy,
    num_envs: int = 4,
    options: tuple[str, ...] = ("policy_device",),
    given: dict[str, str] | None = None,
    **server: Any,
) -> list[str]:
    config = PolicyServerConfig(shared=ServerScope.NODE, **server)
    job = config_of("reach", "mine", num_envs=num_envs, policy_config_dict=given or {}, policy_server=config)
    try:
        refuse_unshareable(policy_class, job, config, options=options)
    except ConfigError as error:
        return [f"{problem.key}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"device": "cuda:1", "max_batch": 4}, []),
        ({"policy_class": ShrugPolicy}, ["policy_server: ", "gr00t_closedloop, lerobot, rsl_rl"]),
        ({"policy_class": OpenpiRemotePolicy, "options": ()}, ["policy_server: ", "a server of its own"]),
        ({"num_envs": 5, "max_batch": 4}, ["policy_server.max_batch: ", "5 env slots"]),
        ({"device": "gpu"}, ["policy_server.device: ", "got 'gpu'"]),
        ({"device": "cuda", "options": ()}, ["policy_server.device: ", "policy_device"]),
        ({"given": {"policy_device": "cpu"}}, ["policy_config_dict.policy_device: "]),
    ],
)
def test_what_cannot_be_shared_is_refused_with_its_key(changes, said):
    problems = refused(**changes)
    assert len(problems) == bool(said)
    assert all(words in problems[0] for words in said)
    assert all(problem.startswith(said[0]) for problem in problems)


SERVER = PolicyServerConfig(shared=ServerScope.NODE)


def run_job(tmp_path, address, observers=(), **changes) -> JobReport:
    coins = CoinConfig(success_step=5, failure_step=20)
    job = coin_job(policy_class=ServablePolicy, environment=coins, policy_server=SERVER, num_episodes=5, num_envs=4)
    runner = JobRunner(settings(tmp_path, policy_servers={SERVER: address}, **changes))
    report = runner.run(job, observers)
    runner.close()
    return report


def key_of_coins() -> str:
    job: Job = coin_job(policy_class=ServablePolicy, policy_server=SERVER)
    return job.network_key


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_job_promises_its_bits_and_says_what_it_took_of_the_server(tmp_path, place, num_groups):
    network = RandomNetwork()
    serving = place.serve(**{key_of_coins(): lambda: network})
    report = run_job(tmp_path, place.address, pipeline=num_groups)
    serving.close()
    assert (report.status, report.reproducible, report.policy_batch) == (
        ReportedStatus.COMPLETED,
        Reproducible.BITWISE,
        8,
    )
    used = report.policy_server
    assert used is not None
    # What the probe asked before the first step is no part of the job.
    assert used.entries == report.env_steps
    assert used.call_entries == 8 * used.calls
    assert 0 < used.calls < len(network.calls)


def test_the_end_of_the_rank_with_the_server_leaves_the_episodes_under_way_missing(tmp_path, place):
    serving, left = place.serve(**{key_of_coins(): RandomNetwork}), [3]

    class Ends(Observer):
        sees_pictures = False

        def on_step(self, environment, transition):
            left[0] -= 1
            if left[0] == 0:
                serving.close()
                place.listening.close()

    report = run_job(tmp_path, place.address, [Ends()])
    assert report.status is ReportedStatus.FAILED
    assert "the rank that ran the policy server" in str(report.error)
    assert [file.read_text() for file in tmp_path.glob("coins/*.jsonl")] == [""]


QUERY = {"numbers": np.ones((3, 2), np.float32), "seed": np.arange(3), "words": ["lift", "über", ""]}


def answer_of(network: ServedNetwork, **changes) -> bytes:
    return network.ask({**QUERY, **changes}, slots_per_call=8)["action"].tobytes()


def test_a_network_elsewhere_answers_as_one_here(place):
    place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    assert (network.about, network.max_batch) == (RandomNetwork().about, 64)
    filled = {name: [*values, *[values[0]] * 5] for name, values in QUERY.items()}
    here = RandomNetwork().answer({"words": filled["words"], **{n: np.array(filled[n]) for n in ("numbers", "seed")}})
    assert answer_of(network) == here["action"][:3].tobytes()
    assert (network.usage.queries, network.usage.entries, network.usage.call_entries) == (1, 3, 8.0)
    network.close()


def test_a_server_that_was_lost_and_came_back_goes_on_exactly(place):
    serving = place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    before = answer_of(network)
    serving.close()
    back = threading.Timer(0.1, lambda: place.serve(random=RandomNetwork))
    back.start()
    assert answer_of(network) == before
    back.join()


def test_a_query_that_ends_the_server_again_and_again_loses_the_policy(place):
    serving = place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    serving.close()

    def dies_of_every_query():
        for _ in range(2):
            connection, _ = place.listening.accept()
            with connection:
                policy_client.received(connection)
                policy_client.send(connection, {"about": RandomNetwork().about, "max_batch": 64})
                policy_client.received(connection)

    place.listening.settimeout(5.0)
    threading.Thread(target=dies_of_every_query, daemon=True).start()
    with pytest.raises(PolicyLostError, match="3 times over one query"):
        answer_of(network)


def other(**about):
    network = RandomNetwork()
    network.about = {**network.about, **about}
    return network


def test_a_server_that_comes_back_with_another_network_is_refused(place):
    serving = place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    serving.close()
    place.serve(random=lambda: other(slots_per_call=4))
    with pytest.raises(PolicyLostError, match=r"came back as another one: it stated .*'slots_per_call': 4"):
        answer_of(network)


NO_CHECKPOINT = ConfigError("there is no checkpoint 'a.pt'")


def raising(error: Exception):
    def load():
        raise error

    return load


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("refuses", ConfigError, "in the policy server: there is no checkpoint 'a.pt'"),
        ("breaks", PolicyError, "RuntimeError: out of luck"),
        ("unknown", PolicyError, "no policy of that kind"),
    ],
)
def test_what_cannot_be_loaded_is_said_and_others_are_served(place, key, error, words):
    place.serve(random=RandomNetwork, refuses=raising(NO_CHECKPOINT), breaks=raising(RuntimeError("out of luck")))
    with pytest.raises(error, match=words):
        ServedNetwork(place.address, key)
    assert ServedNetwork(place.address, "random").max_batch == 64


@pytest.mark.parametrize("token", ["guess", "open", ""])
def test_who_does_not_know_the_token_is_told_and_hears_no_more(place, token):
    place.serve(random=RandomNetwork)
    with pytest.raises(PolicyError, match="the token is wrong"):
        ServedNetwork(replace(place.address, token=token), "random")


def test_a_first_message_that_is_too_large_ends_the_conversation_before_it_is_read(place):
    place.serve(random=RandomNetwork)
    with place.address.connected(60.0) as connection:
        # Whether all of it fits into the pipe before the server lets go is not for us to say.
        with suppress(ConnectionError):
            policy_client.send(connection, {"hello": 1}, {"much": np.zeros(100_000)})
        with pytest.raises((EOFError, ConnectionError)):
            policy_client.received(connection, timeout_s=60.0)


@pytest.mark.parametrize(("answer_timeout_s", "process_ends_s"), [(0.3, 60.0), (60.0, 0.6)])
def test_a_silent_server_is_lost_before_the_process_ends_and_its_late_answer_is_not_that_to_the_next_query(
    place, answer_timeout_s, process_ends_s
):
    held = RefusingNetwork()
    held.may_go_on.clear()
    place.serve(held=lambda: held, random=RandomNetwork)
    network = ServedNetwork(place.address, "held", answer_timeout_s=answer_timeout_s)
    with ended_in(lambda: process_ends_s), pytest.raises(PolicyLostError, match="in time"):
        answer_of(network)
    held.may_go_on.set()
    seeds = np.arange(3) + 9
    assert answer_of(network, seed=seeds) == answer_of(ServedNetwork(place.address, "random"), seed=seeds)


def test_a_network_that_nobody_asks_is_let_go_of_when_another_is_wanted(place):
    loads: list[str] = []
    place.serve(**{name: lambda name=name: loads.append(name) or RandomNetwork() for name in "ab"})
    first, second = ServedNetwork(place.address, "a"), ServedNetwork(place.address, "a")
    first.close()
    ServedNetwork(place.address, "b").close()
    answer_of(second)
    assert loads == ["a", "b"], "another client still asks the first"
