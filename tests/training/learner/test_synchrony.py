import torch

from isaaclab_arena.training.learner import check_synchrony, differences, named_digests


def test_equal_states_have_equal_digests_and_others_do_not():
    state = {"actor": {"weight": torch.arange(4.0)}, "optimizer": [{"lr": 1e-3}]}
    changed = {"actor": {"weight": torch.tensor([0.0, 1.0, 2.0, 3.0000002])}, "optimizer": [{"lr": 1e-3}]}
    assert named_digests(state) == named_digests({**state})
    assert named_digests(state)["actor.weight"] != named_digests(changed)["actor.weight"]
    assert list(named_digests(state)) == ["actor.weight", "optimizer.0.lr"]


def test_the_rank_that_differs_from_most_is_named():
    held = torch.tensor([[1, 7], [1, 8], [1, 7]])
    assert differences(["a", "b"], held) == {"b": "1"}


def test_of_two_ranks_the_higher_one_is_named():
    assert differences(["a"], torch.tensor([[1], [2]])) == {"a": "1"}


def test_a_single_process_is_always_in_step():
    check_synchrony({"actor": {"weight": torch.zeros(2), "count": torch.tensor(3)}})
