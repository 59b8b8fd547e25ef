"""Pictures of some env slots, read as those of all are, and pictures in any layout, in colours."""

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.policy_traits import refuse_misread, seen_by
from isaaclab_arena.interfaces.specs import Pictures, in_colours, picture_layout
from tests.layouts import COLOURS, LAYOUTS, UNCLEAR

ALL = torch.arange(4 * 2 * 2 * 3, dtype=torch.uint8).reshape(4, 2, 2, 3)


def of_slots_1_and_3() -> Pictures:
    return Pictures((1, 3), ALL[[1, 3]], "eye", "Looker")


@pytest.mark.parametrize(
    "index",
    [1, np.int64(3), [3, 1, 3], torch.tensor([1, 3]), torch.tensor([False, True, False, True]), np.array([3]), []],
)
def test_they_are_read_by_env_slot_as_those_of_all_env_slots_are(index):
    assert torch.equal(of_slots_1_and_3()[index], ALL[index])


@pytest.mark.parametrize("index", [0, [1, 0, 2], torch.tensor([0, 1])])
def test_a_look_that_was_not_announced_is_refused_by_name(index):
    with pytest.raises(UnannouncedPictureError, match=r"Looker looks at 'eye' of env slots 0\b.*how_to/cameras.md"):
        of_slots_1_and_3()[index]


def test_who_takes_them_for_the_tensor_of_all_env_slots_is_told_so():
    with pytest.raises(AttributeError) as caught:
        of_slots_1_and_3().float()  # pyright: ignore[reportAttributeAccessIssue]  the mistake that is tested
    with pytest.raises(UnannouncedPictureError, match="Looker looks at 'eye' as a tensor of all env slots"):
        refuse_misread(caught.value)
    refuse_misread(AttributeError("another one"))


def test_what_is_read_belongs_to_the_reader():
    pictures = of_slots_1_and_3()
    pictures[1].zero_()
    pictures[[3]].zero_()
    assert torch.equal(pictures[[1, 3]], ALL[[1, 3]])


@pytest.mark.parametrize("cameras", [{"eye": of_slots_1_and_3()}, {"eye": ALL}])
def test_a_reader_sees_what_it_announced_of_what_was_drawn(cameras):
    seen = seen_by("Other", cameras, np.array([False, True, False, False]))["eye"]
    assert seen.env_ids == (1,)
    assert torch.equal(seen.frames, ALL[[1]])
    with pytest.raises(UnannouncedPictureError, match="Other looks at 'eye' of env slots 3 "):
        seen[3]


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
