import numpy as np
import torch

from isaaclab_arena.environments.events import approach, progress_of, strayed
from tests.environments.events.told import told


def test_progress_never_falls_and_leaves_the_last_part_to_success():
    facts = told(moments=5, stages=([0.5, 1, 1, 1, 0], [0, 0, 1, 0, 0]))
    np.testing.assert_allclose(progress_of(facts, solved=False), [1 / 6, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    np.testing.assert_allclose(progress_of(facts, solved=True), [1 / 6, 1 / 3, 2 / 3, 2 / 3, 1])


def test_a_later_stage_says_that_those_before_it_are_done():
    facts = told(moments=2, stages=([0, 0], [0, 0], [0, 0.5]))
    assert progress_of(facts, solved=False)[-1] == 2.5 / 4


def test_the_way_to_a_place_is_measured_from_the_start():
    torch.testing.assert_close(approach(torch.tensor([0.5, 0.3, 0.1, 0.7]), 0.1), torch.tensor([0.0, 0.5, 1.0, 0.0]))


def test_a_thing_strays_only_while_nobody_holds_it():
    x = [0.0, 0.1, 0.2, 0.3, 0.3, 0.5, 0.6]
    position = torch.tensor([(each, 0.0, 0.0) for each in x])
    held = torch.tensor([False, False, True, True, False, False, False])
    # It has one step to come to rest after it was let go.
    expected = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.2, 0.3])
    torch.testing.assert_close(strayed(position, held, settle_steps=1), expected)
