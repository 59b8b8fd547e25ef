"""Engines of physics, and threads on which they step."""

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
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
from isaaclab_arena.sim.scene import compose_scene
from isaaclab_arena.sim.warp_backend import WarpBackend
from tests.sim.arm_and_cube import JOINTS, PARTS, assert_alike, begin, drive, everyone, everything, only, start_of

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


class FakeGpu:
    """Stands for worlds on a GPU."""


class FakeMachine:
    """Takes as long for a step as a test says, and notes what was built on its GPU."""

    def __init__(self, cpu_s: float = 0.0, gpu_s: float = 0.0, error: Exception | None = None) -> None:
        self.built: list[tuple[int, str]] = []
        self._taken_s = {MujocoBackend: cpu_s, FakeGpu: gpu_s}
        self._error = error

    def worlds(self, model, *, num_envs: int, device: torch.device) -> Any:
        if self._error is not None:
            raise self._error
        self.built.append((num_envs, str(device)))
        return FakeGpu()

    def step_s(self, backend: Backend) -> float:
        assert self._taken_s[type(backend)], "this has no time here"
        return self._taken_s[type(backend)]

    def made(self, model, choice: BackendChoice, device: torch.device, num_envs: int = 4) -> Backend:
        options = {"num_envs": num_envs, "device": device, "num_threads": 1}
        return make_backend(model, choice=choice, on_gpu=self.worlds, step_s=self.step_s, **options)

    def faster(self, model, device: torch.device) -> str:
        options = {"num_envs": 8, "device": device, "num_threads": 1}
        return faster_backend(model, on_gpu=self.worlds, step_s=self.step_s, **options)


def test_what_is_asked_for_is_built_and_without_a_gpu_nothing_is_measured(model, caplog):
    machine = FakeMachine()
    assert isinstance(machine.made(model, "auto", CPU), MujocoBackend)
    assert machine.faster(model, CPU) == "mujoco"
    assert isinstance(machine.made(model, "mujoco", GPU), MujocoBackend)
    quick = FakeMachine(cpu_s=1e-4)
    with caplog.at_level(logging.INFO):
        assert isinstance(quick.made(model, "auto", GPU), MujocoBackend), "few worlds are stepped sooner than told"
    assert "0.1 ms" in caplog.text
    assert machine.built == quick.built == []
    assert isinstance(machine.made(model, "warp", GPU), FakeGpu)
    assert isinstance(machine.made(model, "warp", CPU), FakeGpu)


@pytest.mark.parametrize(("gpu_s", "name"), [(1.9e-2, "warp"), (2e-2, "mujoco"), (9e-2, "mujoco")])
def test_many_worlds_go_where_they_are_stepped_faster(model, caplog, gpu_s, name):
    machine = FakeMachine(cpu_s=2e-2, gpu_s=gpu_s)
    with caplog.at_level(logging.INFO):
        kept = machine.made(model, "auto", GPU, num_envs=512)
    assert isinstance(kept, FakeGpu if name == "warp" else MujocoBackend)
    assert machine.built == [(512, "cuda:0")]
    assert all(part in caplog.text for part in (f"backend {name}", "20 ms on the CPU", f"{1e3 * gpu_s:.2g} ms on cuda"))
    assert machine.faster(model, GPU) == name
    assert machine.built[1:] == [(8, "cuda:0")]


def test_a_scene_that_warp_cannot_simulate_is_mujocos_unless_warp_was_asked_for(model, caplog):
    machine = FakeMachine(cpu_s=1.0, error=EnvironmentBuildError("no such sensor"))
    with caplog.at_level(logging.INFO):
        assert machine.faster(model, GPU) == "mujoco"
    assert "no such sensor" in caplog.text
    assert isinstance(machine.made(model, "auto", GPU), MujocoBackend)
    with pytest.raises(EnvironmentBuildError):
        machine.made(model, "warp", GPU)


