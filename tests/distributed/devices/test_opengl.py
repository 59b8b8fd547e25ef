"""What OpenGL draws with is what the user says, else the rank's GPU, else the CPU."""

import pytest
import torch

from isaaclab_arena.distributed.devices import choose_opengl


@pytest.mark.parametrize(
    ("device", "egl", "libraries", "environ", "name"),
    [
        ("cuda:1", [None, 0, 1], {"OSMesa"}, {}, "egl"),
        ("cuda", [0], set(), {}, "egl"),
        ("cuda:1", [None, 0], {"OSMesa"}, {}, "osmesa"),
        ("cpu", [0], {"OSMesa"}, {}, "osmesa"),
        ("cpu", [0], set(), {}, None),
        ("cuda:0", [0], {"OSMesa"}, {"MUJOCO_GL": "glfw"}, "glfw"),
    ],
)
def test_egl_draws_on_the_ranks_gpu_and_osmesa_where_it_has_none(device, egl, libraries, environ, name):
    choice = choose_opengl(
        torch.device(device), {}, environ, lambda: egl, lambda wanted: wanted if wanted in libraries else None
    )
    assert choice.name == name
    assert choice.variables == ({} if name is None else {"MUJOCO_GL": name})


def test_without_egl_osmesa_draws():
    def missing():
        raise OSError("cannot be loaded")

    choice = choose_opengl(torch.device("cuda", 0), {}, {}, missing, lambda wanted: f"lib{wanted}.so")
    assert choice.name == "osmesa"


def test_where_nothing_draws_the_way_out_is_told():
    choice = choose_opengl(torch.device("cpu"), {}, {}, list, lambda wanted: None)
    assert "install libosmesa6, or set MUJOCO_GL" in choice.reason


def test_what_a_job_gives_its_workers_counts_more_than_what_this_process_has():
    choice = choose_opengl(torch.device("cpu"), {"MUJOCO_GL": "egl"}, {"MUJOCO_GL": "glfw"})
    assert choice.name == "egl"


@pytest.mark.parametrize(("file", "lacks"), [(None, True), ("libOSMesa.so.8", False)])
def test_a_choice_whose_library_is_missing_says_so(file, lacks):
    choice = choose_opengl(torch.device("cpu"), {}, {"MUJOCO_GL": "osmesa"}, list, lambda wanted: file)
    assert choice.lacks_library == lacks
