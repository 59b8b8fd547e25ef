import torch

from isaaclab_arena_gr00t.policy.action_chunking import ActionChunks

ROWS, LENGTH, WIDTH = 3, 2, 1


def fresh() -> ActionChunks:
    return ActionChunks.empty(ROWS, chunk_length=LENGTH, action_dim=WIDTH, device=torch.device("cpu"))


def filled(chunks: ActionChunks, first: int) -> ActionChunks:
    """Give every row that needs one a chunk of the numbers ``first``, ``first + 1``."""
    rows = chunks.needs_chunk().nonzero().flatten()
    new = torch.arange(first, first + LENGTH, dtype=torch.float32)[None, :, None].expand(len(rows), -1, WIDTH)
    return chunks.refilled(rows, new)


def test_nothing_is_needed_before_a_row_has_begun():
    action, after = fresh().popped()
    assert not fresh().needs_chunk().any()
    assert torch.equal(action, torch.zeros(ROWS, WIDTH))
    assert torch.equal(after.next_step, fresh().next_step)


def test_a_row_plays_its_chunk_to_the_end_and_then_needs_another():
    chunks = filled(fresh().restarted(torch.tensor([0, 1, 2])), 10)
    for expected in (10.0, 11.0):
        assert not chunks.needs_chunk().any()
        action, chunks = chunks.popped()
        assert action.flatten().tolist() == [expected] * ROWS
    assert chunks.needs_chunk().all()


def test_a_row_that_starts_again_in_the_middle_of_its_chunk_leaves_the_others_in_the_middle_of_theirs():
    _, chunks = filled(fresh().restarted(torch.tensor([0, 1, 2])), 10).popped()
    chunks = chunks.restarted(torch.tensor([1]))
    assert chunks.needs_chunk().tolist() == [False, True, False]
    action, chunks = filled(chunks, 20).popped()
    assert action.flatten().tolist() == [11.0, 20.0, 11.0]
    assert chunks.needs_chunk().tolist() == [True, False, True]


def test_a_row_at_rest_needs_nothing_and_does_nothing():
    chunks = filled(fresh().restarted(torch.tensor([0, 1, 2])), 10).rested(torch.tensor([2]))
    for _ in range(LENGTH):
        action, chunks = chunks.popped()
        assert action[2] == 0
    assert chunks.needs_chunk().tolist() == [True, True, False]


def test_chunks_are_values_that_nothing_changes():
    before = filled(fresh().restarted(torch.tensor([0, 1, 2])), 10)
    copies = [before.actions.clone(), before.next_step.clone(), before.active.clone()]
    filled(before.popped()[1].restarted(torch.tensor([0])), 20).rested(torch.tensor([1]))
    assert all(map(torch.equal, copies, [before.actions, before.next_step, before.active]))
