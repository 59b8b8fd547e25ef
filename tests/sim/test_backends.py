"""Engines of physics, and threads on which they step."""

import logging
import os
import sys
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.evaluation.process import callbacks, set_callbacks
from isaaclab_arena.sim.backend import Backend, StartState, changed
from isaaclab_arena.sim.backends import BackendChoice, MujocoBackend, faster_backend, make_backend, physics_step_s
from isaaclab_arena.sim.math import rotate
from isaaclab_arena.sim.scene import compose_scene
from tests.sim.arm_and_cube import JOINTS, PARTS, everyone, only, start_of

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


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


def test_what_is_asked_for_is_built_and_without_a_gpu_nothing_is_measured(model, machine):
    # What is timed here has no time on this machine, and fails.
    assert isinstance(machine.made(model, "auto", CPU), MujocoBackend)
    assert machine.faster(model, CPU) == "mujoco"
    assert isinstance(machine.made(model, "mujoco", GPU), MujocoBackend)
    assert not machine.built
    assert isinstance(machine.made(model, "warp", GPU), FakeGpu)
    assert isinstance(machine.made(model, "warp", CPU), FakeGpu)


def test_few_worlds_are_stepped_before_a_gpu_is_told_to(model, machine, caplog):
    machine.taken_s[MujocoBackend] = 1e-4
    with caplog.at_level(logging.INFO):
        assert isinstance(machine.made(model, "auto", GPU), MujocoBackend)
    assert not machine.built
    assert "4 worlds takes 0.1 ms" in caplog.text


@pytest.mark.parametrize(("gpu_s", "kind", "name"), [(2e-3, FakeGpu, "warp"), (9e-2, MujocoBackend, "mujoco")])
def test_many_worlds_go_where_they_are_stepped_faster(model, machine, caplog, gpu_s, kind, name):
    machine.taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    with caplog.at_level(logging.INFO):
        assert isinstance(machine.made(model, "auto", GPU, num_envs=512), kind)
    assert (512, "cuda:0") in machine.built
    assert all(
        part in caplog.text for part in (f"backend {name}", "20 ms on the CPU", f"{1e3 * gpu_s:.2g} ms on cuda:0")
    )


@pytest.mark.parametrize(("gpu_s", "name"), [(1.9e-2, "warp"), (2e-2, "mujoco"), (2.1e-2, "mujoco")])
def test_the_faster_backend_can_be_asked_for_without_being_kept(model, machine, gpu_s, name):
    machine.taken_s |= {MujocoBackend: 2e-2, FakeGpu: gpu_s}
    assert machine.faster(model, GPU) == name
    assert machine.built == [(8, "cuda:0")]


def test_a_scene_that_warp_cannot_simulate_is_mujocos_unless_warp_was_asked_for(model, machine, caplog):
    machine.error = EnvironmentBuildError("no such sensor")
    machine.taken_s[MujocoBackend] = 1.0
    with caplog.at_level(logging.INFO):
        assert machine.faster(model, GPU) == "mujoco"
    assert "no such sensor" in caplog.text
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