class Prepares:
    """Worlds whose first steps take longer than all others [s], on a clock of their own."""

    num_envs, device, qpos = 1, CPU, torch.zeros(1, 1)

    def __init__(self, *takes_s: float) -> None:
        self._takes_s = takes_s
        self._num_steps = 0
        self.now_s = 0.0

    def step(self, env_ids: torch.Tensor, num_substeps: int) -> None:
        self.now_s += self._takes_s[min(self._num_steps, len(self._takes_s) - 1)]
        self._num_steps += 1

    def reset(self, env_ids: torch.Tensor, starts: Any) -> None: ...


def test_neither_the_step_that_compiles_nor_the_one_that_captures_counts_as_physics():
    worlds: Any = Prepares(30.0, 4.0, 0.5)
    assert physics_step_s(worlds, lambda: worlds.now_s) == 0.5 / 20


def test_ranks_share_the_cores_that_the_process_may_use_and_each_has_a_thread(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert [default_num_threads(*ranks) for ranks in ((), (2,), (1000,))] == [6, 3, 1]


@pytest.mark.parametrize("half_imported", [None, ModuleType("mujoco")], ids=["not_imported", "being_imported"])
def test_there_are_no_callbacks_before_mujoco_is_imported(monkeypatch, half_imported):
    monkeypatch.setitem(sys.modules, "mujoco", half_imported)
    assert callbacks() == (None,) * 8
    set_callbacks(callbacks())


def started(model, num_envs: int, num_threads: int = 1) -> MujocoBackend:
    return begin(MujocoBackend(model, num_envs=num_envs, num_threads=num_threads))


def test_it_gives_the_bits_of_a_loop_over_mjdata(model):
    backend = started(model, 3)
    drive(backend, 10)
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


# What both backends promise of their worlds.


MADE: dict[str, Callable[..., Backend]] = {
    "mujoco": MujocoBackend,
    "mujoco on threads": partial(MujocoBackend, num_threads=2),
    "warp": partial(WarpBackend, device=CPU),
}


@pytest.fixture(params=MADE)
def begun(request, model) -> Callable[[int], Any]:
    """What starts so many worlds."""
    return lambda num_envs: begin(MADE[request.param](model, num_envs=num_envs))


def test_neither_neighbours_nor_threads_change_a_bit(model, begun):
    few, many = begun(2), begun(5)
    alone = started(model, 2) if isinstance(few, MujocoBackend) else few
    for each in {id(each): each for each in (few, many, alone)}.values():
        drive(each)
    for each in (few, many):
        assert torch.equal(each.qpos[:2], alone.qpos)
        assert torch.equal(each.xquat[:2], alone.xquat)


def test_env_slots_that_are_not_stepped_or_reset_stay_as_they_are_and_a_reset_forgets_everything(begun):
    backend = begun(3)
    assert backend.body_position("target/body")[1].tolist() == pytest.approx([0.1, 0.0, 0.5])
    assert backend.body_position("object/body")[1].tolist() == pytest.approx([0.42, 0.0, 0.03])
    fresh = everything(begun(3))
    drive(backend, 3)
    before, place = everything(backend), backend.qpos[1].clone()
    backend.step(only(backend, 1), 15)
    moved = everything(backend)
    assert not torch.equal(backend.qpos[1], place)
    backend.reset(torch.tensor([1]), [start_of(1)])
    after = everything(backend)
    for name in before:
        for each in (moved, after):
            assert torch.equal(before[name][[0, 2]], each[name][[0, 2]]), name
        assert torch.equal(fresh[name][1], after[name][1]), name


@pytest.mark.parametrize(("field", "value"), [("qvel", np.nan), ("qvel", 1e12), ("qpos", np.nan)])
def test_an_env_slot_that_breaks_down_is_reported_disturbs_no_other_and_is_mended_by_a_reset(
    begun, field, value, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    alone, backend = begun(3), begun(3)
    getattr(backend, field)[1, 0] = value
    for each in (backend, alone):
        each.step(everyone(each), 5)
    assert backend.diverged.tolist() == [False, True, False]
    assert torch.isfinite(backend.qpos).all()
    assert torch.equal(backend.qpos[[0, 2]], alone.qpos[[0, 2]])
    for each in (backend, alone):
        each.reset(torch.tensor([1]), [start_of(1)])
        each.step(everyone(each), 5)
    assert not backend.diverged.any()
    assert torch.equal(backend.qpos, alone.qpos)
    assert (list(tmp_path.iterdir()), *capfd.readouterr()) == ([], "", ""), "MuJoCo writes a log of it"


def test_a_control_that_is_no_number_is_a_breakdown(model):
    backend = started(model, 2)
    backend.ctrl[1, 0] = np.nan
    backend.step(everyone(backend), 5)
    assert backend.diverged.tolist() == [False, True]


def test_a_stored_state_or_a_snapshot_goes_on_with_the_same_bits(begun):
    backend = begun(3)
    drive(backend)
    stored, kept = backend.integration_states([1])[0], everything(backend)
    drive(backend)
    expected, place = everything(backend), backend.qpos[1].clone()
    drive(begin(backend))
    backend.set_integration_state(1, stored)
    drive(backend)
    assert torch.equal(backend.qpos[1], place)
    begin(backend).restore_snapshot(kept)
    drive(backend)
    assert_alike(everything(backend), expected)


@pytest.mark.parametrize("name", ["opt.nothing", "mesh_vert", "nothing.at_all", "opt.timestep"])
def test_what_a_world_cannot_have_of_its_own_is_refused_with_a_way_out(begun, name):
    backend = begun(2)
    with pytest.raises(EnvironmentBuildError, match=rf"its own '{name}'.*(MODEL_FIELDS|'mujoco'|scene's file)"):
        backend.vary(torch.arange(2), [[], [changed(name, 0, 1e-3)]])
    assert backend.model_field("opt.timestep").tolist() == pytest.approx([backend.physics_dt] * 2)


def test_the_digest_changes_with_the_physics(model):
    heavier = compose_scene("scenes/table.xml", PARTS)
    heavier.body_mass[heavier.body("object/body").id] *= 2
    digests = [MujocoBackend(each, num_envs=1).model_digest() for each in (model, heavier, model)]
    assert digests[0] == digests[2] != digests[1]


def test_any_field_of_the_data_can_be_watched(model):
    backend = started(model, 2)
    bias = backend.live_field("qfrc_bias")
    backend.step(everyone(backend), 5)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = backend.qpos[1].numpy(), backend.qvel[1].numpy()
    mujoco.mj_forward(model, data)
    assert bias[1].tolist() == data.qfrc_bias.tolist()


def test_the_jacobian_predicts_how_the_site_moves(model):
    backend = started(model, 2)
    before = backend.site_position("robot/tcp").clone()
    jacobian = backend.jacobian("robot/hand", "robot/tcp")
    _, dofs = backend.joint_indices(JOINTS)
    backend.qpos[:, backend.names.joint_qpos["robot/panda_joint2"]] += 1e-6
    backend._forward(np.arange(2))
    moved = (backend.site_position("robot/tcp") - before) / 1e-6
    torch.testing.assert_close(moved, jacobian[:, :3, dofs[1]], atol=1e-5, rtol=0)


def test_the_velocity_of_a_free_body_is_in_the_world_frame(model):
    backend = started(model, 1)
    # It is turned by a quarter about the vertical axis, and spins about an axis of its own.
    turned = (0.5, 0.0, 0.5, 0.5**0.5, 0.0, 0.0, 0.5**0.5)
    spinning = {"object/free": (1.0, 0.0, 0.0, 3.0, 0.0, 0.0)}
    start = StartState(joint_positions={"object/free": turned}, joint_velocities=spinning)
    backend.reset(torch.arange(1), [start])
    assert backend.joint_velocity("object/free")[0].tolist() == list(spinning["object/free"])
    assert backend.free_velocity("object/free")[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0, 3.0, 0.0])
