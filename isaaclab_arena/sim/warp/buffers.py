"""Size MuJoCo-Warp's buffers for contacts and constraints: measure first, and grow them when they are too small.

MuJoCo-Warp has arrays of fixed sizes, and leaves out what does not fit. So a backend starts with what a few worlds on
the CPU needed, notes with every control step whether something did not fit, and makes it again with more room.
"""

import dataclasses
from dataclasses import dataclass
from typing import Self

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.errors import EnvironmentBuildError

_PROBE_STEPS = 400
_PROBE_EVERY = 20
_HEADROOM = 2.0
_AT_LEAST_CONTACTS, _AT_LEAST_CONSTRAINTS = 32, 64
_GROWTH = 1.5

_TOO_SMALL = int(
    mujoco_warp.OverflowType.NEFC
    | mujoco_warp.OverflowType.NJMAX_NNZ
    | mujoco_warp.OverflowType.BROADPHASE
    | mujoco_warp.OverflowType.NARROWPHASE
    | mujoco_warp.OverflowType.CCD
)
"""Bits of ``Data.overflow`` that more room mends."""

_LEFT_OUT = int(
    mujoco_warp.OverflowType.HFIELD | mujoco_warp.OverflowType.CONTACT_MATCH | mujoco_warp.OverflowType.EPA_HORIZON
)
"""Bits that say that something was left out for which no room can be made. That a solver stopped at its limit of
iterations is not among them: MuJoCo does so too."""


@dataclass(frozen=True, kw_only=True)
class BufferSizes:
    """Room for a batch of worlds.

    Attributes:
        contacts: Contacts of a world, on average; all worlds share one array.
        constraints: Constraints of any one world.
    """

    contacts: int
    constraints: int


@dataclass(frozen=True, kw_only=True)
class RoomUsed:
    """What a batch of worlds needed room for, whether it was there or not.

    Attributes:
        missed: All bits of ``Data.overflow`` that any world has.
        contacts: Contacts of all worlds together.
        constraints: Constraints of the world that has most.
    """

    missed: int
    contacts: int
    constraints: int


def probed_sizes(model: mujoco.MjModel, *, seed: int = 0) -> BufferSizes:
    """Return the room that a model needs, by simulating it on the CPU with random controls, and some on top.

    Args:
        model: The compiled model.
        seed: Of the controls.
    """
    data = mujoco.MjData(model)
    generator = np.random.default_rng(seed)
    limited = model.actuator_ctrllimited.astype(bool)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
    high = np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)
    contacts = constraints = 0
    for step in range(_PROBE_STEPS):
        if step % _PROBE_EVERY == 0:
            data.ctrl[:] = generator.uniform(low, high)
        mujoco.mj_step(model, data)
        contacts, constraints = max(contacts, data.ncon), max(constraints, data.nefc)
    return BufferSizes(
        contacts=max(_AT_LEAST_CONTACTS, round(_HEADROOM * contacts)),
        constraints=max(_AT_LEAST_CONSTRAINTS, round(_HEADROOM * constraints)),
    )


@dataclass(frozen=True, kw_only=True)
class Room:
    """Where worlds with so much room say what they needed, live.

    Attributes:
        contacts: Contacts, and pairs of geoms that may touch, of all worlds together. Shapes: (1,), (1,).
        constraints: Constraints of each world. Shape: (num_envs,).
        overflow: ``Data.overflow``. Shape: (num_envs,).
        most_contacts: How many contacts, and as many pairs, there is room for.
        most_constraints: How many constraints of each world there is room for.
    """

    contacts: tuple[torch.Tensor, torch.Tensor]
    constraints: torch.Tensor
    overflow: torch.Tensor
    most_contacts: int
    most_constraints: int

    @classmethod
    def of(cls, data: mujoco_warp.Data) -> Self:
        """Return the room of worlds."""
        return cls(
            contacts=(warp.to_torch(data.nacon), warp.to_torch(data.ncollision)),
            constraints=warp.to_torch(data.nefc),
            overflow=warp.to_torch(data.overflow),
            most_contacts=data.naconmax,
            most_constraints=data.njmax,
        )

    def used(self) -> RoomUsed:
        """Return what worlds needed since ``overflow`` was cleared."""
        contacts = torch.cat(self.contacts).max()
        # Together, because each time that it is read back what a GPU has computed takes as long as a small network.
        numbers = torch.stack((_any_bits(self.overflow), contacts, self.constraints.max())).tolist()
        missed, contacts, constraints = map(int, numbers)
        return RoomUsed(missed=missed, contacts=contacts, constraints=constraints)

    def was_enough(self) -> torch.Tensor:
        """Return whether everything fitted since ``overflow`` was cleared, on the device. Shape: (), bool.

        Only integration sets the bits of contacts and constraints, so a forward pass shows in the counts alone, and an
        earlier one of several steps in the bits alone.
        """
        missed = self.overflow & (_TOO_SMALL | _LEFT_OUT)
        too_many = (torch.cat(self.contacts) > self.most_contacts).any()
        too_many = too_many | (self.constraints > self.most_constraints).any()
        return ~(too_many | (missed != 0).any())


def refuse_what_cannot_fit(used: RoomUsed) -> None:
    """Refuse worlds in which something was left out for which no room can be made.

    Raises:
        EnvironmentBuildError: If there was such a thing.
    """
    if used.missed & _LEFT_OUT:
        names = mujoco_warp.OverflowType(used.missed & _LEFT_OUT)
        raise EnvironmentBuildError(
            f"MuJoCo-Warp left out contacts ({names!r}), for which it cannot make room; use the backend 'mujoco'"
        )


def sizes_for(used: RoomUsed, before: BufferSizes, *, num_envs: int) -> BufferSizes:
    """Return room for what did not fit.

    Args:
        used: What room was needed for.
        before: The room so far.
        num_envs: Number of worlds.
    """
    return BufferSizes(
        contacts=round(_GROWTH * max(before.contacts, used.contacts / num_envs)),
        constraints=round(_GROWTH * max(before.constraints, used.constraints)),
    )


def make_data(model: mujoco.MjModel, num_envs: int, sizes: BufferSizes) -> mujoco_warp.Data:
    """Return worlds with so much room, on Warp's current device."""
    return mujoco_warp.make_data(model, nworld=num_envs, nconmax=sizes.contacts, njmax=sizes.constraints)


def with_more_room(model: mujoco.MjModel, data: mujoco_warp.Data, sizes: BufferSizes) -> mujoco_warp.Data:
    """Return the same worlds with more room: every array whose size does not change is the very same one.

    So whoever holds a view of positions or sensors goes on with it.
    """
    larger = make_data(model, data.nworld, sizes)
    for field in dataclasses.fields(larger):
        old, new = getattr(data, field.name), getattr(larger, field.name)
        if isinstance(old, warp.array) and old.shape == new.shape and old.dtype == new.dtype:
            setattr(larger, field.name, old)
    return larger


def _any_bits(masks: torch.Tensor) -> torch.Tensor:
    """Return all bits that any number has; torch has no such reduction."""
    bits = 1 << torch.arange(16, dtype=masks.dtype, device=masks.device)
    return (((masks[:, None] & bits) != 0).any(dim=0) * bits).sum()