def test_ranks_share_the_cores_that_the_process_may_use_and_each_has_a_thread():
    allowed = os.sched_getaffinity(0)
    assert default_num_threads() == len(allowed)
    assert default_num_threads(2) == max(1, len(allowed) // 2)
    assert default_num_threads(1000) == 1
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert default_num_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("half_imported", [None, ModuleType("mujoco")], ids=["not_imported", "being_imported"])
def test_there_are_no_callbacks_before_mujoco_is_imported(monkeypatch, half_imported):
    monkeypatch.setitem(sys.modules, "mujoco", half_imported)
    found = callbacks()
    assert found == (None,) * 8
    set_callbacks(found)


def started(model, num_envs: int, num_threads: int = 1) -> MujocoBackend:
    backend = MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
    backend.reset(torch.arange(num_envs), [start_of(env_id) for env_id in range(num_envs)])
    return backend


def drive(backend: MujocoBackend, num_steps: int = 10) -> None:
    env_ids = torch.arange(backend.num_envs)
    for step in range(num_steps):
        backend.ctrl[:, 0] = 0.1 * np.sin(step) + 0.01 * env_ids.double()
        backend.step(everyone(backend), 5)


def test_it_gives_the_bits_of_a_loop_over_mjdata(model):
    backend = started(model, 3)
    drive(backend)
    for env_id in range(3):
        data = mujoco.MjData(model)
        start = start_of(env_id)
        for joint, position in start.joint_positions.items():
            data.joint(joint).qpos = position
        for actuator, control in start.controls.items():
            data.actuator(actuator).ctrl = control
        for step in range(10):
            data.ctrl[0] = 0.1 * np.sin(step) + 0.01 * env_id
            mujoco.mj_step(model, data, 5)
        assert np.array_equal(backend.qpos[env_id].numpy(), data.qpos)
        assert np.array_equal(backend.qvel[env_id].numpy(), data.qvel)
        mujoco.mj_step1(model, data)
        assert np.array_equal(backend.site_xpos[env_id].numpy(), data.site_xpos)


def test_neither_threads_nor_neighbours_change_a_bit(model):
    alone, *batched = (started(model, *how) for how in ((3, 1), (3, 2), (7, 1), (16, 2)))
    for each in (alone, *batched):
        drive(each)
        assert torch.equal(each.qpos[:3], alone.qpos)
        assert torch.equal(each.xquat[:3], alone.xquat)


def test_env_slots_that_are_not_stepped_stay_as_they_are(model):
    backend = started(model, 3)
    before = [tensor.clone() for tensor in (backend.qpos, backend.xpos, backend.sensordata)]
    backend.step(only(backend, 1), 20)
    assert not torch.equal(backend.qpos[1], before[0][1])
    for now, then in zip((backend.qpos, backend.xpos, backend.sensordata), before, strict=True):
        assert torch.equal(now[[0, 2]], then[[0, 2]])


def test_a_reset_touches_only_its_env_slots_forgets_everything_of_them_and_makes_current_what_is_derived(model):
    backend = started(model, 2)
    assert backend.body_position("target/body")[1].tolist() == [0.1, 0.0, 0.5]
    assert backend.body_position("object/body")[1].tolist() == pytest.approx([0.42, 0.0, 0.03])
    drive(backend)
    other = backend.integration_state(1)
    backend.reset(torch.tensor([0]), [start_of(0)])
    assert np.array_equal(backend.integration_state(1), other)
    assert np.array_equal(backend.integration_states([0])[0], started(model, 1).integration_states([0])[0])


@pytest.mark.parametrize(("field", "value"), [("qpos", np.nan), ("qvel", 1e300), ("ctrl", np.nan)])
def test_an_env_slot_that_breaks_down_is_reported_disturbs_no_other_and_is_mended_by_a_reset(model, field, value):
    alone, backend = started(model, 3), started(model, 3)
    getattr(backend, field)[1, 0] = value
    for each in (backend, alone):
        each.step(everyone(each), 5)
    assert backend.diverged.tolist() == [False, True, False]
    for each in (backend, alone):
        each.reset(torch.tensor([1]), [start_of(1)])
        each.step(everyone(each), 5)
    assert not backend.diverged.any()
    assert torch.equal(backend.qpos, alone.qpos)


def test_a_breakdown_leaves_no_log_file_behind(model, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    backend = started(model, 1)
    backend.qpos[0, 0] = np.nan
    backend.step(everyone(backend), 1)
    assert backend.diverged.tolist() == [True]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_stored_state_continues_with_the_same_bits(model):
    backend = started(model, 2)
    drive(backend)
    stored = backend.integration_states([0])[0]
    backend.step(only(backend, 0), 40)
    expected = backend.integration_states([0])[0]
    backend.set_integration_state(1, stored)
    assert torch.equal(backend.qpos[1], torch.from_numpy(stored)[1 : 1 + model.nq])
    backend.step(only(backend, 1), 40)
    assert np.array_equal(backend.integration_states([1])[0], expected)


def test_the_jacobian_predicts_how_the_site_moves(model):
    backend = started(model, 2)
    before = backend.site_position("robot/tcp").clone()
    jacobian = backend.jacobian("robot/hand", "robot/tcp")
    _, dofs = backend.joint_indices(JOINTS)
    small = 1e-6
    backend.qpos[:, backend.names.joint_qpos["robot/panda_joint2"]] += small
    backend._forward(np.arange(2))
    moved = (backend.site_position("robot/tcp") - before) / small
    torch.testing.assert_close(moved, jacobian[:, :3, dofs[1]], atol=1e-5, rtol=0)


def test_the_velocity_of_a_free_body_is_in_the_world_frame(model):
    backend = started(model, 1)
    joint = backend.names.joint_qpos["object/free"]
    backend.qpos[0, joint] = torch.tensor([0.5, 0, 0.5, 0.5**0.5, 0.5**0.5, 0, 0], dtype=torch.float64)
    backend.qvel[0, backend.names.joint_dof["object/free"]] = torch.tensor([1.0, 0, 0, 0, 0, 3.0]).double()
    velocity = backend.free_velocity("object/free")[0]
    spin = rotate(backend.qpos[0, joint][3:], torch.tensor([0, 0, 3.0]).double())
    torch.testing.assert_close(velocity, torch.cat((torch.tensor([1.0, 0, 0]).double(), spin)))


def test_the_digest_changes_with_the_physics(model):
    heavier = compose_scene("scenes/table.xml", PARTS)
    heavier.body_mass[heavier.body("object/body").id] *= 2
    digests = {MujocoBackend(each, num_envs=1).model_digest() for each in (model, heavier)}
    assert len(digests) == 2
    assert MujocoBackend(model, num_envs=2).model_digest() in digests


def test_a_world_starts_with_the_velocities_it_is_given(model):
    backend = MujocoBackend(model, num_envs=2)
    moving = StartState(joint_velocities={JOINTS[2]: (0.5,), "object/free": (1.0, 2.0, 3.0, 0.1, 0.2, 0.3)})
    backend.reset(torch.arange(2), [StartState(), moving])
    assert backend.joint_velocity(JOINTS[2])[:, 0].tolist() == [0.0, 0.5]
    assert backend.joint_velocity("object/free").tolist() == [[0.0] * 6, [1.0, 2.0, 3.0, 0.1, 0.2, 0.3]]


@pytest.mark.parametrize("name", ["opt.nothing", "mesh_vert", "nothing.at_all"])
def test_what_a_world_cannot_have_of_its_own_is_refused_with_a_way_out(model, name):
    message = rf"its own '{name}': {name} is .*; choose one of mujoco\.batch\.MODEL_FIELDS"
    with pytest.raises(EnvironmentBuildError, match=message):
        started(model, 1).vary(torch.arange(1), [[changed(name, 0, 1.0)]])


def test_a_world_cannot_have_a_time_step_of_its_own(model):
    backend = started(model, 2)
    with pytest.raises(EnvironmentBuildError, match=r"its own 'opt\.timestep'.*; set it in the scene's file"):
        backend.vary(torch.arange(2), [[], [changed("opt.timestep", 0, 1e-3)]])
    assert backend.model_field("opt.timestep").tolist() == [backend.physics_dt] * 2


def test_any_field_of_the_data_can_be_watched(model):
    backend = started(model, 2)
    bias = backend.live_field("qfrc_bias")
    backend.step(everyone(backend), 5)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = backend.qpos[1].numpy(), backend.qvel[1].numpy()
    mujoco.mj_forward(model, data)
    assert bias[1].tolist() == data.qfrc_bias.tolist()
