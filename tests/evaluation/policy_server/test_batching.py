import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.policy_server import Batcher
from tests.fakes_network import RandomNetwork

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


def test_the_shares_of_all_queries_are_what_the_server_did(batcher, network):
    answered = asked_together(batcher, query(1, 2, 3), query(*range(20, 30)))
    usage = answered[0].usage + answered[1].usage
    assert (usage.queries, usage.entries) == (2, 13)
    assert usage.calls == pytest.approx(len(network.calls)) == pytest.approx(2)
    assert usage.call_entries == pytest.approx(2 * SLOTS)
    assert usage.busy_s > 0
    assert usage.queue_s >= 0


def test_a_query_waits_for_the_others_and_no_longer_than_it_may(network):
    batcher = Batcher(network, max_batch=64, max_wait_s=0.01)
    batcher.count(1)
    batcher.count(1)
    answered = batcher.ask(query(1), slots_per_call=SLOTS)
    assert 0.005 < answered.usage.queue_s < 5.0
    batcher.close()


def test_a_full_batch_waits_for_nobody(network):
    batcher = Batcher(network, max_batch=4, max_wait_s=20.0)
    batcher.count(1)
    batcher.count(1)
    assert len(batcher.ask(query(1, 2, 3, 4), slots_per_call=4).answers["action"]) == 4
    batcher.close()


def test_what_comes_during_a_call_is_answered_together_in_the_next(network):
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    network.may_go_on.clear()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(batcher.ask, query(1), slots_per_call=SLOTS)
        assert network.is_asked.wait(60.0)
        later = [pool.submit(batcher.ask, query(seed), slots_per_call=SLOTS) for seed in (2, 3)]
        while len(batcher._waiting) < 2:
            pass
        network.may_go_on.set()
        assert [each.result().usage.calls for each in later] == [0.5, 0.5]
    assert network.calls == [SLOTS] * 2
    batcher.close()


def test_a_query_that_the_network_refuses_takes_no_other_down(batcher):
    good, bad = asked_together(batcher, query(1), query(13))
    assert good.answers["action"].shape == (1, 2)
    assert isinstance(bad, PolicyError)
    assert "13 brings bad luck" in str(bad)


def test_queries_of_other_shapes_are_not_mixed(network):
    batcher = Batcher(network, max_batch=64, max_wait_s=0.1)
    wide = {**query(2), "numbers": np.zeros((1, 2), np.float64)}
    answered = asked_together(batcher, query(1), wide)
    assert [each.usage.calls for each in answered] == [1.0, 1.0]
    batcher.close()


def test_ranks_with_calls_of_other_sizes_have_calls_of_their_own(network):
    batcher = Batcher(network, max_batch=64, max_wait_s=0.1)
    batcher.count(1)
    batcher.count(1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda size: batcher.ask(query(size), slots_per_call=size), (SLOTS, 4)))
    assert sorted(network.calls) == [4, SLOTS]
    batcher.close()


def test_no_more_is_answered_together_than_a_batch_may_have(network):
    batcher = Batcher(network, max_batch=4, max_wait_s=0.1)
    answered = asked_together(batcher, query(1, 2, 3), query(4, 5, 6), slots_per_call=SLOTS)
    assert [each.usage.calls for each in answered] == [1.0, 1.0]
    batcher.close()


def test_the_parts_of_a_query_are_about_the_same_entries(batcher):
    with pytest.raises(PolicyError, match="the same entries"):
        batcher.ask({**query(1, 2), "words": ["one"]}, slots_per_call=SLOTS)
