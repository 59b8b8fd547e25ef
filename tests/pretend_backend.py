"""Physics that says it lives on a pretended GPU, as `WarpBackend` does on a real one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.sim.backend import Backend, ModelChange, StartState
from isaaclab_arena.sim.backends import MujocoBackend, make_backend
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS
from tests.pretend_gpu import GPU, GpuTensor


class PretendGpuBackend(Backend):
    """Worlds that MuJoCo simulates, and whose tensors are on the pretended GPU.

    Args:
        model: The compiled model.
        num_envs: Number of worlds.
        device: Where they say they live.
    """

    reproducible = True

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, device: torch.device) -> None:
        assert device == GPU
        self.worlds = worlds = MujocoBackend(model, num_envs=num_envs)
        self.model, self.num_envs, self.device = model, num_envs, device
        self.physics_dt, self.names = worlds.physics_dt, worlds.names
        self.qpos, self.qvel, self.ctrl = GpuTensor(worlds.qpos), GpuTensor(worlds.qvel), GpuTensor(worlds.ctrl)
        self.xpos, self.xquat = GpuTensor(worlds.xpos), GpuTensor(worlds.xquat)
        self.site_xpos, self.sensordata = GpuTensor(worlds.site_xpos), GpuTensor(worlds.sensordata)
        self.diverged = GpuTensor(worlds.diverged)

    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        self.worlds.reset(_held(env_ids), starts)

    def step(self, moved: torch.Tensor, num_substeps: int, *, may_fail: bool = False) -> torch.Tensor:
        self.worlds.step(_held(moved), num_substeps, may_fail=may_fail)
        return moved

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        self.worlds.vary(_held(env_ids), changes)

    def model_field(self, name: str) -> np.ndarray:
        return self.worlds.model_field(name)

    def jacobian(self, body: str, site: str) -> torch.Tensor:
        return GpuTensor(self.worlds.jacobian(body, site))

    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        return self.worlds.integration_states(env_ids)

    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        self.worlds.set_integration_state(env_id, state)

    def snapshot(self) -> Mapping[str, torch.Tensor]:
        return {name: GpuTensor(tensor) for name, tensor in self.worlds.snapshot().items()}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        self.worlds.restore_snapshot({name: tensor.cpu() for name, tensor in snapshot.items()})

    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        return self.worlds.visible_world(env_id)

    def model_digest(self) -> str:
        return self.worlds.model_digest()

    def engine(self) -> str:
        return f"{self.worlds.engine()} on {self.device}"


def there(name: str) -> str:
    """Name in `pretended_environments` of an environment on the pretended GPU."""
    return f"{name}_there"


@contextmanager
def pretended_environments() -> Iterator[None]:
    """Register environments whose backend ``warp`` is a `PretendGpuBackend`, for the life of a ``with`` block."""
    make = partial(make_backend, on_gpu=PretendGpuBackend)
    with ENVIRONMENTS.restored_afterwards():
        for name in (*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS):
            ENVIRONMENTS.register(there(name), replace(ENVIRONMENTS.get(name), make_backend=make))
        yield


def simulate_with_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `WarpBackend` live there, as far as torch can tell: Warp works on the CPU.

    What Warp gives to torch is then on the GPU, and what it takes has to be.
    """
    to_torch, from_torch, device_from_torch = warp.to_torch, warp.from_torch, warp.device_from_torch

    def from_gpu(tensor: torch.Tensor, **options: Any) -> warp.array:
        return from_torch(_held(tensor), **options)

    monkeypatch.setattr(warp, "to_torch", lambda array, **options: GpuTensor(to_torch(array, **options)))
    monkeypatch.setattr(warp, "from_torch", from_gpu)
    monkeypatch.setattr(warp, "device_from_torch", lambda _: device_from_torch(torch.device("cpu")))


def _held(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, GpuTensor), "worlds on the GPU are told by tensors on the GPU"
    return tensor.held
