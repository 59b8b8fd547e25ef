"""MuJoCo-Warp on the CPU, held to MuJoCo. The kernels are the ones that a GPU runs, compiled for the CPU."""

from typing import Any

import mujoco_warp
import numpy as np
import pytest
import torch
from mujoco_warp._src import collision_driver, constraint

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import Backend, ModelChange, StartState, changed, painted, resized, slippery
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend, probed_sizes
from tests.sim.arm_and_cube import everyone, only, start_of

CPU = torch.device("cpu")
SUBSTEPS = 5
TCP = "robot/tcp"

# Single precision leaves 1e-7 of a number; contacts multiply it, and let it die away again when things come to rest.
POSITION_TOLERANCE, VELOCITY_TOLERANCE = 1e-4, 5e-3


def begin(backend: Backend) -> Backend:
    backend.reset(torch.arange(backend.num_envs), [start_of(env_id) for env_id in range(backend.num_envs)])
    return backend


def on_warp(model, num_envs: int, **options) -> WarpBackend:
    backend = WarpBackend(model, num_envs=num_envs, device=CPU, **options)
    begin(backend)
    return backend


@pytest.fixture(scope="module")
def shared(model) -> WarpBackend:
    return on_warp(model, 3)


@pytest.fixture
def backend(shared) -> WarpBackend:
    begin(shared)
    return shared


def drive(backend: Backend, num_steps: int = 5, moved: torch.Tensor | None = None) -> None:
    moved = everyone(backend) if moved is None else moved
    for step in range(num_steps):
        backend.ctrl[:, 0] = (0.1 * np.sin(step) + 0.01 * torch.arange(backend.num_envs)).to(backend.ctrl.dtype)
        backend.step(moved, SUBSTEPS)


def assert_close(warp: Backend, reference: Backend) -> None:
    for name in ("qpos", "xpos", "xquat", "site_xpos"):
        np.testing.assert_allclose(getattr(warp, name), getattr(reference, name), atol=POSITION_TOLERANCE, err_msg=name)
    np.testing.assert_allclose(warp.qvel, reference.qvel, atol=VELOCITY_TOLERANCE)


def everything(backend: Backend) -> dict[str, torch.Tensor]:
    return dict(backend.snapshot())


@pytest.mark.parametrize("num_steps", [0, 1, 50])
def test_it_agrees_with_mujoco(model, backend, num_steps):
    reference = begin(MujocoBackend(model, num_envs=3))
    for each in (backend, reference):
        drive(each, num_steps)
    assert_close(backend, reference)


def test_it_names_the_same_things_at_the_same_places(model, backend):
    assert backend.names == MujocoBackend(model, num_envs=1).names
    assert backend.model_digest() == MujocoBackend(model, num_envs=1).model_digest()
    assert backend.engine().startswith("mujoco_warp 4")


def test_neighbours_do_not_change_a_bit(model, backend):
    few = on_warp(model, 2)
    for each in (backend, few):
        drive(each)
    assert torch.equal(backend.qpos[:2], few.qpos)
    assert torch.equal(backend.qvel[:2], few.qvel)


def test_env_slots_that_are_not_stepped_stay_as_they_are(backend):
    drive(backend, 3)
    before = everything(backend)
    drive(backend, 3, moved=only(backend, 1))
    after = everything(backend)
    for name in before.keys() - {"ctrl"}:
        assert torch.equal(before[name][[0, 2]], after[name][[0, 2]]), name
    assert not torch.equal(before["qpos"][1], after["qpos"][1])


def test_a_reset_touches_only_its_env_slots_and_forgets_everything_of_them(model, backend):
    drive(backend)
    before = everything(backend)
    backend.reset(torch.tensor([1]), [start_of(1)])
    after, fresh = everything(backend), everything(on_warp(model, 3))
    for name in before:
        assert torch.equal(before[name][[0, 2]], after[name][[0, 2]]), name
        assert torch.equal(fresh[name][1], after[name][1]), name


