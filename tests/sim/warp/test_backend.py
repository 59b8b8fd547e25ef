"""MuJoCo-Warp on the CPU, held to MuJoCo. The kernels are the ones that a GPU runs, compiled for the CPU."""

import mujoco_warp
import numpy as np
import pytest
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import Backend, StartState, changed, painted, resized, slippery
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend
from tests.sim.arm_and_cube import assert_alike, begin, drive, everything

CPU = torch.device("cpu")
NARROW = BufferSizes(contacts=1, constraints=2)
SUBSTEPS = 5
TCP = "robot/tcp"

# Single precision leaves 1e-7 of a number; contacts multiply it, and let it die away again when things come to rest.
POSITION_TOLERANCE, VELOCITY_TOLERANCE = 1e-4, 5e-3


def on_warp(model, num_envs: int, **options) -> WarpBackend:
    return begin(WarpBackend(model, num_envs=num_envs, device=CPU, **options))


@pytest.fixture(scope="module")
def shared(model) -> WarpBackend:
    return on_warp(model, 3)


@pytest.fixture
def backend(shared) -> WarpBackend:
    begin(shared)
    return shared


def assert_close(warp: Backend, reference: Backend) -> None:
    for name in ("qpos", "xpos", "xquat", "site_xpos"):
        np.testing.assert_allclose(getattr(warp, name), getattr(reference, name), atol=POSITION_TOLERANCE, err_msg=name)
    np.testing.assert_allclose(warp.qvel, reference.qvel, atol=VELOCITY_TOLERANCE)


@pytest.mark.parametrize("num_steps", [0, 50])
def test_it_agrees_with_mujoco_which_can_take_its_states_up(model, backend, num_steps):
    reference = begin(MujocoBackend(model, num_envs=3))
    for each in (backend, reference):
        drive(each, num_steps)
    assert_close(backend, reference)
    found, expected = (each.jacobian("robot/hand", TCP) for each in (backend, reference))
    np.testing.assert_allclose(found, expected, atol=POSITION_TOLERANCE)
    assert (backend.names, backend.model_digest()) == (reference.names, reference.model_digest())
    assert backend.engine().startswith("mujoco_warp 4")
    shown_model, data = backend.visible_world(2)
    assert shown_model is model
    np.testing.assert_allclose(data.xpos, backend.xpos[2], atol=POSITION_TOLERANCE)
    for env_id, state in enumerate(backend.integration_states([0, 1, 2])):
        reference.set_integration_state(env_id, state)
    for each in (backend, reference):
        drive(each)
    assert_close(backend, reference)


def test_worlds_that_are_closed_give_back_their_graphs_and_can_go_on(model, backend):
    other = on_warp(model, 3)
    for each in (backend, other):
        drive(each)
    other.close()
    for each in (backend, other):
        drive(each)
    assert torch.equal(other.qpos, backend.qpos)


def test_replayed_graphs_have_the_bits_of_launches(model):
    replaying, launching = on_warp(model, 3), on_warp(model, 3)
    for round_number in range(2):
        changes = [resized(model, "object/body", mass=0.1 * (round_number + slot + 1), scale=1.1) for slot in range(3)]
        for each in (replaying, launching):
            launching.launcher.forget_graphs()
            each.vary(torch.arange(3), changes)
            begin(each)
        for _ in range(3):
            launching.launcher.forget_graphs()
            for each in (replaying, launching):
                drive(each, 1)
            assert torch.equal(replaying.jacobian("object/body", TCP), launching.jacobian("object/body", TCP))
    assert_alike(everything(replaying), everything(launching))


def test_where_contacts_do_not_fit_the_step_or_the_reset_is_made_again_with_more_room(model, backend):
    narrow, reset = (on_warp(model, 3, sizes=NARROW) for _ in range(2))
    views = narrow.qpos, narrow.sensordata
    for each in (backend, narrow):
        drive(each)
    assert (narrow.sizes.contacts > 1, narrow.sizes.constraints > 2) == (True, True)
    assert torch.equal(narrow.qpos, backend.qpos)
    assert torch.equal(views[0], narrow.qpos), "a view goes on"
    touching = [StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})] * 3
    for each in (reset, backend):
        each.reset(torch.arange(3), touching)
    assert reset.sizes.contacts > 1
    assert torch.equal(reset.sensordata, backend.sensordata)


