"""LIBERO's cameras draw only what is wanted, at the moment at which robosuite reads them."""

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import Cameras
from tests.environments.libero.fake_env_wrapper import Domain


def looked_at(*, period: int, shown_size: int | None = None) -> tuple[Domain, Cameras, list[np.ndarray]]:
    np.random.seed(0)
    domain = Domain(camera_names=["front"], camera_heights=6, camera_widths=6)
    cameras = Cameras(domain, ["front"], size=6, shown_size=shown_size)
    cameras.wanted = False
    domain.reset()
    domain.renders, pictures = 0, []
    for number in range(1, 9):
        cameras.wanted = number % period == 0
        cameras.drawn.clear()
        observation = domain.step([0.1 * number, 0, 0, 0, 0, 0, -1])[0]
        pictures += cameras.shown(observation).values()
    return domain, cameras, pictures


def test_pictures_that_nobody_wants_are_not_drawn_and_the_others_are_the_same():
    every, _, all_pictures = looked_at(period=1)
    some, _, pictures = looked_at(period=4)
    assert (every.renders, some.renders) == (8, 2)
    assert np.array_equal(pictures, [all_pictures[3], all_pictures[7]])
    assert not np.array_equal(pictures[0], pictures[1])


def test_a_reset_whose_pictures_nobody_wants_draws_none():
    domain, cameras, _ = looked_at(period=1)
    cameras.wanted, domain.renders = False, 0
    domain.reset()
    assert domain.renders == 0


def test_pictures_are_turned_by_half_a_turn_and_shrunk():
    _, _, [*_, whole] = looked_at(period=1)
    assert whole[-1, -1].any()
    assert not whole[:-1].any()
    _, _, [*_, small] = looked_at(period=1, shown_size=3)
    assert small.shape == (3, 3, 3)


def test_a_wanted_picture_that_was_not_read_is_an_error():
    domain, cameras, _ = looked_at(period=1)
    observation = domain._get_observations()
    cameras.wanted = True
    cameras.drawn.clear()
    with pytest.raises(RuntimeError, match="did not read 'front_image'"):
        cameras.shown(observation)
