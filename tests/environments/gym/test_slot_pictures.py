"""A picture is of the present, or it is not shown."""

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.gym.environment import SlotPictures
from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.pictures import Pictures
from isaaclab_arena.interfaces.specs import ArraySpec

CPU = torch.device("cpu")
NONE_REST = np.zeros(3, bool)


def kept(*, always_drawn: bool = False) -> SlotPictures:
    return SlotPictures({"front": ArraySpec(shape=(2, 2, 3), dtype=torch.uint8)}, 3, always_drawn=always_drawn)


def picture(value: int) -> dict[str, np.ndarray]:
    return {"front": np.full((2, 2, 3), value, np.uint8)}


def move(pictures: SlotPictures, moving: list[int], values: dict[int, int], *, resting: np.ndarray = NONE_REST) -> None:
    seen = pictures.wanted(moving, resting)
    for env_id in moving:
        pictures.put(env_id, picture(values[env_id]) if env_id in seen else None)


def test_without_a_word_everything_is_wanted():
    pictures = kept()
    move(pictures, [0, 2], {0: 5, 2: 7})
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, torch.Tensor)
    assert shown[:, 0, 0, 0].tolist() == [5, 0, 7]
    assert pictures.num_drawn == 2


def test_an_announcement_holds_once():
    pictures = kept()
    pictures.announced = [1]
    assert pictures.wanted([0, 1], NONE_REST) == {1}
    assert pictures.wanted([0, 1], NONE_REST) == {0, 1}


def test_an_env_slot_that_moved_without_a_picture_shows_none():
    pictures = kept()
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    pictures.announced = [1]
    move(pictures, [0, 1], {0: 4, 1: 5})
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, Pictures)
    assert shown.env_ids == (1, 2)
    assert shown[[1, 2]][:, 0, 0, 0].tolist() == [5, 3]
    with pytest.raises(UnannouncedPictureError, match="'front' of env slots 0 was not drawn"):
        pictures.of("front", [1, 0])
    assert pictures.of("front", [2, 1])[:, 0, 0, 0].tolist() == [3, 5]


@pytest.mark.parametrize(("announced", "env_ids"), [(None, [0, 2]), ([0, 2], [0, 2]), ([2], [2])])
def test_an_env_slot_that_rests_since_a_step_without_a_picture_is_black_where_it_is_announced(announced, env_ids):
    pictures = kept()
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    pictures.announced = []
    move(pictures, [0, 1], {0: 9, 1: 9})
    pictures.announced = announced
    move(pictures, [2], {2: 4}, resting=np.array([True, False, False]))
    shown = pictures.observed(CPU)["front"]
    assert isinstance(shown, Pictures)
    assert shown.env_ids == tuple(env_ids)
    assert shown[env_ids][:, 0, 0, 0].tolist() == [{0: 0, 2: 4}[env_id] for env_id in env_ids]


@pytest.mark.parametrize(("always_drawn", "num_drawn"), [(False, 1), (True, 3)])
def test_pictures_that_an_environment_draws_all_the_same_are_counted(always_drawn, num_drawn):
    pictures = kept(always_drawn=always_drawn)
    pictures.announced = [2]
    move(pictures, [0, 1, 2], {0: 1, 1: 2, 2: 3})
    assert pictures.num_drawn == num_drawn
