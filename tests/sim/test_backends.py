import logging

import pytest
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim import backends
from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.backends import BackendChoice, faster_backend, make_backend
from isaaclab_arena.sim.mujoco.backend import MujocoBackend
from isaaclab_arena.sim.scene.scene import ScenePart, compose_scene

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", (ScenePart(prefix="object", asset="objects/cube.xml"),))


class FakeGpu:
    """Stands for worlds on a GPU."""


@pytest.fixture
def on_gpu(monkeypatch):
    """Let a GPU take as long for a step as a test says, and note what was built on it."""
    built = []
    taken_s = {}

    def build(model, *, num_envs, device):
        built.append((num_envs, str(device)))
        return FakeGpu()

    monkeypatch.setattr(backends, "_warp_backend", build)
    monkeypatch.setattr(backends, "_step_s", lambda backend: taken_s[type(backend)])
    return built, taken_s


def made(model, choice: BackendChoice, device: torch.device, num_envs: int = 4):
    return make_backend(model, choice=choice, num_envs=num_envs, device=device, num_threads=1)


def test_without_a_gpu_worlds_are_mujocos_and_nothing_is_measured(model, on_gpu):
    built, _ = on_gpu
    assert isinstance(made(model, "auto", CPU), MujocoBackend)
    assert not built


def test_what_is_asked_for_is_built(model, on_gpu):
    assert isinstance(made(model, "mujoco", GPU), MujocoBackend)
    assert isinstance(made(model, "warp", GPU), FakeGpu)
    assert isinstance(made(model, "warp", CPU), FakeGpu)


def test_few_worlds_are_stepped_before_a_gpu_is_told_to(model, on_gpu, caplog):
    built, taken_s = on_gpu
    taken_s[MujocoBackend] = 1e-4
    with caplog.at_level(logging.INFO):
        assert isinstance(made(model, "auto", GPU), MujocoBackend)
    assert not built
    assert "backend mujoco: a step of 4 worlds takes 0.1 ms on the CPU" in caplog.text


@pytest.mark.parametrize(("gpu_s", "kind", "name"), [(2e-3, FakeGpu, "warp"), (9e-2, MujocoBackend, "mujoco")])
def test_many_worlds_go_where_they_are_stepped_faster(model, on_gpu, caplog, gpu_s, kind, name):
    built, taken_s = on_gpu
    taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    with caplog.at_level(logging.INFO):
        assert isinstance(made(model, "auto", GPU, num_envs=512), kind)
    assert (512, "cuda:0") in built
    assert f"backend {name}: a step of 512 worlds takes 20 ms on the CPU, {1e3 * gpu_s:.2g} ms on cuda:0" in caplog.text


@pytest.mark.parametrize(("gpu_s", "name"), [(1.9e-2, "warp"), (2e-2, "mujoco"), (2.1e-2, "mujoco")])
def test_the_faster_backend_can_be_asked_for_without_being_kept(model, on_gpu, gpu_s, name):
    built, taken_s = on_gpu
    taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    assert faster_backend(model, num_envs=8, device=GPU, num_threads=1) == name
    assert built == [(8, "cuda:0")]


def test_without_a_gpu_nobody_is_timed(model, on_gpu):
    # Whoever is timed here has no time in the fixture, and fails.
    assert faster_backend(model, num_envs=8, device=CPU, num_threads=1) == "mujoco"
    assert not on_gpu[0]


def test_a_scene_that_warp_cannot_simulate_is_mujocos_unless_warp_was_asked_for(model, monkeypatch, caplog):
    def refuse(model, *, num_envs, device):
        raise EnvironmentBuildError("MuJoCo-Warp cannot simulate this scene: no such sensor; use backend 'mujoco'")

    monkeypatch.setattr(backends, "_warp_backend", refuse)
    monkeypatch.setattr(backends, "_step_s", lambda _: 1.0)
    with caplog.at_level(logging.INFO):
        assert faster_backend(model, num_envs=8, device=GPU, num_threads=1) == "mujoco"
    assert "backend mujoco: MuJoCo-Warp cannot simulate this scene: no such sensor" in caplog.text
    assert isinstance(made(model, "auto", GPU), MujocoBackend)
    with pytest.raises(EnvironmentBuildError):
        made(model, "warp", GPU)


def test_worlds_that_were_measured_are_as_new_ones(model):
    measured, new = MujocoBackend(model, num_envs=2), MujocoBackend(model, num_envs=2)
    assert backends._step_s(measured) > 0
    new.reset(torch.arange(2), [StartState()] * 2)
    for name, value in new.snapshot().items():
        assert torch.equal(measured.snapshot()[name], value), name
