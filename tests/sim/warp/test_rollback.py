"""What is put back after a step is the same if it is replayed: worlds that rest, break down or find no room."""

from dataclasses import replace

import pytest
import torch

from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.scene import compose_scene
from isaaclab_arena.sim.warp_backend import BufferSizes, Room, StepRollback, WarpBackend
from isaaclab_arena.sim.warp_kernels import Launcher
from tests.sim.arm_and_cube import PARTS, everyone, only, start_of
from tests.sim.tape import tape
from tests.sim.warp.test_backend import begin, everything

CPU = torch.device("cpu")
SUBSTEPS = 4
NARROW = BufferSizes(contacts=1, constraints=2)


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", PARTS)


def pair(model, **options) -> tuple[WarpBackend, WarpBackend]:
    """Return worlds that put back by replays and worlds that do not, at their start."""
    replaying = WarpBackend(model, num_envs=3, device=CPU, launcher=Launcher(CPU, capture=tape), **options)
    plain = WarpBackend(model, num_envs=3, device=CPU, **options)
    for each in (replaying, plain):
        begin(each)
    return replaying, plain


def assert_the_same(replaying: WarpBackend, plain: WarpBackend) -> None:
    wanted = everything(plain)
    for name, value in everything(replaying).items():
        assert torch.equal(value, wanted[name]), name


def step(backend: WarpBackend, number: int) -> None:
    """Make a step in which world 1 rests, now and then."""
    backend.ctrl[:, 0] = 0.1 * number
    backend.step(only(backend, 0, 2) if number % 3 == 1 else everyone(backend), SUBSTEPS)


def test_worlds_that_rest_stay_where_they_are(model):
    both = pair(model)
    for number in range(7):
        for each in both:
            step(each, number)
        assert_the_same(*both)


def test_a_world_that_breaks_down_is_marked_and_put_to_rest(model):
    both = pair(model)
    for number in range(7):
        for each in both:
            if number == 4:
                each.qvel[1, 0] = float("nan")
            step(each, 0)
        assert_the_same(*both)
    assert both[0].diverged.tolist() == [False, True, False]


def test_a_reset_leaves_the_sensors_of_others(model):
    both = pair(model)
    for number in range(6):
        for each in both:
            step(each, number)
            each.reset(torch.tensor([number % 3]), [start_of(number)])
        assert_the_same(*both)


def test_what_renewing_some_worlds_does_to_others_is_put_back(model):
    state = {name: torch.zeros(3, 2) for name in ("qpos", "qvel", "qacc_warmstart", "act")}
    sensordata = torch.zeros(3, 1)
    rollback = StepRollback(state, sensordata, Room(WarpBackend(model, num_envs=3, device=CPU).warp_worlds[1]), tape)
    for number in (1.0, 2.0, 3.0, 4.0, 5.0):
        rollback.keep()
        state["qacc_warmstart"].fill_(number)
        sensordata.fill_(number)
        rollback.release(torch.tensor([1]))
        assert sensordata[:, 0].tolist() == [0.0, number, 0.0]
        assert state["qacc_warmstart"].eq(0).all()


def test_an_attempt_says_whether_there_was_room_and_puts_all_back_if_not(model):
    both = pair(model, sizes=NARROW)
    for number in range(8):
        made = []
        for each in both:
            each.ctrl[:, 0] = 0.1 * number
            moved = everyone(each)
            made.append(each.step(moved, SUBSTEPS, may_fail=True))
            if not made[-1].any():
                each.step(moved, SUBSTEPS)
        assert torch.equal(*made)
        assert_the_same(*both)


def test_what_an_attempt_returned_is_not_changed_by_the_next_one(model):
    replaying, _ = pair(model)
    attempts = [replaying.step(only(replaying, number % 3), SUBSTEPS, may_fail=True) for number in range(6)]
    assert [made.nonzero()[:, 0].tolist() for made in attempts] == [[0], [1], [2], [0], [1], [2]]


def in_the_air(env_id: int) -> StartState:
    """Return a start from which the cube falls onto the table later on."""
    start = start_of(env_id)
    x, y, _, *orientation = start.joint_positions["object/free"]
    return replace(start, joint_positions={**start.joint_positions, "object/free": (x, y, 0.06, *orientation)})


def test_with_more_room_other_limits_count(model):
    both = pair(model, sizes=BufferSizes(contacts=1, constraints=8))
    for each in both:
        each.reset(torch.arange(3), [in_the_air(slot) for slot in range(3)])
    sizes = []
    for _ in range(25):
        for each in both:
            each.step(everyone(each), SUBSTEPS)
        sizes.append(both[0].sizes)
        assert_the_same(*both)
    assert sizes[6] == sizes[0], "what is put back is captured before there is more room"
    assert sizes[-1].contacts > sizes[0].contacts
    assert both[0].sizes == both[1].sizes


def test_worlds_that_are_closed_go_on(model):
    both = pair(model)
    for number in range(8):
        for each in both:
            if number == 4:
                each.close()
            step(each, number)
        assert_the_same(*both)
