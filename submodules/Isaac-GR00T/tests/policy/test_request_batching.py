"""Which requests are answered together, and who gets what of the answer."""

import numpy as np
import pytest
from gr00t.policy.policy_server import ActionRequest, action_request, join_requests, split_answer
from served import observation


def request(*values: float, seeds: list[int] | None = None, size: int = 4) -> ActionRequest:
    made = action_request({"observation": observation(*values, size=size), "options": {"noise_seeds": seeds}})
    assert made is not None
    return made


def test_batch_entries_stand_in_the_order_of_the_requests():
    joined, options = join_requests([request(1, 2, seeds=[10, 20]), request(3, seeds=[30])])
    assert joined["state"]["arm"][:, 0, 0].tolist() == [1, 2, 3]
    assert joined["video"]["front"].shape == (3, 1, 4, 4, 3)
    assert joined["language"]["annotation.human.task_description"] == [["lift the cube"]] * 3
    assert options == {"noise_seeds": [10, 20, 30]}


def test_without_seeds_there_are_no_options():
    assert join_requests([request(1), request(2)])[1] is None


def test_each_request_gets_its_entries_of_all_that_is_as_long_as_the_batch():
    action = {"arm": np.arange(6).reshape(3, 2, 1)}
    info = {"values": np.array([7, 8, 9]), "words": ["a", "b", "c"], "model": "echo", "pair": [1, 2]}
    (first, told_first), (second, told_second) = split_answer(action, info, [2, 1])
    assert first["arm"].tolist() == [[[0], [1]], [[2], [3]]]
    assert second["arm"].tolist() == [[[4], [5]]]
    assert told_first["values"].tolist() == [7, 8]
    assert (told_first["words"], told_second["words"]) == (["a", "b"], ["c"])
    assert told_second["model"] == "echo"
    assert told_second["pair"] == [1, 2]


def test_actions_of_another_batch_size_cannot_be_shared_out():
    with pytest.raises(ValueError, match="'arm' is no array of 3 batch entries"):
        split_answer({"arm": np.zeros((2, 4, 1))}, {}, [2, 1])


@pytest.mark.parametrize(
    "other",
    [
        request(1, seeds=[1]),
        request(1, size=8),
        action_request({"observation": {**observation(1.0), "more": {}, "state": {"leg": np.zeros((1, 1, 1))}}}),
        action_request({"observation": {**observation(1.0), "state": {"arm": np.zeros((1, 1, 1), np.float64)}}}),
    ],
    ids=["with seeds", "larger images", "other keys", "other types"],
)
def test_requests_that_differ_in_form_have_another_layout(other):
    assert other.layout != request(2).layout
    assert request(1, 2, 3).layout == request(4).layout


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"observation": None},
        {"observation": {}},
        {"observation": {"video.front": np.zeros((1, 2))}},
        {"observation": {"state": {"arm": 3}}},
        {"observation": {"state": {"arm": np.float32(3)}}},
        {"observation": {"state": {"arm": np.zeros((0, 1))}}},
        {"observation": {"state": {"arm": np.zeros((2, 1)), "leg": np.zeros((3, 1))}}},
        {"observation": observation(1.0), "options": {"noise_seeds": [1, 2]}},
        {"observation": observation(1.0), "options": {"client_id": "a"}},
        {"observation": observation(1.0), "options": 3},
        {"observation": observation(1.0), "more": 3},
    ],
    ids=str,
)
def test_what_is_unlike_a_plain_request_is_answered_by_itself(data):
    assert action_request(data) is None
