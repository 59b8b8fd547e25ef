"""Pictures of some env slots, read as those of all are, and pictures in any layout, in colours."""

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.pictures import PartialImages, in_colours, partial_images, picture_layout
from tests.layouts import COLOURS, LAYOUTS, UNCLEAR

ALL = torch.arange(4 * 2 * 2 * 3, dtype=torch.uint8).reshape(4, 2, 2, 3)


def of_slots_1_and_3() -> PartialImages:
    return PartialImages("eye", ALL[[1, 3]], np.array([-1, 0, -1, 1]), reader="Looker")


@pytest.mark.parametrize(
    "index",
    [
        1,
        np.int64(3),
        [3, 1, 3],
        slice(3, None),
        torch.tensor([1, 3]),
        torch.tensor([False, True, False, True]),
        np.array([3]),
        [],
    ],
)
def test_they_are_read_as_those_of_all_env_slots_are(index):
    assert torch.equal(of_slots_1_and_3()[index], ALL[index])


@pytest.mark.parametrize(
    "look",
    [
        lambda pictures: pictures[0],
        lambda pictures: pictures[[1, 0, 2]],
        lambda pictures: pictures[:],
        lambda pictures: pictures.float(),
        lambda pictures: pictures.permute(0, 3, 1, 2),
        lambda pictures: torch.stack([pictures, pictures]),
        torch.sum,
        list,
        np.asarray,
    ],
)
def test_a_look_that_was_not_announced_is_refused_by_name(look):
    with pytest.raises(UnannouncedPictureError, match=r"Looker looks at 'eye' of env slots 0\b.*how_to/cameras.md"):
        look(of_slots_1_and_3())


def test_what_is_read_belongs_to_the_reader():
    pictures = of_slots_1_and_3()
    pictures[1].zero_()
    pictures[[3]].zero_()
    assert torch.equal(pictures[[1, 3]], ALL[[1, 3]])


def test_a_reader_sees_what_it_announced_of_what_was_drawn():
    announced = np.array([True, True, False, False])
    seen = of_slots_1_and_3().seen_by("Other", announced)
    assert (seen.env_ids, seen.shape, len(seen)) == ([1], (4, 2, 2, 3), 4)
    with pytest.raises(UnannouncedPictureError, match="Other looks at 'eye' of env slots 3 "):
        seen[3]
    assert partial_images("eye", ALL).seen_by("Other", announced).env_ids == [0, 1]


def test_env_slots_behind_those_that_there_are_are_black():
    wide = of_slots_1_and_3().padded(6, reader="Other")
    assert wide.env_ids == [1, 3, 4, 5]
    assert torch.equal(wide[[1, 3]], ALL[[1, 3]])
    assert not wide[[4, 5]].any()


@pytest.mark.parametrize(("shown", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_pictures_have_their_colours_in_whichever_layout_an_environment_shows_them(shown, colours):
    assert picture_layout(shown.shape, shown.dtype).shape == colours.shape
    batch = np.stack([shown, 255 - shown])
    found = in_colours(batch)
    assert found.flags.c_contiguous
    assert found.tolist() == np.stack([colours, 255 - colours]).tolist()
    tensors = in_colours(torch.from_numpy(batch))
    assert tensors.is_contiguous()
    assert tensors.tolist() == found.tolist()


def test_pictures_that_lie_as_all_readers_want_them_are_not_copied():
    assert in_colours(ALL) is ALL


@pytest.mark.parametrize(("shape", "reason"), UNCLEAR.items())
def test_a_layout_that_is_not_certain_is_refused_with_what_would_be(shape, reason):
    with pytest.raises(ValueError, match=f"{reason}; show it as") as refusal:
        picture_layout(shape, torch.uint8)
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("dtype", [torch.float32, np.dtype(np.float32), np.dtype(np.int32)])
def test_what_is_not_in_bytes_is_no_picture_in_colours(dtype):
    with pytest.raises(ValueError, match=r"is no colour picture: .*32 of shape \(6, 8, 3\)"):
        picture_layout(COLOURS.shape, dtype)
