import pytest
import torch

from isaaclab_arena.distributed.devices.egl_devices import draw_on


@pytest.mark.parametrize(
    ("egl", "device", "environ", "expected"),
    [
        ([0, 1, None], "cuda:1", {}, {"MUJOCO_EGL_DEVICE_ID": "1"}),
        ([None, 1, 0], "cuda:0", {}, {"MUJOCO_EGL_DEVICE_ID": "2"}),
        ([1, 0], "cuda", {}, {"MUJOCO_EGL_DEVICE_ID": "1"}),
        ([0, 1], "cuda:1", {"MUJOCO_EGL_DEVICE_ID": "0"}, {"MUJOCO_EGL_DEVICE_ID": "0"}),
        ([0, 1], "cpu", {}, {}),
        ([None, None], "cuda:0", {}, {}),
        ([], "cuda:0", {}, {}),
    ],
)
def test_opengl_draws_on_the_gpu_of_the_rank(egl, device, environ, expected):
    draw_on(torch.device(device), environ, egl_gpus=lambda: egl)
    assert environ == expected


def test_without_egl_nothing_is_chosen_for_opengl():
    def missing():
        raise OSError("cannot be loaded")

    environ: dict[str, str] = {}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=missing)
    assert environ == {}