@pytest.mark.parametrize("value", [float("nan"), 1e12])
def test_an_env_slot_that_breaks_down_is_reported_and_disturbs_no_other(model, backend, value):
    undisturbed = on_warp(model, 3)
    backend.qvel[1, 0] = value
    for each in (backend, undisturbed):
        each.step(everyone(each), SUBSTEPS)
    assert backend.diverged.tolist() == [False, True, False]
    assert torch.isfinite(backend.qpos).all()
    assert torch.equal(backend.qpos[[0, 2]], undisturbed.qpos[[0, 2]])
    backend.reset(torch.tensor([1]), [start_of(1)])
    assert not backend.diverged.any()


def test_a_stored_state_goes_on_with_the_same_bits_and_can_be_taken_up_by_mujoco(model, backend):
    drive(backend, 5)
    stored, reference = backend.integration_states([0, 1, 2]), begin(MujocoBackend(model, num_envs=3))
    for env_id in range(3):
        reference.set_integration_state(env_id, stored[env_id])
    for each in (backend, reference):
        drive(each, 5)
    assert_close(backend, reference)
    expected = backend.qpos[1].clone()
    begin(backend)
    drive(backend, 5)
    backend.set_integration_state(1, stored[1])
    drive(backend, 5)
    assert torch.equal(backend.qpos[1], expected)


def test_a_snapshot_is_gone_on_from_with_the_same_bits(backend):
    drive(backend, 5)
    kept = backend.snapshot()
    drive(backend, 5)
    expected = everything(backend)
    begin(backend)
    backend.restore_snapshot(kept)
    drive(backend, 5)
    for name, value in everything(backend).items():
        assert torch.equal(value, expected[name]), name


def test_jacobians_agree(model, backend):
    reference = begin(MujocoBackend(model, num_envs=3))
    for each in (backend, reference):
        drive(each, 3)
    found, expected = (each.jacobian("robot/hand", TCP) for each in (backend, reference))
    np.testing.assert_allclose(found, expected, atol=POSITION_TOLERANCE)


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
    for name, value in everything(replaying).items():
        assert torch.equal(value, everything(launching)[name]), name


def test_worlds_that_are_closed_give_back_their_graphs_and_can_go_on(model, backend):
    other = on_warp(model, 3)
    for each in (backend, other):
        drive(each, 3)
    other.close()
    for each in (backend, other):
        drive(each, 3)
    assert torch.equal(other.qpos, backend.qpos)


def test_mujoco_warp_still_does_not_sort_contacts_and_constraints():
    # Its functions do nothing, whatever they are given. Once one of these fails, a GPU may be called reproducible with
    # `deterministic`: see `WarpBackend.reproducible`, docs/concepts/backends.md and the expected failure in
    # test_backend_gpu.py.
    anything: Any = None
    collision_driver._sort_contacts(anything, anything)
    constraint._sort_constraints(anything, anything)


def test_where_contacts_do_not_fit_the_step_or_the_reset_is_made_again_with_more_room(model, backend):
    narrow = on_warp(model, 3, sizes=BufferSizes(contacts=1, constraints=2))
    views = narrow.qpos, narrow.sensordata
    for each in (backend, narrow):
        drive(each)
    assert narrow.sizes.contacts > 1
    assert narrow.sizes.constraints > 2
    assert torch.equal(narrow.qpos, backend.qpos)
    assert torch.equal(views[0], narrow.qpos), "a view goes on"
    reset = WarpBackend(model, num_envs=3, device=CPU, sizes=BufferSizes(contacts=1, constraints=2))
    touching = [StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})] * 3
    for each in (reset, backend):
        each.reset(torch.arange(3), touching)
    assert reset.sizes.contacts > 1
    assert torch.equal(reset.sensordata, backend.sensordata)


class HardlyLarger(WarpBackend):
    """Makes no more room than once for a step."""

    most_growths = 1


def test_contacts_that_cannot_fit_are_an_error_and_never_silent(model):
    with pytest.raises(EnvironmentBuildError, match=r"do not fit, not even \d+ contacts .*; use the backend"):
        drive(begin(HardlyLarger(model, num_envs=3, device=CPU, sizes=BufferSizes(contacts=1, constraints=2))))


def test_room_is_measured_with_some_on_top(model):
    sizes = probed_sizes(model)
    assert sizes.contacts >= 8
    assert sizes == probed_sizes(model)


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


