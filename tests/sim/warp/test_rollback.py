"""Worlds that start and that are set back."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mujoco_warp
import numpy as np
import pytest
import torch
import warp

from isaaclab_arena.sim.backend import StartState, resized
from isaaclab_arena.sim.scene import compose_scene
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend
from isaaclab_arena.sim.warp_kernels import Launcher
from tests.sim.arm_and_cube import PARTS, assert_alike, begin, everyone, everything, only, start_of
from tests.sim.tape import tape
from tests.sim.warp.fake_streams import between, fake_streams

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
    assert_alike(everything(replaying), everything(plain))


@pytest.mark.slow
@pytest.mark.parametrize("event", ["rest", "break down", "reset", "close"])
def test_worlds_that_rest_break_down_begin_anew_or_are_closed_are_put_back_alike(model, event):
    both = pair(model)
    for number in range(7):
        for each in both:
            each.ctrl[:, 0] = 0.1 * number
            if event == "close" and number == 4:
                each.close()
            if event == "break down" and number == 4:
                each.qvel[1, 0] = float("nan")
            rests = event != "break down" and number % 3 == 1
            each.step(only(each, 0, 2) if rests else everyone(each), SUBSTEPS)
            assert each.diverged.tolist() == [False, event == "break down" and number >= 4, False]
            if event == "reset":
                each.reset(torch.tensor([number % 3]), [start_of(number)])
        assert_the_same(*both)


def test_what_an_attempt_returned_is_not_changed_by_the_next_one(model):
    replaying, _ = pair(model)
    attempts = [replaying.step(only(replaying, number % 3), SUBSTEPS, may_fail=True) for number in range(6)]
    assert [made.nonzero()[:, 0].tolist() for made in attempts] == [[0], [1], [2], [0], [1], [2]]


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


def test_with_more_room_other_limits_count(model):
    both = pair(model, sizes=BufferSizes(contacts=1, constraints=8))
    for each in both:
        # The cube falls onto the table later on.
        falling = {**start_of(0).joint_positions, "object/free": (0.4, 0.0, 0.06, 1, 0, 0, 0)}
        each.reset(torch.arange(3), [replace(start_of(slot), joint_positions=falling) for slot in range(3)])
    sizes = []
    for _ in range(25):
        for each in both:
            each.step(everyone(each), SUBSTEPS)
        sizes.append(both[0].sizes)
        assert_the_same(*both)
    assert sizes[6] == sizes[0], "what is put back is captured before there is more room"
    assert sizes[-1].contacts > sizes[0].contacts
    assert both[0].sizes == both[1].sizes


@pytest.mark.parametrize("num_parts", [3, 1])
def test_what_a_start_does_not_name_is_as_at_rest_also_without_controls_or_mocap_bodies(num_parts):
    worlds = WarpBackend(compose_scene("scenes/table.xml", PARTS[-num_parts:][::-1]), num_envs=2, device=CPU)
    expected = everything(worlds)
    starts = [StartState(), StartState(mocap_positions={"target/body": (1.0, 2.0, 3.0)})]
    if num_parts == 3:
        starts[0] = StartState(joint_positions={"robot/panda_joint1": (0.5,)})
        expected["qpos"][0, worlds.names.joint_qpos["robot/panda_joint1"]] = 0.5
    expected["mocap_pos"][1, 0] = torch.tensor([1.0, 2.0, 3.0])
    worlds.qpos.add_(0.01)
    worlds.step(everyone(worlds), SUBSTEPS)
    worlds.reset(torch.arange(2), starts)
    for name in ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat"):
        assert torch.equal(everything(worlds)[name], expected[name]), name


# Worlds in streams that only take notes: whatever they do, Warp is told in a stream that is in order with torch.

TOUCHING = StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})
MADE = "make_data"
CALLS = ("launch", "capture_launch", "copy", "empty", "zeros", "full")
"""Functions of Warp that give a device something to do."""


class Worlds:
    """Two worlds, and ``notes`` of what Warp was told in which stream, by the name of its function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sizes: BufferSizes) -> None:
        self.notes: list[str] = []
        for module, names in ((mujoco_warp, (MADE,)), (warp, CALLS)):
            for name in names:
                monkeypatch.setattr(module, name, partial(self.told, name, getattr(module, name)))
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
        changes = [resized(self.model, "object/body", mass=each_kg, scale=1.0) for each_kg in (mass_kg, 2 * mass_kg)]
        self.backend.vary(torch.arange(2), changes)

    def touch(self) -> None:
        """Put the object into the table, so that there are contacts."""
        self.backend.reset(torch.arange(2), [TOUCHING] * 2)


def visits(notes: list[str]) -> list[str]:
    """Events of the streams, without the calls of Warp in them."""
    return [note for note in notes if note not in CALLS]


def test_nothing_is_told_outside_of_a_stream_whatever_the_worlds_do(monkeypatch):
    worlds = Worlds(monkeypatch, NARROW)
    step = partial(worlds.backend.step, everyone(worlds.backend), 2)
    for each in (step, worlds.touch, partial(worlds.vary, 0.1), step, step):
        each()
    worlds.backend.jacobian("object/body", "robot/tcp")
    assert {"launch", "capture_launch", *visits(between("independent"))} <= set(worlds.notes)
    is_inside = False
    for note in worlds.notes:
        is_inside = note.startswith("in ") or (is_inside and not note.startswith("out of "))
        assert is_inside or note not in CALLS


def test_fields_become_each_worlds_own_and_what_follows_from_them_is_renewed_in_order_with_torch(monkeypatch):
    worlds = Worlds(monkeypatch, BufferSizes(contacts=64, constraints=256))
    first, second, third = (visits(worlds.noted(partial(worlds.vary, mass_kg))) for mass_kg in (0.1, 0.2, 0.3))
    assert first == between("blocking") + between("blocking"), "they are widened, and then what follows is derived"
    assert second == third == between("independent")
    masses_kg = worlds.backend.model_field("body_mass")[:, worlds.model.body("object/body").id]
    np.testing.assert_allclose(masses_kg, [0.3, 0.6], rtol=1e-6)
