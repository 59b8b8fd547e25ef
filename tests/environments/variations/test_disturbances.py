"""Noise, blur and exposure of what is observed: the same for an episode whatever its neighbours do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.variations.varied_world import (
    Disturbance,
    Disturbances,
    blurred_pictures,
    compressed_pictures,
    exposure_table,
    noise_of,
    quantisation_tables,
)
from isaaclab_arena.interfaces.specs import CAMERAS, Pictures

CPU = torch.device("cpu")
RGB = "head_rgb"
STRONG = Disturbance(seed=5, state_noise=0.1, picture_noise=8.0, blur=1.0, exposure=0.5, quality=20)


def disturbing(*each: Disturbance) -> Disturbances:
    made = Disturbances(len(each), CPU, most_blur=1.0)
    made.begin(torch.arange(len(each)), each)
    return made


def observed(num_envs: int) -> dict:
    generator = np.random.default_rng(3)
    picture = torch.from_numpy(generator.integers(0, 256, (9, 8, 3), dtype=np.uint8))
    return {
        "policy": {"joint_pos": torch.ones(num_envs, 2), "eef_pos": torch.zeros(num_envs, 3)},
        CAMERAS: {RGB: picture.repeat(num_envs, 1, 1, 1), "head_depth": torch.ones(num_envs, 9, 8, 1)},
    }


def moved(*which: bool) -> torch.Tensor:
    return torch.tensor(which)


def test_noise_has_mean_0_and_deviation_1_and_follows_from_its_key_alone():
    noise = noise_of(torch.tensor([7, 8]), 100_000)
    assert noise.mean(dim=1).abs().max() < 0.01
    assert (noise.std(dim=1) - 1).abs().max() < 0.01
    assert abs(float((noise[0] * noise[1]).mean())) < 0.01
    assert torch.equal(noise[1], noise_of(torch.tensor([1, 2, 8]), 100_000)[2])


def test_an_episode_sees_the_same_beside_any_others():
    alone, beside = disturbing(STRONG), disturbing(Disturbance(seed=9, picture_noise=30.0, blur=0.5), STRONG)
    for step in range(3):
        one = alone.disturbed(observed(1), moved(True))
        two = beside.disturbed(observed(2), moved(step != 1, True))
        for group, terms in one.items():
            for name, seen in terms.items():
                assert torch.equal(seen[0], two[group][name][1]), name


def test_noise_is_new_in_every_step_and_stays_while_an_env_slot_rests():
    made = disturbing(STRONG)
    first, rests, second = (made.disturbed(observed(1), moved(goes)) for goes in (True, False, True))
    for group, name in (("policy", "joint_pos"), (CAMERAS, RGB)):
        assert torch.equal(first[group][name], rests[group][name])
        assert not torch.equal(first[group][name], second[group][name])


def test_an_env_slot_without_a_disturbance_keeps_its_bits_beside_others_that_have_some():
    seen = disturbing(Disturbance(), STRONG).disturbed(observed(2), moved(True, True))
    for group, terms in observed(2).items():
        for name, now in terms.items():
            assert torch.equal(seen[group][name][0], now[0])


def test_depth_is_left_alone():
    seen = disturbing(STRONG).disturbed(observed(1), moved(True))
    assert torch.equal(seen[CAMERAS]["head_depth"], observed(1)[CAMERAS]["head_depth"])


def test_what_is_drawn_on_demand_is_seen_as_if_everything_were_drawn():
    each = [replace(STRONG, seed=seed) for seed in (5, 6, 7)]
    everything = disturbing(*each).disturbed(observed(3), moved(True, True, True))
    some = observed(3)
    some[CAMERAS] = {RGB: Pictures((0, 2), observed(2)[CAMERAS][RGB])}
    seen = disturbing(*each).disturbed(some, moved(True, True, True))[CAMERAS][RGB]
    assert seen.env_ids == (0, 2)
    assert torch.equal(seen[[0, 2]], everything[CAMERAS][RGB][[0, 2]])


def test_pictures_are_compressed_last_as_a_camera_does():
    bare, compressed = disturbing(replace(STRONG, quality=100)), disturbing(STRONG)
    one, other = (each.disturbed(observed(1), moved(True))[CAMERAS][RGB] for each in (bare, compressed))
    tables = torch.from_numpy(quantisation_tables(20))[None]
    assert torch.equal(other, compressed_pictures(one, tables))


@pytest.mark.parametrize(("stops", "grey"), [(0.0, 128), (1.0, 175), (-1.0, 93), (6.0, 255)])
def test_exposure_counts_in_light_and_not_in_colours(stops, grey):
    assert exposure_table(stops)[128] == grey


def test_blur_keeps_an_even_picture_and_spreads_a_point():
    weights = torch.tensor([[0.25, 0.5, 0.25]])
    even = torch.full((1, 5, 5, 1), 77, dtype=torch.uint8)
    assert torch.equal(blurred_pictures(even, weights), even)
    point = torch.zeros(1, 5, 5, 1, dtype=torch.uint8)
    point[0, 2, 2] = 160
    assert blurred_pictures(point, weights)[0, 1:4, 1:4, 0].tolist() == [[10, 20, 10], [20, 40, 20], [10, 20, 10]]


def test_a_new_episode_begins_with_its_own_first_noise():
    made, fresh = disturbing(STRONG), disturbing(STRONG)
    made.disturbed(observed(1), moved(True))
    made.begin(torch.tensor([0]), [STRONG])
    again, first = (each.disturbed(observed(1), moved(True)) for each in (made, fresh))
    assert torch.equal(again["policy"]["joint_pos"], first["policy"]["joint_pos"])
    made.begin(torch.tensor([0]), [Disturbance()])
    assert torch.equal(made.disturbed(observed(1), moved(True))[CAMERAS][RGB], observed(1)[CAMERAS][RGB])
