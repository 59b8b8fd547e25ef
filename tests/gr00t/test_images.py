import torch

from isaaclab_arena_gr00t.observations import resized_with_padding


def pictures(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, height, width, 3), dtype=torch.uint8, generator=generator)


def test_a_picture_of_the_right_size_is_left_as_it_is():
    images = pictures(6, 8)
    assert resized_with_padding(images, height=6, width=8) is images


def test_a_picture_that_is_shrunk_to_half_is_the_mean_of_each_four_pixels():
    images = pictures(8, 8)
    small = resized_with_padding(images, height=4, width=4)
    means = images.float().reshape(5, 4, 2, 4, 2, 3).mean(dim=(2, 4))
    assert small.dtype == torch.uint8
    assert torch.equal(small, means.round().to(torch.uint8))


def test_a_wide_picture_keeps_its_aspect_between_black_bars():
    images = torch.full((2, 10, 20, 3), 200, dtype=torch.uint8)
    square = resized_with_padding(images, height=8, width=8)
    assert torch.equal(square[:, 2:6], torch.full((2, 4, 8, 3), 200, dtype=torch.uint8))
    assert not square[:, :2].any()
    assert not square[:, 6:].any()


def test_a_tall_picture_is_enlarged_between_bars_at_its_sides():
    images = torch.full((1, 4, 2, 3), 90, dtype=torch.uint8)
    large = resized_with_padding(images, height=8, width=8)
    assert torch.equal(large[:, :, 2:6], torch.full((1, 8, 4, 3), 90, dtype=torch.uint8))
    assert large.sum() == 8 * 4 * 3 * 90


def test_a_picture_does_not_depend_on_those_beside_it():
    images = pictures(9, 13)
    together = resized_with_padding(images, height=7, width=7)
    assert all(
        torch.equal(resized_with_padding(images[[index]], height=7, width=7)[0], together[index]) for index in range(5)
    )


def test_even_a_sliver_keeps_a_pixel():
    shown = resized_with_padding(torch.full((1, 1, 1000, 3), 255, dtype=torch.uint8), height=8, width=8)
    assert shown.any(dim=-1).sum(dim=1).tolist() == [[1] * 8]
