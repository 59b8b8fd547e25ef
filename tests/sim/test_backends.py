import logging
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.backends import BackendChoice, MujocoBackend, faster_backend, make_backend, physics_step_s
from isaaclab_arena.sim.scene import ScenePart, compose_scene

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", (ScenePart(prefix="object", asset="objects/cube.xml"),))


class FakeGpu:
    """Stands for worlds on a GPU."""


class FakeMachine:
    """Takes as long for a step as a test says, and notes what was built on its GPU."""

    def __init__(self) -> None:
        self.built: list[tuple[int, str]] = []
        self.taken_s: dict[type, float] = {}
        self.error: EnvironmentBuildError | None = None

    def worlds(self, model, *, num_envs: int, device: torch.device) -> Any:
        if self.error is not None:
            raise self.error
        self.built.append((num_envs, str(device)))
        return FakeGpu()

    def step_s(self, backend: Backend) -> float:
        return self.taken_s[type(backend)]

    def made(self, model, choice: BackendChoice, device: torch.device, num_envs: int = 4) -> Backend:
        options = {"num_envs": num_envs, "device": device, "num_threads": 1}
        return make_backend(model, choice=choice, on_gpu=self.worlds, step_s=self.step_s, **options)

    def faster(self, model, device: torch.device) -> str:
        options = {"num_envs": 8, "device": device, "num_threads": 1}
        return faster_backend(model, on_gpu=self.worlds, step_s=self.step_s, **options)


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def test_without_a_gpu_worlds_are_mujocos_and_nothing_is_measured(model, machine):
    assert isinstance(machine.made(model, "auto", CPU), MujocoBackend)
    assert not machine.built


def test_what_is_asked_for_is_built(model, machine):
    assert isinstance(machine.made(model, "mujoco", GPU), MujocoBackend)
    assert isinstance(machine.made(model, "warp", GPU), FakeGpu)
    assert isinstance(machine.made(model, "warp", CPU), FakeGpu)


def test_few_worlds_are_stepped_before_a_gpu_is_told_to(model, machine, caplog):
    machine.taken_s[MujocoBackend] = 1e-4
    with caplog.at_level(logging.INFO):
        assert isinstance(machine.made(model, "auto", GPU), MujocoBackend)
    assert not machine.built
    assert "backend mujoco: a step of 4 worlds takes 0.1 ms on the CPU" in caplog.text


@pytest.mark.parametrize(("gpu_s", "kind", "name"), [(2e-3, FakeGpu, "warp"), (9e-2, MujocoBackend, "mujoco")])
def test_many_worlds_go_where_they_are_stepped_faster(model, machine, caplog, gpu_s, kind, name):
    machine.taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    with caplog.at_level(logging.INFO):
        assert isinstance(machine.made(model, "auto", GPU, num_envs=512), kind)
    assert (512, "cuda:0") in machine.built
    assert f"backend {name}: a step of 512 worlds takes 20 ms on the CPU, {1e3 * gpu_s:.2g} ms on cuda:0" in caplog.text


@pytest.mark.parametrize(("gpu_s", "name"), [(1.9e-2, "warp"), (2e-2, "mujoco"), (2.1e-2, "mujoco")])
def test_the_faster_backend_can_be_asked_for_without_being_kept(model, machine, gpu_s, name):
    machine.taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    assert machine.faster(model, GPU) == name
    assert machine.built == [(8, "cuda:0")]


def test_without_a_gpu_nobody_is_timed(model, machine):
    # Whoever is timed here has no time on this machine, and fails.
    assert machine.faster(model, CPU) == "mujoco"
    assert not machine.built


def test_a_scene_that_warp_cannot_simulate_is_mujocos_unless_warp_was_asked_for(model, machine, caplog):
    machine.error = EnvironmentBuildError("MuJoCo-Warp cannot simulate this scene: no such sensor; use 'mujoco'")
    machine.taken_s[MujocoBackend] = 1.0
    with caplog.at_level(logging.INFO):
        assert machine.faster(model, GPU) == "mujoco"
    assert "backend mujoco: MuJoCo-Warp cannot simulate this scene: no such sensor" in caplog.text
    assert isinstance(machine.made(model, "auto", GPU), MujocoBackend)
    with pytest.raises(EnvironmentBuildError):
        machine.made(model, "warp", GPU)


class Prepares:
    """Worlds whose first steps take longer than all others, on a clock of their own.

    Args:
        takes_s: How long each step takes, the last one standing for all others [s].
    """

    num_envs, device, qpos = 1, CPU, torch.zeros(1, 1)

    def __init__(self, *takes_s: float) -> None:
        self._takes_s = takes_s
        self._num_steps = 0
        self.now_s = 0.0

    def step(self, env_ids: torch.Tensor, num_substeps: int) -> None:
        del env_ids, num_substeps
        self.now_s += self._takes_s[min(self._num_steps, len(self._takes_s) - 1)]
        self._num_steps += 1

    def reset(self, env_ids: torch.Tensor, starts: Any) -> None:
        del env_ids, starts


def test_neither_the_step_that_compiles_nor_the_one_that_captures_counts_as_physics():
    worlds: Any = Prepares(30.0, 4.0, 0.5)
    assert physics_step_s(worlds, lambda: worlds.now_s) == 0.5 / 20


def test_worlds_that_were_measured_are_as_new_ones(model):
    measured, new = MujocoBackend(model, num_envs=2), MujocoBackend(model, num_envs=2)
    assert physics_step_s(measured) > 0
    new.reset(torch.arange(2), [StartState()] * 2)
    for name, value in new.snapshot().items():
        assert torch.equal(measured.snapshot()[name], value), name
