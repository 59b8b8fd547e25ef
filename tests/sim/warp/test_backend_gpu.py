"""MuJoCo-Warp on a GPU, held to itself and to MuJoCo; `make gpu-check` runs it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from isaaclab_arena.sim.backend import VisibleWorld
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_cameras import BatchCameras, Camera, RayTracers
from tests.sim.arm_and_cube import begin, drive
from tests.sim.warp.test_backend import POSITION_TOLERANCE, VELOCITY_TOLERANCE
from tests.sim.warp.test_cameras import CLOSE, SAME_PIXELS

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda:0")
NUM_ENVS = 64

LITTLE_BYTES = 64 * 2**20
"""Much less than worlds take, and more than what drivers do by the way [B]."""

TAKEN_OF_THE_FIRST_GPU = f"""
import torch
from isaaclab_arena.sim.scene import compose_scene
from isaaclab_arena.sim.warp_backend import WarpBackend
from tests.sim.arm_and_cube import PARTS

torch.cuda.set_device(1)
before = torch.cuda.mem_get_info(0)[0]
worlds = WarpBackend(compose_scene("scenes/table.xml", PARTS), num_envs={NUM_ENVS}, device=torch.device("cuda:1"))
print(before - torch.cuda.mem_get_info(0)[0])
"""


def driven(model, **options) -> WarpBackend:
    backend = WarpBackend(model, num_envs=NUM_ENVS, device=GPU, **options)
    begin(backend)
    drive(backend, 20)
    return backend


def test_it_agrees_with_mujoco_with_and_without_a_graph(model):
    reference = begin(MujocoBackend(model, num_envs=NUM_ENVS))
    drive(reference, 20)
    # The first step of a kind is launched, those after it are replayed.
    backend = driven(model)
    tolerances = {"qpos": POSITION_TOLERANCE, "site_xpos": POSITION_TOLERANCE, "qvel": VELOCITY_TOLERANCE}
    for name, tolerance in tolerances.items():
        apart = (getattr(backend, name).cpu().double() - torch.as_tensor(getattr(reference, name))).abs()
        worst = apart.flatten(1).amax(dim=1)
        # The order of sums is a race; in a world or two the cube is about to slide, which multiplies what they lose.
        assert (worst < tolerance).sum() >= NUM_ENVS - 3, name
        assert (worst < 100 * tolerance).all(), name


@pytest.mark.xfail(reason="MuJoCo-Warp 4 sorts neither contacts nor constraints: their order on a GPU is a race")
def test_with_determinism_the_same_run_gives_the_same_bits(model):
    first, second = (driven(model, deterministic=True) for _ in range(2))
    assert torch.equal(first.qpos, second.qpos)
    assert torch.equal(first.qvel, second.qvel)


def test_pictures_are_those_of_the_cpu_and_stay_on_the_gpu(model):
    backend = driven(model)
    cameras = [Camera(name=model.camera(index).name, width=64, height=48) for index in range(model.ncam)]
    together = BatchCameras(backend, cameras).render()
    alone = RayTracers(model, cameras).render({3: VisibleWorld.of(*backend.visible_world(3))})[3]
    for camera in cameras:
        assert together[camera.name].device == GPU
        shown = together[camera.name][3].cpu().numpy().astype(int)
        assert (np.abs(shown - alone[camera.name]) <= CLOSE).all(axis=-1).mean() > SAME_PIXELS


def test_a_backend_leaves_other_gpus_alone():
    if torch.cuda.device_count() == 1:
        pytest.skip("needs two GPUs")
    # In a process of its own, in which nothing has been on the first GPU before.
    finished = subprocess.run(
        [sys.executable, "-c", TAKEN_OF_THE_FIRST_GPU], capture_output=True, text=True, check=True
    )
    assert int(finished.stdout.splitlines()[-1]) < LITTLE_BYTES
