"""`WarpBackend` on a GPU as far as torch can tell: Warp works on the CPU, and its views say they are on the GPU."""

import numpy as np
import pytest
import torch

from isaaclab_arena.sim.backend import StartState, painted, resized
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend
from tests.pretend_backend import simulate_with_warp
from tests.pretend_gpu import GPU, PretendGpu
from tests.sim.arm_and_cube import everyone, only, start_of

NUM_ENVS = 3
SUBSTEPS = 5


@pytest.fixture(autouse=True)
def _warp_on_the_gpu(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_with_warp(monkeypatch)


def worlds(model, **options) -> WarpBackend:
    backend = WarpBackend(model, num_envs=NUM_ENVS, device=GPU, **options)
    backend.reset(env_ids(*range(NUM_ENVS)), [start_of(env_id) for env_id in range(NUM_ENVS)])
    return backend


def env_ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=GPU)


def test_worlds_begin_move_rest_and_break_down(model):
    backend = worlds(model, deterministic=True)
    assert not backend.reproducible
    before = backend.qpos.cpu()
    backend.ctrl[:, 0] = 0.1
    backend.step(only(backend, 0, 2), SUBSTEPS)
    assert (backend.qpos.cpu() != before).any(dim=1).tolist() == [True, False, True]
    backend.reset(env_ids(1), [StartState()])
    assert backend.jacobian("robot/hand", "robot/tcp").device == GPU
    backend.qvel[1] = torch.nan
    backend.step(everyone(backend), SUBSTEPS)
    assert backend.diverged.tolist() == [False, True, False]


def test_states_are_read_with_one_wait_and_taken_up_again(gpu, model):
    backend = worlds(model)
    backend.step(everyone(backend), SUBSTEPS)
    kept, alone = backend.snapshot(), [backend.integration_states([env_id])[0] for env_id in (2, 1)]
    gpu.waits.clear()
    together = backend.integration_states([2, 1])
    assert len(gpu.waits) == 1
    np.testing.assert_array_equal(together, alone)
    backend.visible_world(1)
    assert len(gpu.waits) == 2
    expected = backend.qpos.cpu()
    backend.step(everyone(backend), SUBSTEPS)
    backend.set_integration_state(1, together[1])
    np.testing.assert_allclose(backend.qpos[1].cpu(), expected[1], atol=1e-6)
    backend.restore_snapshot({name: tensor.cpu() for name, tensor in kept.items()})
    assert backend.qpos.tolist() == expected.tolist()


def test_room_grows_and_worlds_vary_and_show_it(model):
    backend = worlds(model, sizes=BufferSizes(contacts=1, constraints=2))
    touching = StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})
    changes = [painted(model, "object/body", (1.0, 0.0, 0.0)), resized(model, "object/body", mass=0.2, scale=0.9), []]
    backend.vary(env_ids(0, 1, 2), changes)
    backend.reset(env_ids(0, 1), [touching, touching])
    backend.step(everyone(backend), SUBSTEPS)
    assert backend.sizes.contacts > 1
    assert len(np.unique(backend.model_field("geom_rgba"), axis=0)) == 2
    assert len(backend.visible_world(0)[1].qpos) == model.nq
