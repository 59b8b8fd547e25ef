"""Worlds that start and that are set back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mujoco_warp
import numpy as np
import pytest
import torch
import warp

from isaaclab_arena.sim.backend import StartState, resized
from isaaclab_arena.sim.scene import ScenePart, compose_scene
from isaaclab_arena.sim.warp_backend import BufferSizes, Room, StepRollback, WarpBackend
from isaaclab_arena.sim.warp_kernels import Launcher
from tests.sim.arm_and_cube import PARTS, everyone, only, start_of
from tests.sim.tape import tape
from tests.sim.warp.fake_streams import between, fake_streams
from tests.sim.warp.test_backend import begin, everything

# What is put back after a step is the same if it is replayed: worlds that rest, break down or find no room.

CPU = torch.device("cpu")
SUBSTEPS = 4
NARROW = BufferSizes(contacts=1, constraints=2)


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


def rest(backend: WarpBackend, number: int) -> None:
    """Let world 1 rest, now and then."""
    backend.step(only(backend, 0, 2) if number % 3 == 1 else everyone(backend), SUBSTEPS)


def break_down(backend: WarpBackend, number: int) -> None:
    if number == 4:
        backend.qvel[1, 0] = float("nan")
    backend.step(everyone(backend), SUBSTEPS)
    assert backend.diverged.tolist() == [False, number >= 4, False]


def reset(backend: WarpBackend, number: int) -> None:
    rest(backend, number)
    backend.reset(torch.tensor([number % 3]), [start_of(number)])


def close(backend: WarpBackend, number: int) -> None:
    if number == 4:
        backend.close()
    rest(backend, number)


@pytest.mark.parametrize("make_step", [rest, break_down, reset, close])
def test_worlds_that_rest_break_down_begin_anew_or_are_closed_are_put_back_alike(model, make_step):
    both = pair(model)
    for number in range(7):
        for each in both:
            each.ctrl[:, 0] = 0.1 * number
            make_step(each, number)
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
    for number in range(6):
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


def begun_again(parts: Sequence[ScenePart], starts: list[StartState]) -> tuple[dict[str, torch.Tensor], ...]:
    """Return the state of two worlds when they are new, and after they ran and some began again."""
    worlds = WarpBackend(compose_scene("scenes/table.xml", parts), num_envs=2, device=CPU)
    new = everything(worlds)
    worlds.qpos.add_(0.01)
    worlds.step(everyone(worlds), SUBSTEPS)
    worlds.reset(torch.arange(len(starts)), starts)
    return new, everything(worlds)


def test_what_a_start_does_not_name_is_as_at_rest():
    starts = [
        StartState(joint_positions={"robot/panda_joint1": (0.5,)}),
        StartState(mocap_positions={"target/body": (1.0, 2.0, 3.0)}),
    ]
    expected, state = begun_again(PARTS, starts)
    expected["qpos"][0, 0] = 0.5
    expected["mocap_pos"][1, 0] = torch.tensor([1.0, 2.0, 3.0])
    for name in ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat"):
        assert torch.equal(state[name], expected[name]), name


@pytest.mark.parametrize("num_starts", [0, 2])
def test_models_without_controls_or_mocap_bodies_start_too(num_starts):
    new, state = begun_again(PARTS[1:2], [StartState()] * num_starts)
    assert torch.equal(state["qpos"], new["qpos"]) is (num_starts == 2)
    assert state["mocap_pos"].shape == (2, 0, 3)


# Worlds in streams that only take notes: whatever they do, Warp is told in a stream that is in order with torch.

ROOMY, STREAMS_NARROW = BufferSizes(contacts=64, constraints=256), BufferSizes(contacts=1, constraints=2)
TOUCHING = StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})


MADE = "make_data"
CALLS = ("launch", "capture_launch", "copy", "empty", "zeros", "full")
"""Functions of Warp that give a device something to do."""


class Worlds:
    """Two worlds, and what Warp was told in which stream.

    Attributes:
        notes: What happened, in order; what Warp was told is named by its function.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sizes: BufferSizes) -> None:
        self.notes: list[str] = []
        monkeypatch.setattr(mujoco_warp, "make_data", partial(self.told, MADE, mujoco_warp.make_data))
        for name in CALLS:
            monkeypatch.setattr(warp, name, partial(self.told, name, getattr(warp, name)))
        self.model = compose_scene("scenes/table.xml", PARTS)
        launcher = Launcher(CPU, streams=fake_streams(self.notes))
        self.backend = WarpBackend(self.model, num_envs=2, device=CPU, sizes=sizes, launcher=launcher)

    def told(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function, and note its name."""
        self.notes.append(name)
        return call(*arguments, **options)

    def noted(self, call: Callable[[], object]) -> list[str]:
        """Events during a call."""
        self.notes.clear()
        call()
        return list(self.notes)

    def vary(self, mass_kg: float) -> None:
        """Give the object another mass in each world."""
        masses_kg = (mass_kg, 2 * mass_kg)
        changes = [resized(self.model, "object/body", mass=each_kg, scale=1.0) for each_kg in masses_kg]
        self.backend.vary(torch.arange(2), changes)

    def step(self) -> None:
        """Make a control step."""
        self.backend.step(everyone(self.backend), 2)

    def touch(self) -> None:
        """Put the object into the table, so that there are contacts."""
        self.backend.reset(torch.arange(2), [TOUCHING] * 2)


def outside(notes: list[str]) -> list[str]:
    """Calls of Warp outside of every stream."""
    found, is_inside = [], False
    for note in notes:
        if note.startswith(("in ", "out of ")):
            is_inside = note.startswith("in ")
        elif note in CALLS and not is_inside:
            found.append(note)
    return found


def visits(notes: list[str]) -> list[str]:
    """Events of the streams, without the calls of Warp in them."""
    return [note for note in notes if note not in CALLS]


def test_nothing_is_told_outside_of_a_stream_whatever_the_worlds_do(monkeypatch):
    worlds = Worlds(monkeypatch, STREAMS_NARROW)
    for each in (worlds.step, worlds.touch, partial(worlds.vary, 0.1), worlds.step, worlds.step):
        each()
    worlds.backend.jacobian("object/body", "robot/tcp")
    assert {"launch", "capture_launch", *visits(between("independent"))} <= set(worlds.notes)
    assert outside(worlds.notes) == []


def test_fields_become_each_worlds_own_and_what_follows_from_them_is_renewed_in_order_with_torch(monkeypatch):
    worlds = Worlds(monkeypatch, ROOMY)
    first, second, third = (visits(worlds.noted(partial(worlds.vary, mass_kg))) for mass_kg in (0.1, 0.2, 0.3))
    widened, derived = between("blocking"), between("blocking")
    assert first == widened + derived
    assert second == third == between("independent")
    masses_kg = worlds.backend.model_field("body_mass")[:, worlds.model.body("object/body").id]
    np.testing.assert_allclose(masses_kg, [0.3, 0.6], rtol=1e-6)


def test_more_room_is_made_between_the_step_that_lacked_it_and_the_one_made_again(monkeypatch):
    worlds = Worlds(monkeypatch, STREAMS_NARROW)
    notes = worlds.noted(worlds.touch)
    assert worlds.backend.sizes.contacts > STREAMS_NARROW.contacts
    made_at = notes.index(MADE)
    before, after = ([note for note in each if note.startswith("in ")] for each in (notes[:made_at], notes[made_at:]))
    assert before[-1] == "in blocking"
    assert after[0] == "in blocking", "a graph that knows the arrays of before was replayed"
