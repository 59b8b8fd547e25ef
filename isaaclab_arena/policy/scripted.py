"""A policy that solves the built-in tasks by a fixed plan and reads the simulation's state."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeGuard

import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.sim.backend import Backend, Simulated
from isaaclab_arena.sim.math import (
    apply_jacobian,
    clip_length,
    damped_least_squares,
    dot,
    multiply,
    norm,
    rotate,
    rotation_error,
    step_within_limits,
)
from isaaclab_arena.sim.scene import Robot

# Turn a goal pose into an action by one damped-least-squares step, in either action mode.
#
# Legend: n env slots, k arm joints. Elementwise arithmetic only; see `isaaclab_arena.sim.math`.

HAND_DOWN = (0.0, 1.0, 0.0, 0.0)
_DEGREES = math.pi / 180
HAND_FORWARD = tuple(
    half * 0.5**0.5
    for half in (math.sin(20 * _DEGREES), math.cos(20 * _DEGREES), math.cos(20 * _DEGREES), math.sin(20 * _DEGREES))
)

# A palm that points down would touch a tall object before the fingertips do.
_PUSH_TILT_SINE, _PUSH_TILT_COSINE = math.sin(15 * _DEGREES), math.cos(15 * _DEGREES)

_TURN_RAD = 0.25
_POSTURE_GAIN = 0.05
_HALF_SQRT = 0.5**0.5


class ArmMotion:
    """Steps of a robot's arm towards goal poses, in a simulation backend."""

    def __init__(self, robot: Robot, backend: Backend) -> None:
        self.robot = robot
        self.backend = backend
        self.positions, self.dofs = backend.joint_indices(robot.arm_joints)
        self.arm_controls = backend.actuator_indices(robot.arm_actuators)
        dtype = backend.qpos.dtype
        self.home = torch.tensor(robot.home, dtype=dtype, device=backend.device)
        self.low = torch.tensor(robot.joint_low, dtype=dtype, device=backend.device)
        self.high = torch.tensor(robot.joint_high, dtype=dtype, device=backend.device)

    def errors(self, position: torch.Tensor, orientation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors to a goal: translation [m] and rotation vector [rad], both of shape (n, 3)."""
        # The goal: the middle between the fingertips (n, 3), and the hand's orientation (n, 4).
        translation = position - self.tool_position()
        return translation, rotation_error(orientation, self.backend.body_orientation(self.robot.hand_body))

    def joint_targets(self, translation: torch.Tensor, rotation: torch.Tensor, step_m: torch.Tensor) -> torch.Tensor:
        """Return joint targets one control step towards a goal [rad]. Shape: (n, k)."""
        # Translation [m] and rotation [rad] to the goal have shape (n, 3); ``step_m`` (n,) limits the translation [m].
        joints = self.backend.qpos[:, self.positions]
        jacobian = self._jacobian()
        shorter = (step_m / norm(translation).clamp(min=1e-9)).clamp(max=1.0)
        twist = torch.cat((translation * shorter[:, None], clip_length(rotation, _TURN_RAD)), dim=-1)
        # A weak pull towards the home posture uses the redundant joints.
        posture = _POSTURE_GAIN * (self.home - joints)
        if self.robot.rotation_weight == 1.0:
            twist = twist - apply_jacobian(jacobian, posture)
            step = posture + damped_least_squares(jacobian, twist, self.robot.ik_damping)
            return torch.minimum(torch.maximum(joints + step, self.low), self.high)
        # If orientation has less weight than position, the step keeps the joint limits in the solution itself.
        return joints + step_within_limits(
            jacobian,
            twist,
            self.robot.ik_damping,
            rotation_weight=self.robot.rotation_weight,
            low=(self.low - joints).clamp(max=0.0),
            high=(self.high - joints).clamp(min=0.0),
        )

    def tool_position(self) -> torch.Tensor:
        """Return the middle between the fingertips [m], shape (n, 3); it moves if only one finger moves."""
        site = self.backend.site_position(self.robot.tcp_site)
        if not self.robot.right_finger_fixed:
            return site
        controls = self.backend.joint_position(self.robot.finger_joints[0])[:, 0]
        width = (controls - self.robot.gripper_closed) / self.robot.control_per_metre
        closed_by = (self.robot.gripper_width - width) / 2
        zero = torch.zeros_like(closed_by)
        shift = torch.stack((zero, -closed_by, zero), dim=-1)
        return site + rotate(self.backend.body_orientation(self.robot.hand_body), shift)

    def as_twist(self, joint_targets: torch.Tensor) -> torch.Tensor:
        """Return the end-effector step from the current joint targets to new ones. Shape: (n, 6)."""
        held = self.backend.ctrl[:, self.arm_controls]
        return apply_jacobian(self._jacobian(), joint_targets - held)

    def _jacobian(self) -> torch.Tensor:
        return self.backend.jacobian(self.robot.hand_body, self.robot.tcp_site)[:, :, self.dofs]


class Symmetry(Enum):
    """The yaws at which an upright object may be grasped from above; fingers along its y axis always work."""

    EVERY_YAW = "every yaw"
    QUARTER_TURNS = "quarter turns"
    HALF_TURNS = "half turns"

    @classmethod
    def of(cls, sizes: Mapping[str, float]) -> "Symmetry":
        """Return the symmetry of the object that a task's sizes describe."""
        if sizes.get("object_round", 1.0):
            return cls.EVERY_YAW
        return cls.HALF_TURNS if sizes.get("object_oblong", 0.0) else cls.QUARTER_TURNS


_QUARTER = ((_HALF_SQRT, _HALF_SQRT), (0.0, 1.0), (_HALF_SQRT, -_HALF_SQRT))
_OTHER_TURNS = {Symmetry.QUARTER_TURNS: _QUARTER, Symmetry.HALF_TURNS: ((0.0, 1.0),)}


def hand_down(object_orientation: torch.Tensor, symmetry: Symmetry, rest: Sequence[float] = HAND_DOWN) -> torch.Tensor:
    """Return the hand's orientation, pointing down, with fingers along sides of an upright object. Shape: (n, 4)."""
    # ``rest`` is the hand's orientation, pointing down, if any yaw works.
    down = constant(rest, object_orientation)
    if symmetry is Symmetry.EVERY_YAW:
        return down.expand_as(object_orientation)
    # Of the yaws that the symmetry allows, choose the one that needs the least turn.
    w, z = object_orientation[:, 0], object_orientation[:, 3]
    length = torch.sqrt(w * w + z * z).clamp(min=1e-9)
    w, z = w / length, z / length
    for cosine, sine in _OTHER_TURNS[symmetry]:
        other_w, other_z = w * cosine - z * sine, w * sine + z * cosine
        better = other_w.abs() > w.abs()
        w, z = torch.where(better, other_w, w), torch.where(better, other_z, z)
    zero = torch.zeros_like(w)
    pointing_down = constant(HAND_DOWN, w).expand(w.shape[0], 4)
    return multiply(torch.stack((w, zero, zero, z), dim=-1), pointing_down)


def hand_across(way: torch.Tensor, rest: Sequence[float], *, tilted: bool) -> torch.Tensor:
    """Return the hand's orientation for a push: pointing down, flat side across ``way``. Shape: (n, 4)."""
    # ``way`` holds unit vectors (n, 3) with z = 0. ``rest`` points down: a half turn about a horizontal axis.
    _, axis_x, axis_y, _ = rest
    along = constant((axis_x * axis_x - axis_y * axis_y, 2 * axis_x * axis_y, 0.0), way)
    aside = torch.stack((-along[1], along[0], along[2]))
    # The hand is symmetric, so half a turn is never needed.
    backward = dot(way, along) < 0
    forward = torch.where(backward[:, None], -way, way)
    w = torch.sqrt((1 + dot(forward, along)) / 2)
    zero = torch.zeros_like(w)
    held = constant(rest, w).expand(w.shape[0], 4)
    # A tilted hand leans 30 degrees forward.
    if tilted:
        sine = torch.where(backward, _PUSH_TILT_SINE, -_PUSH_TILT_SINE).to(w.dtype)
        tilt = torch.stack((zero + _PUSH_TILT_COSINE, sine * aside[0], sine * aside[1], zero), dim=-1)
        held = multiply(tilt, held)
    return multiply(torch.stack((w, zero, zero, dot(forward, aside) / (2 * w)), dim=-1), held)


def constant(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return numbers as a cached tensor of another's type and device; callers must not write to it."""
    # A transfer to a GPU waits for the GPU, so it happens once.
    return _constant(tuple(values), like.dtype, like.device)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # A tensor from inference mode could not be used outside of it.
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=dtype, device=device)


def horizontal_way(start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return direction and length [m] between points, seen from above. Shapes: (n, 3) -> (n, 3), (n,)."""
    way = end - start
    way = torch.stack((way[:, 0], way[:, 1], torch.zeros_like(way[:, 0])), dim=-1)
    length = norm(way)
    return way / length.clamp(min=1e-9)[:, None], length


# Define the plan for each task: phases of a motion, relative to objects in the scene.

Sizes: TypeAlias = Mapping[str, float]
"""Lengths of the task's objects [m]; see `isaaclab_arena.sim.backend.Simulated`."""

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
    """One phase of a motion: move the tool centre point to a goal, then start the next phase."""

    role: str  # the landmark that the goal is relative to
    offset: tuple[float, float, float]  # from the landmark to the goal, in the world frame [m]
    width_m: float  # distance between the fingers [m]
    # During the phase the goal follows the landmark's pose (position and yaw), its place, or nothing: then it stays.
    follow: Literal["pose", "place", "nothing"] = "place"
    toward: str = ""  # another landmark; the goal shifts along the horizontal line from ``role`` to it
    along_m: float = 0.0  # length of the shift, negative for away from ``toward`` [m]
    # If not 0, the goal is this far ahead of the tool on that line, until ``role`` is at ``toward``; negative to move
    # back [m].
    ahead_m: float = 0.0
    carries: str = ""  # the landmark that must be at the fingertips
    # The next phase if the carried object was dropped, or if the tool is no longer behind the pushed one.
    retry: int = 0
    step_m: float = 0.06  # longest step in one control step [m]
    tolerance_m: float = 0.02  # distance at which the goal counts as reached [m]
    min_steps: int = 0  # shortest duration [control steps]
    max_steps: int = 60  # longest duration, after which the next phase begins anyway [control steps]


@dataclass(frozen=True, kw_only=True)
class Script:
    """The plan for a task."""

    phases: tuple[Phase, ...]  # in order; the last one lasts until the episode ends or the plan restarts
    # The hand points down and turns with the landmark, points down with its flat side across the line to ``toward``, or
    # points forward along +x.
    hand: Literal["down", "across", "forward"] = "down"
    grip_m: float = 0.0  # height above its centre at which an object is held [m]
    candidates: tuple[str, ...] = ()  # landmarks from which the instruction chooses one; see `NAMED`


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
    """Return the grasp's height above the object's centre [m], so that a tall object does not touch the palm."""
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
    # Heights are for the fingertips, which hold the object above its centre.
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
    # The hand starts behind the object, seen from the goal; the last phases draw back and start again.
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


# The phases of a script as tensors, so that every env slot can look up its own.


class PhaseTables:
    """Tables with one entry per phase; `Phase` explains the values, and `speed` scales ``step_m``."""

    def __init__(self, phases: Sequence[Phase], roles: Sequence[str], backend: Backend, *, speed: float) -> None:
        self._backend = backend
        # ``role``, ``toward`` and ``carries`` are indices into ``roles``, 0 for none.
        place = {"": 0, **{role: index for index, role in enumerate(roles)}}
        self.role = self._table([place[phase.role] for phase in phases])
        self.toward = self._table([place[phase.toward] for phase in phases])
        self.any_toward = any(phase.toward for phase in phases)
        self.carries = self._table([place[phase.carries] for phase in phases])
        self.carrying = self._table([bool(phase.carries) for phase in phases])
        self.retry = self._table([phase.retry for phase in phases])
        self.follows_pose = self._table([phase.follow == "pose" for phase in phases])
        self.follows_place = self._table([phase.follow != "nothing" for phase in phases])
        self.offset = self._table([phase.offset for phase in phases])
        self.along_m = self._table([phase.along_m for phase in phases])
        self.ahead_m = self._table([phase.ahead_m for phase in phases])
        self.width_m = self._table([phase.width_m for phase in phases])
        self.step_m = self._table([phase.step_m for phase in phases]) * speed
        self.tolerance_m = self._table([phase.tolerance_m for phase in phases])
        self.min_steps = self._table([phase.min_steps for phase in phases])
        self.max_steps = self._table([phase.max_steps for phase in phases])

    def _table(self, values: Sequence[object]) -> torch.Tensor:
        table = torch.tensor(values, device=self._backend.device)
        return table.to(self._backend.qpos.dtype) if table.is_floating_point() else table


# The scripted policy, which runs one state machine per env slot over the phases of a task's plan.

_TURNED_RAD = 0.1
_TURNED_ROUGHLY_RAD = 0.4
_AT_FINGERTIPS_M = 0.06
_ARRIVED_M = 0.015
_NEAR_M = 0.04
_CENTRING = 0.1
_BEHIND_COSINE = 0.7


@dataclass(frozen=True)
class ScriptedPolicyCfg:
    """Options of the scripted policy.

    Attributes:
        speed: Factor on the speed of the arm, above 0 and at most 1.
    """

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise ValueError(f"speed must be above 0 and at most 1, got {self.speed}")


class ScriptedPolicy(PolicyBase[ScriptedPolicyCfg]):
    """Follows the plan in `scripts` for the environment's task, and the episode's instruction if the plan needs it."""

    # It reads the simulation's state and draws no random numbers. The actions of an env slot depend on that env slot
    # only, to the last bit.
    name = "scripted"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)
    config_class = ScriptedPolicyCfg

    def __init__(self, config: ScriptedPolicyCfg | None = None) -> None:
        super().__init__(config or ScriptedPolicyCfg())
        self._player: _Player | None = None

    @classmethod
    def check_fit(cls, config: ScriptedPolicyCfg, env: Environment) -> None:
        """Refuse by ConfigError an environment whose task has no plan."""
        del config
        simulated = env.unwrapped
        if not _has_plan(simulated):
            raise ConfigError(_why_no_plan(simulated))

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Restart the plan in the env slots that start an episode; PolicyError if there is no plan."""
        player = self._player_of(env)
        super().start_episodes(env, starts)
        for start in starts:
            player.instruct(start.env_id, start.language_instruction)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Restart the plan in the named env slots, or in all if None."""
        if self._player is not None:
            self._player.restart(slice(None) if env_ids is None else env_ids.to(self._player.backend.device))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next step of the plan, shape (num_envs, action_dim), float32; PolicyError if there is no plan."""
        del observation
        return self._player_of(env).action().to(env.device, torch.float32)

    def _player_of(self, env: Environment) -> "_Player":
        simulated = env.unwrapped
        if self._player is None or self._player.env is not simulated:
            self._player = _Player(simulated, speed=self.config.speed if self.config else 1.0)
        return self._player


def _has_plan(env: Any) -> TypeGuard[Simulated]:
    """Whether an environment shows its simulation and has a task with a script."""
    return hasattr(env, "backend") and getattr(env, "task_name", None) in SCRIPTS


def _why_no_plan(env: Environment) -> str:
    name = getattr(env, "task_name", None)
    if name is None:
        return "the scripted policy drives an arm in a simulation, and this environment shows none"
    return f"the scripted policy has no plan for '{name}'; it has plans for {', '.join(SCRIPTS)}"


class _Player:
    """Plays a script in all env slots of one environment."""

    def __init__(self, env: Environment, *, speed: float) -> None:
        if not _has_plan(env):
            raise PolicyError(_why_no_plan(env))
        self.env = env
        self.backend = env.backend
        self.script: Script = SCRIPTS[env.task_name](env.sizes)
        self.motion = ArmMotion(env.robot, env.backend)
        self.symmetry = Symmetry.of(env.sizes)
        # An arm that may be unable to reach the hand's orientation must not wait for it.
        self.turned_rad = _TURNED_RAD if env.robot.rotation_weight == 1.0 else _TURNED_ROUGHLY_RAD
        phases = self.script.phases
        grip = (0.0, 0.0, self.script.grip_m)
        self.grip = torch.tensor(grip, dtype=self.backend.qpos.dtype, device=self.backend.device)
        self.slots = torch.arange(env.num_envs, device=self.backend.device)
        self.phase = torch.zeros_like(self.slots)
        self.steps = torch.zeros_like(self.slots)
        self.named = torch.zeros_like(self.slots)
        self.roles = sorted({role for phase in phases for role in (phase.role, phase.toward, phase.carries) if role})
        self.tables = PhaseTables(phases, self.roles, self.backend, speed=speed)
        self.anchors = self._landmarks()
        self.hand = self._hand_goal(self.anchors)

    def restart(self, env_ids: torch.Tensor | slice) -> None:
        self.phase[env_ids] = 0
        self.steps[env_ids] = 0

    def instruct(self, env_id: int, instruction: str) -> None:
        """Select the script's candidate that an instruction names; the first if it names none."""
        words = instruction.lower().split()
        named = [index for index, role in enumerate(self.script.candidates) if role in words]
        self.named[env_id] = named[0] if named else 0

    def action(self) -> torch.Tensor:
        """Return the next action of all env slots. Shape: (num_envs, action_dim)."""
        now, tables = self._landmarks(), self.tables

        # A phase that carries an object is tried again if the object is no longer between the fingertips.
        tcp = self.motion.tool_position()
        held = now[tables.carries[self.phase], self.slots] + self.grip
        dropped = tables.carrying[self.phase] & (norm(held - tcp) > _AT_FINGERTIPS_M)
        self.steps = torch.where(dropped, 0, self.steps)
        self.phase = torch.where(dropped, tables.retry[self.phase], self.phase)

        # A push is tried again if the tool is no longer behind the object.
        if tables.any_toward:
            pushed = now[tables.role[self.phase], self.slots]
            way, rest = horizontal_way(pushed, now[tables.toward[self.phase], self.slots])
            ahead, _ = horizontal_way(self.motion.tool_position(), pushed)
            beside = (tables.ahead_m[self.phase] > 0) & (dot(way, ahead) < _BEHIND_COSINE) & (rest > _NEAR_M)
            self.steps = torch.where(beside, 0, self.steps)
            self.phase = torch.where(beside, tables.retry[self.phase], self.phase)

        # Anchors remember a landmark's last followed position, for phases that follow nothing.
        for index in range(len(self.roles)):
            following = (tables.role[self.phase] == index) & tables.follows_place[self.phase]
            self.anchors[index] = torch.where(following[:, None], now[index], self.anchors[index])
        turning = tables.follows_pose[self.phase]
        self.hand = torch.where(turning[:, None], self._hand_goal(now), self.hand)

        # Arrival ends a phase, as does its maximum of steps. Only the maximum ends the last one, and restarts the plan.
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        there = (norm(translation) < tables.tolerance_m[self.phase]) & (norm(rotation) < self.turned_rad)
        done = there & (self.steps >= tables.min_steps[self.phase]) | (self.steps >= tables.max_steps[self.phase])
        last = self.phase == len(self.script.phases) - 1
        again = last & (self.steps >= tables.max_steps[self.phase])
        self.steps = torch.where((done & ~last) | again, 0, self.steps + 1)
        self.phase = torch.where(again, 0, torch.where(done & ~last, self.phase + 1, self.phase))

        # The phase may have advanced, so the errors are computed again for the new goal.
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        targets = self.motion.joint_targets(translation, rotation, tables.step_m[self.phase])
        arm = targets if self.env.action_mode_name == "joint_position" else self.motion.as_twist(targets)
        if self.env.robot.gripper_actuator is None:
            return arm
        return torch.cat((arm, tables.width_m[self.phase][:, None]), dim=-1)

    def _goal(self, now: torch.Tensor) -> torch.Tensor:
        tables = self.tables
        followed = tables.follows_place[self.phase]
        role = tables.role[self.phase]
        place = torch.where(followed[:, None], now[role, self.slots], self.anchors[role, self.slots])
        goal = place + tables.offset[self.phase]
        if not tables.any_toward:
            return goal
        way, rest = horizontal_way(place, now[tables.toward[self.phase], self.slots])
        behind = goal + way * tables.along_m[self.phase][:, None]

        # A push aims ahead of the tool, and slightly back to the line behind the landmark.
        tcp = self.motion.tool_position()
        missing = behind - tcp
        aside = missing - way * dot(missing, way)[:, None]
        step = torch.minimum(tables.ahead_m[self.phase], rest)
        arrived = (step > 0) & (rest < _ARRIVED_M)
        pushed = tcp + way * step[:, None] + aside * constant((_CENTRING, _CENTRING, 1.0), tcp)
        pushing = tables.ahead_m[self.phase] != 0
        return torch.where(pushing[:, None], torch.where(arrived[:, None], tcp, pushed), behind)

    def _hand_goal(self, now: torch.Tensor) -> torch.Tensor:
        if self.script.hand == "forward":
            forward = constant(HAND_FORWARD, self.backend.qpos)
            return forward.expand(self.env.num_envs, 4)
        robot, role = self.env.robot, self.tables.role[self.phase]
        if self.script.hand == "across":
            way, _ = horizontal_way(now[role, self.slots], now[self.tables.toward[self.phase], self.slots])
            return hand_across(way, robot.hand_down, tilted=robot.rotation_weight == 1.0)
        # The orientations of the landmarks of all roles: (num_roles, num_envs, 4).
        orientations = torch.stack([self._of_role(name, self._orientation) for name in self.roles])
        return hand_down(orientations[role, self.slots], self.symmetry, robot.hand_down)

    def _landmarks(self) -> torch.Tensor:
        """Return the positions of the landmarks of all roles. Shape: (num_roles, num_envs, 3)."""
        return torch.stack([self._of_role(role, self._position) for role in self.roles])

    def _of_role(self, role: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        if role == TOOL:
            return read(self.env.robot.tcp_site)
        if role != NAMED:
            return read(self.env.landmarks[role])
        candidates = [read(self.env.landmarks[candidate]) for candidate in self.script.candidates]
        return torch.stack(candidates)[self.named, self.slots]

    def _position(self, name: str) -> torch.Tensor:
        known_site = name in self.backend.names.sites
        return self.backend.site_position(name) if known_site else self.backend.body_position(name)

    def _orientation(self, name: str) -> torch.Tensor:
        if name in self.backend.names.bodies:
            return self.backend.body_orientation(name)
        upright = constant((1.0, 0.0, 0.0, 0.0), self.backend.qpos)
        return upright.expand(self.env.num_envs, 4)
