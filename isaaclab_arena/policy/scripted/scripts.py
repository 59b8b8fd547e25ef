"""Define the plan for each task: phases of a motion, relative to objects in the scene."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

Sizes: TypeAlias = Mapping[str, float]
"""Lengths of the task's objects [m]; see `isaaclab_arena.sim.privileged.Simulated`."""

FOREVER = 10_000
NAMED = "named"
"""The role of the candidate that the episode's instruction names."""

TOOL = "tool"
"""The role of the tool centre point itself."""

_FINGER_DEPTH_M = 0.03
_OPEN_M = 0.08
_AROUND_HANDLE_M = 0.045
_FORK_M = 0.02


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a motion: move the tool centre point to a goal, then go on to the next phase.

    Attributes:
        role: The landmark that the goal is relative to.
        offset: From the landmark to the goal, in the world frame [m].
        width_m: Distance between the fingers [m].
        follow: What the goal follows during the phase: the landmark's position and yaw, its position only, or nothing.
            With nothing, the goal stays where it was.
        toward: Another landmark; the goal is shifted along the horizontal line from ``role`` to it.
        along_m: Length of the shift, negative for away from ``toward`` [m].
        ahead_m: If not 0, the goal is this far ahead of the tool on that line, until ``role`` is at ``toward``;
            negative for moving back [m].
        carries: The landmark that must be at the fingertips.
        retry: The next phase if the carried object was dropped, or if the tool is no longer behind the pushed one.
        step_m: Longest step in one control step [m].
        tolerance_m: Distance at which the goal counts as reached [m].
        min_steps: Shortest duration [control steps].
        max_steps: Longest duration, after which the next phase begins anyway [control steps].
    """

    role: str
    offset: tuple[float, float, float]
    width_m: float
    follow: Literal["pose", "place", "nothing"] = "place"
    toward: str = ""
    along_m: float = 0.0
    ahead_m: float = 0.0
    carries: str = ""
    retry: int = 0
    step_m: float = 0.06
    tolerance_m: float = 0.02
    min_steps: int = 0
    max_steps: int = 60


@dataclass(frozen=True, kw_only=True)
class Script:
    """The plan for a task.

    Attributes:
        phases: In this order; the last one lasts until the episode ends or the plan is tried again.
        hand: Orientation of the hand: pointing down and turned with the landmark, pointing down with its flat side
            across the line from one landmark ``toward`` another, or pointing forward along +x.
        grip_m: How far above its centre an object is held [m].
        candidates: Landmarks from which the instruction chooses one, by their role; see `NAMED`.
    """

    phases: tuple[Phase, ...]
    hand: Literal["down", "across", "forward"] = "down"
    grip_m: float = 0.0
    candidates: tuple[str, ...] = ()


def _reach(sizes: Sizes) -> Script:
    del sizes
    phase = Phase(role="target", offset=(0.0, 0.0, 0.0), width_m=_OPEN_M, follow="pose", max_steps=FOREVER)
    return Script(phases=(phase,))


def _grasp(sizes: Sizes, role: str = "object") -> tuple[Phase, ...]:
    above, grasp = sizes["object_top"] + 0.08, _grasp_offset(sizes)
    over, at = (0.0, 0.0, above), (0.0, 0.0, grasp)
    return (
        Phase(role=role, offset=over, width_m=_OPEN_M, follow="pose"),
        Phase(role=role, offset=at, width_m=_OPEN_M, follow="pose", step_m=0.03, tolerance_m=0.006, max_steps=30),
        Phase(role=role, offset=at, width_m=0.0, follow="nothing", min_steps=6, max_steps=6),
    )


def _grasp_offset(sizes: Sizes) -> float:
    """Return how far above its centre an object is grasped, so that a tall one does not touch the palm [m]."""
    return max(0.0, sizes["object_top"] - _FINGER_DEPTH_M)


def _lift_object(sizes: Sizes) -> Script:
    return Script(phases=(*_grasp(sizes), _raise("object", sizes)), grip_m=_grasp_offset(sizes))


def _raise(role: str, sizes: Sizes) -> Phase:
    return Phase(
        role=role,
        offset=(0.0, 0.0, 0.18 + _grasp_offset(sizes)),
        width_m=0.0,
        follow="nothing",
        carries=role,
        step_m=0.03,
        max_steps=FOREVER,
    )


def _pick_and_place(sizes: Sizes) -> Script:
    return Script(phases=_transfer(sizes, "object", "bin", first=0), grip_m=_grasp_offset(sizes))


def _transfer(sizes: Sizes, role: str, place: str, *, first: int) -> tuple[Phase, ...]:
    """Return the phases that bring one object into one bin; ``first`` is their index in the script."""
    held = sizes["object_half_height"] + _grasp_offset(sizes)
    in_bin, over_bin = sizes["bin_floor"] + held + 0.01, sizes["bin_rim"] + held + 0.05
    over, inside = (0.0, 0.0, over_bin), (0.0, 0.0, in_bin)
    return (
        *_grasp(sizes, role),
        Phase(
            role=role,
            offset=over,
            width_m=0.0,
            follow="nothing",
            carries=role,
            retry=first,
            step_m=0.04,
            tolerance_m=0.03,
        ),
        Phase(role=place, offset=over, width_m=0.0, carries=role, retry=first, step_m=0.04, tolerance_m=0.015),
        Phase(
            role=place,
            offset=inside,
            width_m=0.0,
            carries=role,
            retry=first,
            step_m=0.03,
            tolerance_m=0.01,
            max_steps=20,
        ),
        Phase(role=place, offset=inside, width_m=_OPEN_M, min_steps=4, max_steps=4),
        Phase(role=place, offset=(0.0, 0.0, over_bin + 0.1), width_m=_OPEN_M, max_steps=40),
    )


def _open_drawer(sizes: Sizes) -> Script:
    far = -1.25 * sizes["drawer_threshold"]
    phases = (
        Phase(role="handle", offset=(-0.075, 0.0, 0.09), width_m=_AROUND_HANDLE_M, follow="pose"),
        *_at_handle(),
        Phase(role="handle", offset=(far, 0.0, 0.0), width_m=0.0, follow="nothing", step_m=0.02, max_steps=80),
    )
    return Script(phases=phases, hand="forward")


def _push_to_goal(sizes: Sizes) -> Script:
    low = (0.0, 0.0, sizes["push_height"] - sizes["object_half_height"])
    high = (0.0, 0.0, sizes["object_top"] + 0.06)
    behind = -sizes["object_radius"] - 0.04
    behind_object = partial(Phase, role="object", width_m=_FORK_M, toward="goal", along_m=behind)
    lift_hand = Phase(
        role=TOOL,
        offset=(0.0, 0.0, 0.06),
        width_m=_FORK_M,
        tolerance_m=0.0,
        max_steps=4 + round(sizes["object_top"] / 0.03),
    )
    phases = (
        behind_object(offset=high, follow="pose"),
        behind_object(offset=low, follow="pose", step_m=0.04, tolerance_m=0.01, max_steps=30),
        behind_object(offset=low, ahead_m=0.01, retry=3, tolerance_m=0.0, max_steps=200),
        behind_object(offset=low, ahead_m=-0.04, tolerance_m=0.0, max_steps=4),
        lift_hand,
    )
    return Script(phases=phases, hand="across")


def _push_cube(sizes: Sizes) -> Script:
    # Pushes go in every direction, and for some of them a hand across the push would exceed the wrist's range.
    return replace(_push_to_goal(sizes), hand="down")


def _press_button(sizes: Sizes) -> Script:
    beyond = -sizes["button_travel"] - 0.02
    phases = (
        Phase(role="button", offset=(0.0, 0.0, 0.06), width_m=0.0, follow="pose"),
        Phase(role="button", offset=(0.0, 0.0, beyond), width_m=0.0, follow="nothing", step_m=0.025, max_steps=40),
    )
    return Script(phases=phases)


def _stack(sizes: Sizes) -> Script:
    height = 2 * sizes["object_half_height"]
    over, on_top = (0.0, 0.0, height + 0.07), (0.0, 0.0, height + 0.003)
    phases = (
        *_grasp(sizes, "red"),
        Phase(role="red", offset=over, width_m=0.0, follow="nothing", carries="red", step_m=0.04, tolerance_m=0.03),
        Phase(role="blue", offset=over, width_m=0.0, carries="red", step_m=0.04, tolerance_m=0.005),
        Phase(role="blue", offset=on_top, width_m=0.0, carries="red", step_m=0.02, tolerance_m=0.004, max_steps=25),
        Phase(role="blue", offset=on_top, width_m=_OPEN_M, min_steps=5, max_steps=5),
        Phase(role="blue", offset=(0.0, 0.0, height + 0.12), width_m=_OPEN_M, step_m=0.03),
    )
    return Script(phases=phases)


def _pick_by_colour(sizes: Sizes) -> Script:
    return Script(phases=(*_grasp(sizes, NAMED), _raise(NAMED, sizes)), candidates=("red", "blue"))


def _sort_two(sizes: Sizes) -> Script:
    first = _transfer(sizes, "red", "left_bin", first=0)
    return Script(phases=(*first, *_transfer(sizes, "blue", "right_bin", first=len(first))))


def _at_handle() -> tuple[Phase, ...]:
    handle = (0.0, 0.0, 0.0)
    return (
        Phase(
            role="handle",
            offset=handle,
            width_m=_AROUND_HANDLE_M,
            follow="pose",
            step_m=0.03,
            tolerance_m=0.008,
            max_steps=30,
        ),
        Phase(role="handle", offset=handle, width_m=0.0, follow="nothing", min_steps=6, max_steps=6),
    )


def _close_drawer(sizes: Sizes) -> Script:
    del sizes
    phases = (
        Phase(role="handle", offset=(-0.075, 0.0, 0.09), width_m=_AROUND_HANDLE_M, follow="pose"),
        *_at_handle(),
        Phase(role="closed_handle", offset=(0.02, 0.0, 0.0), width_m=0.0, step_m=0.02, max_steps=80),
    )
    return Script(phases=phases, hand="forward")


def _open_microwave(sizes: Sizes) -> Script:
    del sizes
    ways = [
        Phase(role=f"way_{number}", offset=(0.0, 0.0, 0.0), width_m=0.0, step_m=0.025, max_steps=30)
        for number in range(1, 6)
    ]
    phases = (
        Phase(role="handle", offset=(0.0, 0.0, 0.08), width_m=_AROUND_HANDLE_M, follow="pose"),
        *_at_handle(),
        *ways,
    )
    return Script(phases=phases)


SCRIPTS: Mapping[str, Callable[[Sizes], Script]] = {
    "reach": _reach,
    "lift_object": _lift_object,
    "pick_and_place": _pick_and_place,
    "open_drawer": _open_drawer,
    "close_drawer": _close_drawer,
    "open_microwave": _open_microwave,
    "stack": _stack,
    "pick_by_colour": _pick_by_colour,
    "sort_two": _sort_two,
    "push_to_goal": _push_to_goal,
    "push_cube": _push_cube,
    "press_button": _press_button,
}
"""Name of a task to the function that makes its plan."""
