"""How much room MuJoCo-Warp needs for contacts and constraints: measured beforehand, and grown where it was too little.

MuJoCo-Warp has arrays of fixed sizes, and leaves out what does not fit. So a backend starts with what a few worlds on
the CPU needed, looks after every control step whether something did not fit, and makes the step again with more room.
"""

import dataclasses
from dataclasses import dataclass

import mujoco
import mujoco_warp
import numpy as np
import warp

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

LEFT_OUT = int(
    mujoco_warp.OverflowType.HFIELD | mujoco_warp.OverflowType.CONTACT_MATCH | mujoco_warp.OverflowType.EPA_HORIZON
)
"""Bits that say that something was left out for which no room can be made. That a solver stopped at its limit of
iterations is not among them: MuJoCo does so too."""


@dataclass(frozen=True, kw_only=True)
class BufferSizes:
    """Room for a batch of worlds.

    Attributes:
        contacts: Contacts of a world, on average; all worlds share one array.
        constraints: Rows of constraints of any one world.
    """

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


def lacks_room(data: mujoco_warp.Data, missed: int) -> bool:
    """Whether something did not fit since ``Data.overflow`` was cleared.

    Args:
        data: The worlds.
        missed: All bits of that field. Only integration sets those of contacts and constraints, so a forward pass
            shows in the counts alone, and an earlier one of several steps in the bits alone.
    """
    contacts = max(int(data.nacon.numpy()[0]), int(data.ncollision.numpy()[0]))
    return bool(missed & _TOO_SMALL) or contacts > data.naconmax or int(data.nefc.numpy().max()) > data.njmax


def sizes_for(data: mujoco_warp.Data, before: BufferSizes) -> BufferSizes:
    """Return room for what did not fit.

    Args:
        data: The worlds, after a step in which something did not fit; it knows how much there was.
        before: The room so far.
    """
    wanted_contacts = max(int(data.nacon.numpy()[0]), int(data.ncollision.numpy()[0])) / data.nworld
    wanted_constraints = int(data.nefc.numpy().max())
    return BufferSizes(
        contacts=round(_GROWTH * max(before.contacts, wanted_contacts)),
        constraints=round(_GROWTH * max(before.constraints, wanted_constraints)),
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
