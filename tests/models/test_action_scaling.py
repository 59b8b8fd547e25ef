import pytest
import torch

from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.models.network import ActionScaler, ActionScaling

CPU = torch.device("cpu")
SPEC = ArraySpec(shape=(3,), low=(-2.0, 0.0, -torch.inf), high=(2.0, 1.0, torch.inf))
OUTPUT = torch.tensor([[-1.0, 0.0, 5.0], [0.5, 9.0, -9.0]])


def test_shares_of_the_bounds_are_clipped_and_what_has_no_bounds_stays():
    scaled = ActionScaler(SPEC, ActionScaling.WITHIN_BOUNDS, device=CPU)(OUTPUT)
    assert scaled.tolist() == [[-2.0, 0.5, 5.0], [1.0, 1.0, -9.0]]


@pytest.mark.parametrize("scaling", ActionScaling)
def test_actions_without_bounds_stay_as_they_are(scaling):
    assert torch.equal(ActionScaler(ArraySpec(shape=(3,)), scaling, device=CPU)(OUTPUT), OUTPUT)


def test_outputs_as_they_are_may_leave_the_bounds_but_not_the_clip():
    assert torch.equal(ActionScaler(SPEC, ActionScaling.AS_IS, device=CPU)(OUTPUT), OUTPUT)
    clipped = ActionScaler(SPEC, ActionScaling.AS_IS, clip=4.0, device=CPU)(OUTPUT)
    assert clipped.tolist() == [[-1.0, 0.0, 4.0], [0.5, 4.0, -4.0]]


def test_an_action_gives_back_the_output_that_it_came_from():
    scaler = ActionScaler(SPEC, ActionScaling.WITHIN_BOUNDS, device=CPU)
    assert scaler.output_of(scaler(OUTPUT)).tolist() == [[-1.0, 0.0, 5.0], [0.5, 1.0, -9.0]]


def test_an_action_beyond_its_bounds_stands_for_the_bound():
    scaler = ActionScaler(SPEC, ActionScaling.WITHIN_BOUNDS, device=CPU)
    assert scaler.output_of(torch.tensor([-7.0, 3.0, 9.0])).tolist() == [-1.0, 1.0, 9.0]
