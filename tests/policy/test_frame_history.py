"""What is kept of the steps before, and how much of it."""

import pytest
import torch

from isaaclab_arena.policy.action_chunking import FrameHistory


def frame(step: int, num_envs: int) -> dict[str, torch.Tensor]:
    """Return a frame whose numbers say the step and the env slot: ``100 * env_id + step``."""
    return {"a": (100 * torch.arange(num_envs) + step)[:, None].expand(-1, 2)}


@pytest.mark.parametrize("steps", [(0,), (-3, 0), (-2, -1, 0), (-4, -2), (0, -1, -1)])
def test_each_env_slot_sees_its_own_steps_and_before_the_first_the_first(steps):
    history, begun = FrameHistory(steps, 3), [0, 0, 0]
    for now in range(12):
        for env_id, begins_at in ((1, (5, 6)), (2, (9,))):
            if now in begins_at:
                history.restart(torch.tensor([env_id]))
                begun[env_id] = now
        history.push(frame(now, 3), range(3))
        expected = [[100 * env_id + max(begun[env_id], now + step) for step in steps] for env_id in (2, 0, 1, 2)]
        assert history.frames([2, 0, 1, 2])["a"][..., 0].tolist() == expected


def test_no_more_is_kept_than_the_earliest_step_needs():
    history = FrameHistory((-15, 0), 4)
    for step in range(100):
        history.push(frame(step, 4), range(4))
    assert [kept.shape for kept in history._kept.values()] == [(4, 16, 2)]


def test_what_was_returned_does_not_change_when_the_next_frame_comes():
    history = FrameHistory((-1, 0), 1)
    history.push(frame(0, 1), [0])
    returned = history.frames([0])["a"]
    history.push(frame(1, 1), [0])
    assert returned[0, :, 0].tolist() == [0, 0]
