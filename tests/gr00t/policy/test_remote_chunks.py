"""What servers of any protocol are shown."""

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.remote.chunks import misfits, shown_inputs
from tests.gr00t.fakes import LimbEnvironment
from tests.layouts import LAYOUTS, UNCLEAR

IMAGES = {"observation/image": "front"}


def environment_of(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> LimbEnvironment:
    environment = LimbEnvironment(2)
    cameras = {"front": ArraySpec(shape=shape, dtype=dtype)}
    environment.observation_spec = {**environment.observation_spec, "camera_obs": cameras}
    return environment


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_server_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    assert misfits(environment_of(lies.shape), IMAGES, {}, None) == []
    shown = {"camera_obs": {"front": torch.from_numpy(np.stack([255 - lies, lies]))}}
    pictures, _ = shown_inputs(shown, 1, images=IMAGES, states={}, image_size=None)
    assert np.array_equal(pictures["observation/image"], colours)
    assert pictures["observation/image"].flags.c_contiguous


@pytest.mark.parametrize(("shape", "reason"), UNCLEAR.items())
def test_a_layout_that_is_not_certain_is_refused_with_the_cameras_name(shape, reason):
    [problem] = misfits(environment_of(shape), IMAGES, {}, None)
    assert problem.key == "images.observation/image"
    assert problem.message.startswith(f"camera 'front' has shape {shape}")
    assert reason in problem.message


def test_a_camera_that_shows_depth_is_no_picture():
    [problem] = misfits(environment_of((6, 8, 1), torch.float32), IMAGES, {}, None)
    assert problem.message == "camera 'front' is no colour picture: torch.float32 of shape (6, 8, 1)"
