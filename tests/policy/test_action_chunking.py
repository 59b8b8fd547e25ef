import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.policy.action_chunking import ActionChunkingState, ActionChunkScheduler, ChunkPlayer

NUM_ENVS, LENGTH, WIDTH = 3, 2, 1


def fresh() -> ChunkPlayer:
    return ChunkPlayer.empty(NUM_ENVS, chunk_length=LENGTH, action_dim=WIDTH)


def test_env_slots_may_have_chunks_of_different_lengths():
    def counting(*firsts_and_lengths: tuple[float, int]) -> list[torch.Tensor]:
        return [torch.arange(first, first + length)[:, None] for first, length in firsts_and_lengths]

    chunks = fresh().restarted(torch.tensor([0, 1, 2])).refilled(
        torch.tensor([0, 1, 2]), counting((10.0, 1), (20.0, 3), (30.0, 2))
    )  # fmt: skip
    assert [chunks.planned(slot).flatten().tolist() for slot in range(3)] == [[10.0], [20, 21, 22], [30, 31]]
    played = []
    for _ in range(5):
        needing = chunks.needs_chunk().nonzero().flatten()
        if len(needing):
            chunks = chunks.refilled(needing, counting(*[(100.0 * (len(played) + 1), 4)] * len(needing)))
        action, chunks = chunks.popped()
        played.append(action.flatten().tolist())
    assert played == [[10, 20, 30], [200, 21, 31], [201, 22, 300], [202, 400, 301], [203, 401, 302]]


def scheduler(**changes) -> ActionChunkScheduler:
    sizes = {"num_envs": NUM_ENVS, "action_chunk_length": LENGTH, "action_horizon": 3, "action_dim": WIDTH}
    return ActionChunkScheduler(**{**sizes, "device": "cpu", **changes})


def counting(first: int) -> torch.Tensor:
    """Return a network's answer for all env slots: ``first``, ``first + 1`` and so on."""
    return torch.arange(first, first + 3, dtype=torch.float32)[None, :, None].expand(NUM_ENVS, -1, WIDTH)


def never() -> torch.Tensor:
    raise AssertionError("no env slot needs a chunk")


def test_a_scheduler_asks_only_when_an_env_slot_has_played_its_chunk():
    chunks = scheduler()
    played = [chunks.get_action(fetch)[0].item() for fetch in (lambda: counting(10), never, lambda: counting(20))]
    assert played == [10.0, 11.0, 20.0]
    assert chunks.current_action_index.tolist() == [1] * NUM_ENVS


def test_env_slots_that_are_reset_take_a_new_chunk_and_the_others_go_on_with_theirs():
    chunks = scheduler()
    chunks.get_action(lambda: counting(10))
    chunks.reset(torch.tensor([1]))
    assert chunks.env_requires_new_chunk.tolist() == [False, True, False]
    assert chunks.current_action_index.tolist() == [1, -1, 1]
    assert chunks.get_action(lambda: counting(20)).flatten().tolist() == [11.0, 20.0, 11.0]
    chunks.reset()
    assert chunks.env_requires_new_chunk.all()
    chunks.get_action(lambda: counting(30))
    chunks.reset(slice(0, 2))
    assert chunks.env_requires_new_chunk.tolist() == [True, True, False]


def test_a_scheduler_has_its_earlier_name_and_precision_and_refuses_what_does_not_fit():
    assert ActionChunkingState is ActionChunkScheduler
    assert scheduler(dtype=torch.float64).get_action(lambda: counting(0)).dtype == torch.float64
    with pytest.raises(ValueError, match=r"action_chunk_length is 4"):
        scheduler(action_chunk_length=4)
    for wrong, told in ((counting(0)[:, :1], r"\(3, 1, 1\)"), (counting(0)[:1], r"\(1, 3, 1\)")):
        with pytest.raises(PolicyError, match=told):
            scheduler().get_action(lambda wrong=wrong: wrong)


HORIZON = 4


def averaging(by: float, num_envs: int = 2) -> ChunkPlayer:
    return ChunkPlayer.empty(num_envs, chunk_length=HORIZON, action_dim=3, averaging=by)


def as_in_act(made: list[np.ndarray], by: float) -> np.ndarray:
    """Return the action of the present step as the paper has it, from the chunks of one env slot, oldest first."""
    about_now = [chunk[age] for age, chunk in enumerate(reversed(made[-HORIZON:]))][::-1]
    weights = np.exp(-by * np.arange(len(about_now)))
    return (np.array(about_now) * (weights / weights.sum())[:, None]).sum(axis=0)


@pytest.mark.parametrize("by", [0.0, 0.01, 3.0])
def test_an_action_is_the_weighted_mean_of_all_that_was_predicted_for_its_step(by):
    generator = np.random.default_rng(0)
    player, made = averaging(by).restarted(torch.tensor([0, 1])), ([], [])
    for step in range(9):
        if step == 5:  # the second env slot begins another episode
            player, made = player.restarted(torch.tensor([1])), (made[0], [])
        assert player.needs_chunk().all()
        chunks = generator.normal(size=(2, HORIZON, 3)).astype(np.float32)
        player = player.refilled(torch.tensor([0, 1]), torch.from_numpy(chunks))
        for env_id in range(2):
            made[env_id].append(chunks[env_id])
        action, player = player.popped()
        expected = np.stack([as_in_act(made[env_id], by) for env_id in range(2)])
        np.testing.assert_allclose(action.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_an_env_slot_held_before_its_episode_does_not_come_through():
    player = averaging(0.01, 1).restarted(torch.tensor([0]))
    player = player.refilled(torch.tensor([0]), torch.full((1, HORIZON, 3), torch.nan)).popped()[1]
    player = player.restarted(torch.tensor([0])).refilled(torch.tensor([0]), torch.ones(1, HORIZON, 3))
    assert torch.equal(player.popped()[0], torch.ones(1, 3))
