"""The plan for each task: phases of a motion, relative to things in the scene."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Sizes: TypeAlias = Mapping[str, float]
"""Lengths of the task's things [m]; see `isaaclab_arena.sim.privileged.Simulated`."""

_FOREVER = 10_000
_FINGER_DEPTH_M = 0.03
_OPEN_M = 0.08
_AROUND_HANDLE_M = 0.045


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One stretch of a motion: bring the tool centre point somewhere, and go on when it is there.

    Attributes:
        role: The landmark that the goal is relative to.
        offset: From the landmark to the goal, in the world frame [m].
        width_m: Distance between the fingers [m].
        step_m: Longest way to aim ahead in one control step [m].
        tolerance_m: How near is near enough [m].
        min_steps: Shortest stay [control steps].
        max_steps: Longest stay, after which the next phase begins anyway [control steps].
    """

    role: str
    offset: tuple[float, float, float]
    width_m: float
    step_m: float = 0.06
    tolerance_m: float = 0.02
    min_steps: int = 0
    max_steps: int = 60


@dataclass(frozen=True, kw_only=True)
class Script:
    """The plan for a task.

    Attributes:
        phases: In this order; the last one lasts until the episode ends or the plan is tried again.
        hand: How the hand is held: pointing down and turned with the object, or pointing forward along +x.
        followed: Number of phases in which the first phase's landmark is followed; its pose is remembered afterwards.
        carrying: Phases in which the object must be at the fingertips; if it is not, the plan starts again.
    """

    phases: tuple[Phase, ...]
    hand: Literal["down", "forward"] = "down"
    followed: int = _FOREVER
    carrying: range = range(0)


def _reach(sizes: Sizes) -> Script:
    del sizes
    return Script(phases=(Phase(role="target", offset=(0.0, 0.0, 0.0), width_m=_OPEN_M, max_steps=_FOREVER),))


def _grasp(sizes: Sizes) -> tuple[Phase, ...]:
    above, grasp = sizes["object_half_height"] + 0.08, _grasp_offset(sizes)
    return (
        Phase(role="object", offset=(0.0, 0.0, above), width_m=_OPEN_M),
        Phase(role="object", offset=(0.0, 0.0, grasp), width_m=_OPEN_M, step_m=0.03, tolerance_m=0.006, max_steps=30),
        Phase(role="object", offset=(0.0, 0.0, grasp), width_m=0.0, min_steps=6, max_steps=6),
    )


def _grasp_offset(sizes: Sizes) -> float:
    """Return how far above its centre an object is taken, so that a tall one does not meet the palm [m]."""
    return max(0.0, sizes["object_half_height"] - _FINGER_DEPTH_M)


def _lift_object(sizes: Sizes) -> Script:
    lift = Phase(role="object", offset=(0.0, 0.0, 0.18), width_m=0.0, step_m=0.03, max_steps=_FOREVER)
    return Script(phases=(*_grasp(sizes), lift), followed=2, carrying=range(3, 4))


def _pick_and_place(sizes: Sizes) -> Script:
    in_bin = sizes["bin_floor"] + sizes["object_half_height"] + 0.01
    over_bin = sizes["bin_rim"] + sizes["object_half_height"] + 0.05
    phases = (
        *_grasp(sizes),
        Phase(role="object", offset=(0.0, 0.0, over_bin), width_m=0.0, step_m=0.04, tolerance_m=0.03),
        Phase(role="bin", offset=(0.0, 0.0, over_bin), width_m=0.0, step_m=0.04, tolerance_m=0.015),
        Phase(role="bin", offset=(0.0, 0.0, in_bin), width_m=0.0, step_m=0.03, tolerance_m=0.01, max_steps=20),
        Phase(role="bin", offset=(0.0, 0.0, in_bin), width_m=_OPEN_M, min_steps=4, max_steps=4),
        Phase(role="bin", offset=(0.0, 0.0, over_bin + 0.1), width_m=_OPEN_M, max_steps=40),
    )
    return Script(phases=phases, followed=2, carrying=range(3, 6))


def _open_drawer(sizes: Sizes) -> Script:
    far = -1.25 * sizes["drawer_threshold"]
    phases = (
        Phase(role="handle", offset=(-0.075, 0.0, 0.09), width_m=_AROUND_HANDLE_M),
        Phase(
            role="handle",
            offset=(0.0, 0.0, 0.0),
            width_m=_AROUND_HANDLE_M,
            step_m=0.03,
            tolerance_m=0.008,
            max_steps=30,
        ),
        Phase(role="handle", offset=(0.0, 0.0, 0.0), width_m=0.0, min_steps=6, max_steps=6),
        Phase(role="handle", offset=(far, 0.0, 0.0), width_m=0.0, step_m=0.02, max_steps=80),
    )
    return Script(phases=phases, hand="forward", followed=2)


SCRIPTS: Mapping[str, Callable[[Sizes], Script]] = {
    "reach": _reach,
    "lift_object": _lift_object,
    "pick_and_place": _pick_and_place,
    "open_drawer": _open_drawer,
}
"""Name of a task to what makes its plan."""