class HardlyLarger(WarpBackend):
    """Makes no more room than once for a step."""

    most_growths = 1


def test_contacts_that_cannot_fit_are_an_error_and_never_silent(model):
    with pytest.raises(EnvironmentBuildError, match=r"contacts .*; use the backend"):
        drive(begin(HardlyLarger(model, num_envs=3, device=CPU, sizes=NARROW)))


def test_worlds_can_have_values_of_their_own(model):
    changes = [
        [
            *resized(model, "object/body", mass=mass, scale=scale),
            *slippery(model, "object/body", friction),
            *painted(model, "object/body", (friction, 0.0, 0.0)),
            changed("body_pos", 1, model.body_pos[1] + (0.0, 0.0, scale - 1.0)),
        ]
        for mass, scale, friction in ((0.1, 1.0, 1.0), (0.5, 1.2, 0.3), (0.2, 0.8, 0.6))
    ]
    reference, warp = MujocoBackend(model, num_envs=3), on_warp(model, 3)
    for each in (warp, reference):
        each.vary(torch.arange(3), changes)
        begin(each)
        drive(each, 10)
    assert_close(warp, reference)
    for name in ("body_mass", "geom_size", "geom_friction", "geom_rgba", "geom_priority", "body_subtreemass"):
        np.testing.assert_allclose(warp.model_field(name), reference.model_field(name), rtol=1e-6, err_msg=name)
    warp.vary(torch.tensor([1]), [[]])
    np.testing.assert_allclose(warp.model_field("body_mass")[1], model.body_mass, rtol=1e-6)


def test_worlds_can_have_gravity_of_their_own(model):
    changes = [[], [changed("opt.gravity", 2, -1.6)], [changed("opt.gravity", 0, 0.5)]]
    for each in (on_warp(model, 3), MujocoBackend(model, num_envs=3)):
        places = []
        for own in ([[], [], []], changes):
            each.vary(torch.arange(3), own)
            begin(each)
            # It is let go 0.3 m above its start, and falls for 0.1 s.
            each.qpos[:, each.names.joint_qpos["object/free"].start + 2] += 0.3
            drive(each, 10)
            places.append(each.body_position("object/body").clone())
        expected_m = np.array([[0, 0, 0], [0, 0, 0.5 * 8.21 * 0.1**2], [0.5 * 0.5 * 0.1**2, 0, 0]])
        assert (places[1] - places[0]).numpy() == pytest.approx(expected_m, abs=3e-3)
        assert np.allclose(each.model_field("opt.gravity"), [[0, 0, -9.81], [0, 0, -1.6], [0.5, 0, -9.81]])
        assert each.visible_world(1)[0].opt.gravity.tolist() == pytest.approx([0.0, 0.0, -1.6])
        each.vary(torch.tensor([1]), [[]])
        assert each.model_field("opt.gravity")[1].tolist() == pytest.approx([0.0, 0.0, -9.81])


@pytest.mark.parametrize("name", ["opt.iterations", "geom_contype"])
def test_what_a_world_of_warp_cannot_have_of_its_own_is_refused_with_a_way_out(backend, name):
    with pytest.raises(EnvironmentBuildError, match=f"'{name}'.*'mujoco'"):
        backend.vary(torch.arange(3), [[changed(name, 0, 1e-3)], [], []])


def test_what_warp_cannot_simulate_is_an_error_with_a_way_out(model, monkeypatch):
    changes = [slippery(model, "object/body", 0.3), resized(model, "object/body", mass=1.0, scale=1)]
    with pytest.raises(EnvironmentBuildError, match="'geom_priority'"):
        on_warp(model, 2).vary(torch.arange(2), changes)

    def refuse(*_) -> None:
        raise NotImplementedError("no such integrator")

    monkeypatch.setattr(mujoco_warp, "put_model", refuse)
    with pytest.raises(EnvironmentBuildError, match=r"no such integrator; .*'mujoco'"):
        on_warp(model, 1)