def let_fall(backend: Backend, changes: list[list[ModelChange]]) -> torch.Tensor:
    """Return the place of the object 0.1 s after it was let go 0.3 m above its start, in worlds with changes [m]."""
    backend.vary(torch.arange(len(changes)), changes)
    begin(backend)
    backend.qpos[:, backend.names.joint_qpos["object/free"].start + 2] += 0.3
    drive(backend, 10)
    return backend.body_position("object/body")


def test_worlds_can_have_gravity_of_their_own(model):
    changes = [[], [changed("opt.gravity", 2, -1.6)], [changed("opt.gravity", 0, 0.5)]]
    for each in (on_warp(model, 3), MujocoBackend(model, num_envs=3)):
        nominal = let_fall(each, [[], [], []]).clone()
        moved = let_fall(each, changes) - nominal
        expected_m = np.array([[0, 0, 0], [0, 0, 0.5 * 8.21 * 0.1**2], [0.5 * 0.5 * 0.1**2, 0, 0]])
        assert moved.numpy() == pytest.approx(expected_m, abs=3e-3)
        assert np.allclose(each.model_field("opt.gravity"), [[0, 0, -9.81], [0, 0, -1.6], [0.5, 0, -9.81]])
        assert each.visible_world(1)[0].opt.gravity.tolist() == pytest.approx([0.0, 0.0, -1.6])
        each.vary(torch.tensor([1]), [[]])
        assert each.model_field("opt.gravity")[1].tolist() == pytest.approx([0.0, 0.0, -9.81])


@pytest.mark.slow  # other kernels, which take minutes to compile
def test_a_world_can_have_a_fluid_that_the_model_is_without(model):
    changes = [[], [changed("opt.density", 0, 50.0)], [changed("opt.density", 0, 50.0), changed("opt.wind", 1, 5.0)]]
    reference, warp = MujocoBackend(model, num_envs=3), on_warp(model, 3)
    places = [let_fall(each, changes) for each in (warp, reference)]
    assert_close(warp, reference)
    for place, each in zip(places, (warp, reference), strict=True):
        assert place[1, 2] > place[0, 2] + 1e-4
        assert place[2, 1] > place[1, 1] + 1e-4
        assert each.model_field("opt.density").tolist() == [0.0, 50.0, 50.0]
        assert each.visible_world(1)[0].opt.density == 50.0


@pytest.mark.parametrize("name", ["opt.iterations", "geom_contype", "opt.nothing", "mesh_vert"])
def test_what_a_world_of_warp_cannot_have_of_its_own_is_refused_with_a_way_out(backend, name):
    with pytest.raises(EnvironmentBuildError, match=f"'{name}'.*'mujoco'"):
        backend.vary(torch.arange(3), [[changed(name, 0, 1.0)], [], []])


def test_a_world_of_warp_cannot_have_a_time_step_of_its_own(backend):
    with pytest.raises(EnvironmentBuildError, match=r"its own 'opt\.timestep'"):
        backend.vary(torch.arange(3), [[changed("opt.timestep", 0, 1e-3)], [], []])


def test_worlds_that_want_different_values_of_what_they_share_are_refused(model):
    changes = [slippery(model, "object/body", 0.3), resized(model, "object/body", mass=1.0, scale=1)]
    with pytest.raises(EnvironmentBuildError, match="'geom_priority'"):
        on_warp(model, 2).vary(torch.arange(2), changes)


def test_a_renderer_is_shown_the_world_as_it_is(model, backend):
    drive(backend, 3)
    shown_model, data = backend.visible_world(2)
    assert shown_model is model
    np.testing.assert_allclose(data.xpos, backend.xpos[2], atol=POSITION_TOLERANCE)


def test_a_scene_that_warp_cannot_simulate_is_an_error_with_a_way_out(model, monkeypatch):
    def refuse(*_) -> None:
        raise NotImplementedError("no such integrator")

    monkeypatch.setattr(mujoco_warp, "put_model", refuse)
    with pytest.raises(EnvironmentBuildError, match="no such integrator; use backend 'mujoco'"):
        on_warp(model, 1)
