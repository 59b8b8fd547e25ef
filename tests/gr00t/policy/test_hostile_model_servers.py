"""Servers that take the place of a model server of vla-eval, and answer with what no such server does."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena_gr00t.remote.protocols import ANSWER_LIMITS
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import Model, array, packed, serving
from tests.gr00t.policy.test_vla_eval_remote_policy import episodes, policy_at

Answer = Callable[[int], list[bytes | str]]

STEERING = "\x1b[2J\x1b]0;owned\x07evil"
FIVE = array(np.zeros(5))


def acting(actions: Any) -> Answer:
    return lambda number: [packed("action", {"actions": actions}, number)]


ANSWERS: dict[str, tuple[Answer, str]] = {
    "an error": (lambda number: [packed("error", {"error": "OSError: too dark"}, number)], "failed: OSError: too dark"),
    "an error that steers": (lambda number: [packed("error", {"error": STEERING * 999}, number)], "failed: "),
    "doubled": (lambda number: [packed("action", {"actions": FIVE}, number)] * 2, "it repeats or skips one"),
    "late": (lambda number: [packed("action", {"actions": FIVE}, number - 1)], "it repeats or skips one"),
    "another kind": (lambda number: [packed("hello", {}, number)], "answered an observation with 'hello'"),
    "text": (lambda number: ["Traceback\x1b"], "sent text: Traceback"),
    "no msgpack": (lambda number: [b"\xc1"], "sent something else than such a server does"),
    "nothing": (lambda number: [packed("action", {}, number)], "'actions' of at least 1 steps, got NoneType"),
    "a list": (acting([0.0] * 5), "got list"),
    "too few numbers": (acting(array(np.zeros(4))), "has 4 numbers, the"),
    "three dimensions": (acting(array(np.zeros((1, 1, 5)))), "got (1, 1, 5)"),
    "NaN": (acting(array([np.nan] * 5)), "not finite"),
    "beyond float32": (acting(array([1e300] * 5, "<f8")), "not finite in float32, such as 1e+300"),
    "objects": (acting(FIVE | {"dtype": "|O"}), "sent something else"),
    "declared huge": (acting(FIVE | {"shape": [2**40]}), "sent something"),
    "a map without a type": (lambda number: [bytes(msgpack.packb({"actions": 1}) or b"")], "a message has a type"),
    "payload of text": (lambda number: [packed("action", "go", number)], "a message has text, a map"),
    "deeply nested": (lambda number: [b"\x91" * 100 + b"\xc0"], "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_action_is_an_error_of_the_policy(answer, message):
    model: Any = Model()
    model.answers = lambda heard, asked: answer(heard["seq"])
    with serving(model.talk) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="vla-eval") as caught:
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_an_answer_that_is_too_large_is_not_taken():
    model: Any = Model()
    model.answers = lambda heard, asked: [bytes(ANSWER_LIMITS.max_message_bytes + 1)]
    with serving(model.talk) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match="the answer has more bytes than the 33554432 that are allowed"):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            bytes(msgpack.packb({"policy": "pi"}) or b""),
            "of another kind (openpi policy server)",
        ),
        (
            packed("hello", {"protocol_version": 2}, 1),
            "speaks version the int '2' of the protocol, and 1 is known here",
        ),
        (packed("hello", {}, 1), "speaks version the NoneType"),
        (packed("action", {}, 1), "answered hello with 'action'"),
        (packed("error", {"error": "no"}, 1), "failed: no"),
        ("hello", "sent text: hello"),
    ],
    # The messages hold the time, which would be another in each process of the tests.
    ids=["openpi", "a later version", "no version", "an action", "an error", "text"],
)
def test_a_server_of_another_protocol_is_known_by_its_first_answer(first, message):
    with serving(lambda connection: connection.send(first)) as port, pytest.raises(PolicyError) as caught:
        policy_at(port)
    assert message in str(caught.value)
