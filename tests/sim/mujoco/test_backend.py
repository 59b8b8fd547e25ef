import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import rotate
from isaaclab_arena.sim.scene import compose_scene
from tests.sim.arm_and_cube import JOINTS, PARTS, everyone, only, start_of


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", PARTS)


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


@pytest.mark.parametrize(("num_envs", "num_threads"), [(3, 2), (7, 1), (16, 2)])
def test_neither_threads_nor_neighbours_change_a_bit(model, num_envs, num_threads):
    alone, batched = started(model, 3), started(model, num_envs, num_threads)
    drive(alone)
    drive(batched)
    assert torch.equal(batched.qpos[:3], alone.qpos)
    assert torch.equal(batched.xquat[:3], alone.xquat)


def test_env_slots_that_are_not_stepped_stay_as_they_are(model):
    backend = started(model, 3)
    before = [tensor.clone() for tensor in (backend.qpos, backend.xpos, backend.sensordata)]
    backend.step(only(backend, 1), 20)
    assert not torch.equal(backend.qpos[1], before[0][1])
    for now, then in zip((backend.qpos, backend.xpos, backend.sensordata), before, strict=True):
        assert torch.equal(now[[0, 2]], then[[0, 2]])


def test_a_reset_touches_only_its_env_slots_and_forgets_everything_of_them(model):
    backend = started(model, 2)
    drive(backend)
    other = backend.integration_states([1])[0]
    backend.reset(torch.tensor([0]), [start_of(0)])
    assert np.array_equal(backend.integration_states([1])[0], other)
    assert np.array_equal(backend.integration_states([0])[0], started(model, 1).integration_states([0])[0])


def test_derived_quantities_are_current_after_a_reset(model):
    backend = started(model, 2)
    assert backend.body_position("target/body")[1].tolist() == [0.1, 0.0, 0.5]
    assert backend.body_position("object/body")[1].tolist() == pytest.approx([0.42, 0.0, 0.03])


@pytest.mark.parametrize(("field", "value"), [("qpos", np.nan), ("qvel", 1e300), ("ctrl", np.nan)])
def test_an_env_slot_that_breaks_down_is_reported_and_disturbs_no_other(model, field, value):
    alone, backend = started(model, 3), started(model, 3)
    getattr(backend, field)[1, 0] = value
    for _ in range(5):
        backend.step(everyone(backend), 5)
        alone.step(everyone(alone), 5)
    assert backend.diverged.tolist() == [False, True, False]
    assert torch.equal(backend.qpos[[0, 2]], alone.qpos[[0, 2]])


def test_a_breakdown_leaves_no_log_file_behind(model, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    backend = started(model, 1)
    backend.qpos[0, 0] = np.nan
    backend.step(everyone(backend), 1)
    assert backend.diverged.tolist() == [True]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_reset_mends_an_env_slot_that_broke_down(model):
    backend = started(model, 2)
    backend.qpos[1, 0] = np.nan
    backend.step(everyone(backend), 5)
    backend.reset(torch.tensor([1]), [start_of(1)])
    backend.step(everyone(backend), 5)
    fresh = started(model, 2)
    fresh.step(everyone(fresh), 10)
    assert backend.diverged.tolist() == [False, False]
    backend.step(only(backend, 1), 5)
    assert torch.equal(backend.qpos[1], fresh.qpos[1])


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


def test_any_field_of_the_data_can_be_watched(model):
    backend = started(model, 2)
    bias = backend.live_field("qfrc_bias")
    backend.step(everyone(backend), 5)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = backend.qpos[1].numpy(), backend.qvel[1].numpy()
    mujoco.mj_forward(model, data)
    assert bias[1].tolist() == data.qfrc_bias.tolist()
