import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation import policy_client
from isaaclab_arena.evaluation.policy_client import ServedNetwork
from isaaclab_arena.logs import ended_in
from tests.fakes_network import RandomNetwork

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


def test_a_rank_sees_what_the_server_does_for_others_while_it_asks_and_nothing_of_before(place):
    place.serve(random=RandomNetwork)
    network, other = (ServedNetwork(place.address, "random") for _ in range(2))
    answer_of(other)
    answer_of(network)
    assert (network.usage.seen_entries, network.usage.seen_s) == (0, 0.0)
    answer_of(other)
    answer_of(network)
    usage = network.usage
    assert (usage.queries, usage.entries, usage.seen_entries) == (2, 6, 6)
    assert 0 < usage.seen_busy_s <= usage.seen_s
    network.seen = None
    answer_of(network)
    assert network.usage.seen_entries == 6


def test_a_server_that_was_lost_and_came_back_goes_on_exactly(place):
    serving = place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    before = answer_of(network)
    serving.close()
    back = threading.Timer(0.1, lambda: place.serve(random=RandomNetwork))
    back.start()
    assert answer_of(network) == before
    back.join()


def test_the_end_of_the_rank_with_the_server_is_told_at_once(place):
    serving = place.serve(random=RandomNetwork)
    network = ServedNetwork(place.address, "random")
    serving.close()
    place.listening.close()
    with pytest.raises(DistributedError, match="the rank that ran the policy server"):
        answer_of(network)


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


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"number": 7, "usage": {}}, PolicyError, "query 7"),
        ({"number": 1}, PolicyError, "invalid answer"),
        (None, PolicyLostError, "did not answer in time"),
    ],
)
def test_a_wrong_answer_is_named_and_a_late_one_loses_the_policy(place, said, error, words):
    def answers():
        connection, _ = place.listening.accept()
        with connection:
            policy_client.received(connection)
            policy_client.send(connection, {"about": {}, "max_batch": 64})
            policy_client.received(connection)
            if said is not None:
                policy_client.send(connection, said, {"action": np.zeros((3, 2))})
            done.wait(60.0)

    done = threading.Event()
    threading.Thread(target=answers, daemon=True).start()
    network = ServedNetwork(place.address, "random", answer_timeout_s=0.2)
    with pytest.raises(error, match=words):
        answer_of(network)
    done.set()


class HeldNetwork(RandomNetwork):
    """Gives its first answer when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def answer(self, entries):
        assert self.may_answer.wait(60.0)
        return super().answer(entries)


@pytest.mark.parametrize(("answer_timeout_s", "process_ends_s"), [(0.3, 60.0), (60.0, 0.6)])
def test_a_silent_server_is_lost_before_the_process_ends_and_its_late_answer_is_not_that_to_the_next_query(
    place, answer_timeout_s, process_ends_s
):
    held = HeldNetwork()
    place.serve(held=lambda: held, random=RandomNetwork)
    network = ServedNetwork(place.address, "held", answer_timeout_s=answer_timeout_s)
    with ended_in(lambda: process_ends_s), pytest.raises(PolicyLostError, match="in time"):
        answer_of(network)
    held.may_answer.set()
    seeds = np.arange(3) + 9
    assert answer_of(network, seed=seeds) == answer_of(ServedNetwork(place.address, "random"), seed=seeds)


def test_who_has_gone_is_no_longer_waited_for(place):
    place.serve(max_wait_s=20.0, random=RandomNetwork)
    first, second = ServedNetwork(place.address, "random"), ServedNetwork(place.address, "random")
    first.close()
    answer_of(second)
    assert second.usage.queue_s < 10.0


def test_a_network_that_nobody_asks_is_let_go_of_when_another_is_wanted(place):
    loads = []

    def loaded(name):
        return lambda: loads.append(name) or RandomNetwork()

    place.serve(a=loaded("a"), b=loaded("b"))
    first, second = ServedNetwork(place.address, "a"), ServedNetwork(place.address, "a")
    first.close()
    ServedNetwork(place.address, "b").close()
    assert loads == ["a", "b"]
    answer_of(second)
    assert loads == ["a", "b"]
