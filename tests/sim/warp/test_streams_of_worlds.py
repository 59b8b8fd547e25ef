"""Worlds in streams that only take notes: whatever they do, Warp is told in a stream that is in order with torch."""

from collections.abc import Callable
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
from tests.sim.arm_and_cube import PARTS, everyone
from tests.sim.warp.fake_streams import between, fake_streams

ROOMY, NARROW = BufferSizes(contacts=64, constraints=256), BufferSizes(contacts=1, constraints=2)
TOUCHING = StartState(joint_positions={"object/free": (0.5, 0.0, 0.02, 1, 0, 0, 0)})


CPU = torch.device("cpu")
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
    worlds = Worlds(monkeypatch, NARROW)
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
    worlds = Worlds(monkeypatch, NARROW)
    notes = worlds.noted(worlds.touch)
    assert worlds.backend.sizes.contacts > NARROW.contacts
    made_at = notes.index(MADE)
    before, after = ([note for note in each if note.startswith("in ")] for each in (notes[:made_at], notes[made_at:]))
    assert before[-1] == "in blocking"
    assert after[0] == "in blocking", "a graph that knows the arrays of before was replayed"
