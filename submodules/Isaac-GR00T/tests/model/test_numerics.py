import numpy as np
import pytest
import torch
from gr00t.data.types import compute_statistics
from gr00t.model.modeling import (
    draw_flow_times,
    integrate,
    interpolate,
    masked_mean_square,
    seeded_noise,
    spatial_softmax,
)
from gr00t.model.processing import fit_images, scaling, shift_randomly


def test_normalised_actions_come_back_as_they_were() -> None:
    values = np.random.default_rng(0).normal(3.0, [0.1, 20.0], (1000, 2))
    scale = scaling([compute_statistics(values)])
    recorded = torch.tensor(values, dtype=torch.float32)
    torch.testing.assert_close(scale.physical_action(scale.action(recorded)), recorded, rtol=1e-5, atol=1e-5)


def test_a_dimension_that_never_moved_comes_back_as_its_one_value() -> None:
    scale = scaling([compute_statistics(np.full((10, 1), 0.7))])
    assert scale.action(torch.tensor([[0.7]])).abs().item() < 1e-6
    assert scale.physical_action(torch.tensor([[5.0]])).item() == pytest.approx(0.7)


def test_a_range_becomes_minus_one_to_one() -> None:
    scale = scaling([compute_statistics(np.array([[-2.0], [6.0]]))])
    assert scale.action(torch.tensor([[-2.0], [2.0], [6.0]])).flatten().tolist() == [-1.0, 0.0, 1.0]


def test_a_state_outside_the_data_counts_as_twice_its_range_at_most() -> None:
    scale = scaling([compute_statistics(np.array([[-2.0], [6.0]]))])
    assert scale.state(torch.tensor([[-100.0], [7.0], [100.0]])).flatten().tolist() == [-2.0, 1.25, 2.0]


def test_an_action_outside_the_data_is_brought_back_to_its_edge() -> None:
    scale = scaling([compute_statistics(np.array([[-2.0], [6.0]]))])
    assert scale.physical_action(torch.tensor([[3.0]])).item() == 6.0


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros(3), np.array([[np.nan]])])
def test_statistics_of_nothing_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="statistics need"):
        compute_statistics(values)


def test_exact_velocities_lead_from_noise_to_the_action_in_any_number_of_steps() -> None:
    noise, action = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for steps in (1, 4):
        reached = integrate(lambda _, __: action - noise, noise, num_steps=steps)
        torch.testing.assert_close(reached, action)


def test_the_path_begins_at_the_noise_and_ends_at_the_action() -> None:
    noise, action = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    path = interpolate(noise, action, torch.tensor([0.0, 1.0]))
    assert torch.equal(path[0], noise[0])
    assert torch.equal(path[1], action[1])


def test_flow_times_follow_their_beta_distribution() -> None:
    times = draw_flow_times(torch.rand(200_000, generator=torch.Generator().manual_seed(0)), alpha=1.5, longest=0.999)
    assert 0.0 <= times.min() <= times.max() <= 0.999
    # The mean of Beta(1.5, 1) is 0.6.
    assert times.mean().item() == pytest.approx(0.999 * 0.4, abs=0.003)


def test_padding_has_no_share_in_the_loss() -> None:
    difference = torch.tensor([[[1.0, 100.0], [3.0, 100.0]]])
    mask = torch.tensor([[[True, False], [True, False]]])
    assert masked_mean_square(difference, mask).item() == 5.0
    assert masked_mean_square(difference, torch.zeros_like(mask)).item() == 0.0


def test_a_batch_entrys_noise_is_that_of_its_own_seed() -> None:
    together = seeded_noise([3, 2**63 + 1, 3], (4, 2))
    assert torch.equal(together[0], seeded_noise([3], (4, 2))[0])
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])


def test_a_keypoint_lands_where_its_map_is_bright() -> None:
    logits = torch.full((1, 1, 5, 9), -50.0)
    logits[0, 0, 4, 2] = 50.0
    weights, positions = spatial_softmax(logits)
    torch.testing.assert_close(positions[0, 0], torch.tensor([-0.5, 1.0]))
    assert weights.sum().item() == pytest.approx(1.0)


def test_a_wide_image_keeps_its_shape_between_black_bars() -> None:
    fitted = fit_images(torch.full((1, 3, 32, 64), 200, dtype=torch.uint8), 16)
    assert fitted.shape == (1, 3, 16, 16)
    assert fitted[0, 0, :, 0].tolist() == [0] * 4 + [200] * 8 + [0] * 4


def test_an_image_of_the_right_size_is_left_alone() -> None:
    image = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert fit_images(image, 16) is image


def test_a_shift_moves_the_whole_image_by_a_few_pixels() -> None:
    image = torch.zeros(50, 3, 16, 16, dtype=torch.uint8)
    image[:, :, 8, 8] = 255
    shifted = shift_randomly(image, 4, torch.Generator().manual_seed(0))
    places = (shifted[:, 0] == 255).nonzero()[:, 1:]
    assert len(places) == 50
    assert set(places.flatten().tolist()) == set(range(4, 13))
