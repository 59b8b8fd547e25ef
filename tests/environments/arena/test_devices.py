"""On a GPU every environment does what it does on the CPU, and mixes no tensors of the two.

Physics is on the GPU too (``warp``), or on the CPU while policies and observations are on the GPU (``mujoco``).
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.mdp.spaces import ACTION_MODES
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.sim.warp_backend import WarpBackend
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    CPU,
    FLOOR_ENVIRONMENTS,
    assert_the_same,
    build,
    flat,
    random_actions,
    start,
    tensors_of,
)
from tests.environments.variations.varying import begin, build_varied, everything
from tests.pretend_backend import PretendGpuBackend, pretended_environments, simulate_with_warp, there
from tests.pretend_gpu import GPU, PretendGpu

NUM_ENVS = 3
NUM_STEPS = 2
PICTURES = {"enable_cameras": True, "camera_size": 16, "camera_depth": True, "camera_segmentation": True}


@pytest.fixture(autouse=True)
def _physics_on_the_gpu(gpu: PretendGpu) -> Iterator[None]:
    with pretended_environments():
        yield


def built(name: str, device: torch.device, backend: str, **options: Any) -> ArenaEnvironment:
    backend = "mujoco" if device == CPU else backend
    return build(there(name), num_envs=NUM_ENVS, device=device, backend=backend, **options)


def story(env: ArenaEnvironment) -> list[dict[str, torch.Tensor]]:
    """Results of steps, a new episode in one env slot, more steps, and a return to a snapshot."""
    actions = random_actions(env, NUM_STEPS).to(env.device)
    pages = [tensors_of(env.step(action)) for action in actions]
    pages.append(flat(start(env, [1])))
    snapshot = env.snapshot()
    pages += [tensors_of(env.step(action)) for action in actions]
    if snapshot is not None:
        pages.append(flat(env.restore_snapshot({name: tensor.cpu() for name, tensor in snapshot.items()})))
    assert all(tensor.device == env.device for page in pages for tensor in page.values())
    return [*pages, flat(env.state())]


def assert_alike(name: str, backend: str, **options: Any) -> ArenaEnvironment:
    """Compare what happens on both devices, and return the environment on the GPU."""
    envs = [built(name, device, backend, **options) for device in (GPU, CPU)]
    assert isinstance(envs[0].backend, PretendGpuBackend) == (backend == "warp")
    for env in envs:
        start(env)
    assert_the_same(*(story(env) for env in envs))
    return envs[0]


@pytest.mark.parametrize("name", ["push_to_goal", "track_motion"])
def test_a_task_does_so_where_only_policies_are_on_the_gpu(name):
    assert_alike(name, "mujoco")


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_task_does_on_a_gpu_what_it_does_on_the_cpu_and_lets_that_wait_for_nothing_in_a_control_step(gpu, name):
    env = assert_alike(name, "warp")
    [action] = random_actions(env, 1).to(GPU)
    gpu.waits.clear()
    env.step(action)
    assert gpu.waits == []


def test_no_task_is_left_out():
    names = (*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS)
    assert set(ENVIRONMENTS.names()) == {*names, *map(there, names)}


@pytest.mark.parametrize("action_mode", ACTION_MODES)
@pytest.mark.parametrize("embodiment", ["panda", "so101"])
def test_every_arm_is_moved_in_every_way(embodiment, action_mode):
    assert_alike("reach", "warp", embodiment=embodiment, action_mode=action_mode)


@pytest.mark.parametrize(
    ("name", "backend"), [("lift_object", "warp"), ("sort_two", "warp"), ("open_drawer", "warp"), ("reach", "mujoco")]
)
def test_worlds_that_vary_in_everything_do_so_on_a_gpu(name, backend):
    pages = []
    for device, engine in ((GPU, backend), (CPU, "mujoco")):
        env = build_varied(there(name), everything(name), num_envs=NUM_ENVS, device=device, backend=engine)
        begin(env)
        pages.append([tensors_of(env.step(action)) for action in random_actions(env, NUM_STEPS).to(device)])
    assert_the_same(*pages)


def test_pictures_of_worlds_on_the_cpu_are_where_the_other_observations_are():
    assert_pictures_are_there(built("lift_object", GPU, "mujoco", **PICTURES))


@pytest.mark.slow
def test_pictures_of_worlds_on_the_gpu_are_there_too(monkeypatch):
    simulate_with_warp(monkeypatch)
    env = build("lift_object", num_envs=NUM_ENVS, device=GPU, backend="warp", **PICTURES)
    assert isinstance(env.backend, WarpBackend)
    assert_pictures_are_there(env)


def test_a_frame_of_a_film_is_read_from_the_gpu_in_one_copy_for_each_size_of_pictures(gpu, monkeypatch):
    simulate_with_warp(monkeypatch)
    env = build("lift_object", num_envs=NUM_ENVS, device=GPU, backend="warp", enable_cameras=True, camera_size=16)
    start(env)
    for cameras in ([env.filmable[0]], env.filmable):
        env.film([0, 2], cameras)
        gpu.waits.clear()
        env.film([0, 2], cameras)
        assert len(gpu.waits) == len({name == VIEWPORT for name in cameras})


def assert_pictures_are_there(env: ArenaEnvironment) -> None:
    seen = flat(start(env)) | tensors_of(env.step(random_actions(env, 1)[0].to(GPU)))
    assert {tensor.device for tensor in seen.values()} == {GPU}
    assert any(tensor.ndim == 4 for tensor in seen.values())
    assert env.film([1], env.filmable)["viewport"].shape[0] == 1
