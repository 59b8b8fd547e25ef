import os
import subprocess
import sys

import pytest
import torch

from isaaclab_arena.distributed.devices import draw_on


def visible(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


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
        ([0], "cuda:0", visible("1"), {**visible("1,-1,0"), "MUJOCO_EGL_DEVICE_ID": "0"}),
        ([1, 0], "cuda:0", visible("2,3"), {**visible("2,3,-1,1"), "MUJOCO_EGL_DEVICE_ID": "1"}),
        ([1, 0], "cuda:0", visible("0,1"), {**visible("0,1"), "MUJOCO_EGL_DEVICE_ID": "1"}),
        ([0], "cuda:0", visible("GPU-5a"), {**visible("GPU-5a,-1,0"), "MUJOCO_EGL_DEVICE_ID": "0"}),
        ([None], "cuda:0", visible("1"), visible("1")),
        ([0], "cpu", visible("1"), visible("1")),
    ],
)
def test_opengl_draws_on_the_gpu_of_the_rank(egl, device, environ, expected):
    draw_on(torch.device(device), environ, egl_gpus=lambda: egl)
    assert environ == expected
    before = dict(environ)
    draw_on(torch.device(device), environ, egl_gpus=lambda: egl)
    assert environ == before


@pytest.mark.gpu
def test_a_process_sees_no_other_gpus_where_egl_counts_them_otherwise():
    environ = {**os.environ, **visible(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=lambda: [*[None] * 7, 0])
    assert environ["CUDA_VISIBLE_DEVICES"].endswith(",-1,7")
    program = "import torch; print(torch.cuda.device_count(), torch.ones(2, device='cuda:0').sum().item())"
    run = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "2.0"]


def test_without_egl_nothing_is_chosen_for_opengl():
    def missing():
        raise OSError("cannot be loaded")

    environ: dict[str, str] = {}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=missing)
    assert environ == {}
