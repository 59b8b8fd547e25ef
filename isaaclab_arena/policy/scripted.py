"""Policies that solve tasks by a fixed plan: the built-in tasks, and tasks of LIBERO, robosuite and Meta-World."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.sim import math as sim_math
from isaaclab_arena.sim.backend import Backend, Simulated
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
        return translation, sim_math.rotation_error(orientation, self.backend.body_orientation(self.robot.hand_body))

    def joint_targets(self, translation: torch.Tensor, rotation: torch.Tensor, step_m: torch.Tensor) -> torch.Tensor:
        """Return joint targets one control step towards a goal [rad]. Shape: (n, k)."""
        # Translation [m] and rotation [rad] to the goal have shape (n, 3); ``step_m`` (n,) limits the translation [m].
        joints = self.backend.qpos[:, self.positions]
        # The Jacobian of the tool in the arm's joints, (n, 6, k).
        jacobian = self.backend.jacobian(self.robot.hand_body, self.robot.tcp_site)[:, :, self.dofs]
        # The part of the way that one step goes.
        steps = sim_math.clip_length(translation, step_m), sim_math.clip_length(rotation, _TURN_RAD)
        twist = torch.cat(steps, dim=-1)
        # A weak pull towards the home posture uses the redundant joints.
        posture = _POSTURE_GAIN * (self.home - joints)
        if self.robot.rotation_weight == 1.0:
            twist = twist - sim_math.apply_jacobian(jacobian, posture)
            step = posture + sim_math.damped_least_squares(jacobian, twist, self.robot.ik_damping)
            return torch.minimum(torch.maximum(joints + step, self.low), self.high)
        # If orientation has less weight than position, the step keeps the joint limits in the solution itself.
        return joints + sim_math.step_within_limits(
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
        return site + sim_math.rotate(self.backend.body_orientation(self.robot.hand_body), shift)


class Symmetry(Enum):
    """The yaws at which an upright object may be grasped from above; fingers along its y axis always work."""

    # Cosine and sine of half of each further turn that works.
    EVERY_YAW = ()
    QUARTER_TURNS = ((_HALF_SQRT, _HALF_SQRT), (0.0, 1.0), (_HALF_SQRT, -_HALF_SQRT))
    HALF_TURNS = ((0.0, 1.0),)


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
    for cosine, sine in symmetry.value:
        other_w, other_z = w * cosine - z * sine, w * sine + z * cosine
        better = other_w.abs() > w.abs()
        w, z = torch.where(better, other_w, w), torch.where(better, other_z, z)
    zero = torch.zeros_like(w)
    pointing_down = constant(HAND_DOWN, w).expand(w.shape[0], 4)
    return sim_math.multiply(torch.stack((w, zero, zero, z), dim=-1), pointing_down)


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
    length = sim_math.norm(way)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Script:
    """The plan for a task."""

    phases: tuple[Phase, ...]  # in order; the last one lasts until the episode ends or the plan restarts
    # The hand points down and turns with the landmark, points down with its flat side across the line to ``toward``, or
    # points forward along +x.
    hand: Literal["down", "across", "forward"] = "down"
    grip_m: float = 0.0  # height above its centre at which an object is held [m]
    candidates: tuple[str, ...] = ()  # landmarks from which the instruction chooses one; see `NAMED`


def scripts(sizes: Sizes) -> dict[str, Script]:
    """Return the plan of each task by its name, for objects of these sizes; lengths of other tasks may be missing."""
    size = defaultdict(float, sizes)
    # The grasp's height above the object's centre [m], so that a tall object does not touch the palm.
    grip_m = max(0.0, size["object_top"] - _FINGER_DEPTH_M)

    def at(height_m: float) -> tuple[float, float, float]:
        return (0.0, 0.0, height_m)

    def grasp(role: str) -> tuple[Phase, ...]:
        return (
            Phase(role, at(size["object_top"] + 0.08), _OPEN_M, "pose"),
            Phase(role, at(grip_m), _OPEN_M, "pose", step_m=0.03, tolerance_m=0.006, max_steps=30),
            Phase(role, at(grip_m), 0.0, "nothing", min_steps=6, max_steps=6),
        )

    def lift(role: str) -> tuple[Phase, ...]:
        up = Phase(role, at(0.18 + grip_m), 0.0, "nothing", carries=role, step_m=0.03, max_steps=FOREVER)
        return (*grasp(role), up)

    def transfer(role: str, place: str, *, first: int = 0) -> tuple[Phase, ...]:
        """Return the phases that bring one object into one bin; ``first`` is their index in the script."""
        # Heights are for the fingertips, which hold the object above its centre.
        held_m = size["object_half_height"] + grip_m
        inside, over = at(size["bin_floor"] + held_m + 0.01), at(size["bin_rim"] + held_m + 0.05)
        carry = partial(Phase, width_m=0.0, carries=role, retry=first)
        return (
            *grasp(role),
            carry(role, over, follow="nothing", step_m=0.04, tolerance_m=0.03),
            carry(place, over, step_m=0.04, tolerance_m=0.015),
            carry(place, inside, step_m=0.03, tolerance_m=0.01, max_steps=20),
            Phase(place, inside, _OPEN_M, min_steps=4, max_steps=4),
            Phase(place, at(over[2] + 0.1), _OPEN_M, max_steps=40),
        )

    # Take a handle.
    to_handle = Phase("handle", (-0.075, 0.0, 0.09), _AROUND_HANDLE_M, "pose")
    at_handle = (
        Phase("handle", at(0.0), _AROUND_HANDLE_M, "pose", step_m=0.03, tolerance_m=0.008, max_steps=30),
        Phase("handle", at(0.0), 0.0, "nothing", min_steps=6, max_steps=6),
    )
    pull = Phase("handle", (-1.25 * size["drawer_threshold"], 0.0, 0.0), 0.0, "nothing", step_m=0.02, max_steps=80)
    shut = Phase("closed_handle", (0.02, 0.0, 0.0), 0.0, step_m=0.02, max_steps=80)
    ways = [Phase(f"way_{number}", at(0.0), 0.0, step_m=0.025, max_steps=30) for number in range(1, 6)]

    # Push: the hand starts behind the object, seen from the goal; the last phases draw back and start again.
    low, lift_steps = at(size["push_height"] - size["object_half_height"]), 4 + round(size["object_top"] / 0.03)
    behind_m = -size["object_radius"] - 0.04
    push = partial(Phase, "object", width_m=_FORK_M, toward="goal", along_m=behind_m)
    pushes = (
        push(at(size["object_top"] + 0.06), follow="pose"),
        push(low, follow="pose", step_m=0.04, tolerance_m=0.01, max_steps=30),
        push(low, ahead_m=0.01, retry=3, tolerance_m=0.0, max_steps=200),
        push(low, ahead_m=-0.04, tolerance_m=0.0, max_steps=4),
        Phase(TOOL, at(0.06), _FORK_M, tolerance_m=0.0, max_steps=lift_steps),
    )

    height_m, first = 2 * size["object_half_height"], transfer("red", "left_bin")
    over, on_top = at(height_m + 0.07), at(height_m + 0.003)
    stack = (
        *grasp("red"),
        Phase("red", over, 0.0, "nothing", carries="red", step_m=0.04, tolerance_m=0.03),
        Phase("blue", over, 0.0, carries="red", step_m=0.04, tolerance_m=0.005),
        Phase("blue", on_top, 0.0, carries="red", step_m=0.02, tolerance_m=0.004, max_steps=25),
        Phase("blue", on_top, _OPEN_M, min_steps=5, max_steps=5),
        Phase("blue", at(height_m + 0.12), _OPEN_M, step_m=0.03),
    )
    press = (
        Phase("button", at(0.06), 0.0, "pose"),
        Phase("button", at(-size["button_travel"] - 0.02), 0.0, "nothing", step_m=0.025, max_steps=40),
    )
    return {
        "reach": Script((Phase("target", at(0.0), _OPEN_M, "pose", max_steps=FOREVER),)),
        "lift_object": Script(lift("object"), grip_m=grip_m),
        "pick_and_place": Script(transfer("object", "bin"), grip_m=grip_m),
        "open_drawer": Script((to_handle, *at_handle, pull), hand="forward"),
        "close_drawer": Script((to_handle, *at_handle, shut), hand="forward"),
        "open_microwave": Script((Phase("handle", at(0.08), _AROUND_HANDLE_M, "pose"), *at_handle, *ways)),
        "stack": Script(stack),
        "pick_by_colour": Script(lift(NAMED), candidates=("red", "blue")),
        "sort_two": Script((*first, *transfer("blue", "right_bin", first=len(first)))),
        "push_to_goal": Script(pushes, hand="across"),
        # Pushes go in every direction, and for some of them a hand across the push would exceed the wrist's range.
        "push_cube": Script(pushes),
        "press_button": Script(press),
    }


TASKS = tuple(scripts({}))
"""The tasks for which there is a plan."""


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

    def __init__(self, config: ScriptedPolicyCfg | None = None) -> None:
        super().__init__(config or ScriptedPolicyCfg())
        self._player: _Player | None = None

    @classmethod
    def check_fit(cls, config: ScriptedPolicyCfg, env: Environment) -> None:
        """Refuse by ConfigError an environment whose task has no plan."""
        del config
        _with_plan(env.unwrapped, ConfigError)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Restart the plan in the env slots that start an episode; PolicyError if there is no plan."""
        player = self._player_of(env)
        super().start_episodes(env, starts)
        for start in starts:
            # Select the script's candidate that the instruction names; the first if it names none.
            words = start.language_instruction.lower().split()
            named = [index for index, role in enumerate(player.script.candidates) if role in words]
            player.named[start.env_id] = named[0] if named else 0

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Restart the plan in the named env slots, or in all if None."""
        if self._player is not None:
            slots = slice(None) if env_ids is None else env_ids.to(self._player.backend.device)
            self._player.phase[slots] = 0
            self._player.steps[slots] = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next step of the plan, shape (num_envs, action_dim), float32; PolicyError if there is no plan."""
        del observation
        return self._player_of(env).action().to(env.device, torch.float32)

    def _player_of(self, env: Environment) -> "_Player":
        simulated = env.unwrapped
        if self._player is None or self._player.env is not simulated:
            self._player = _Player(simulated, speed=self.config.speed)
        return self._player


def _with_plan(env: Any, refusal: type[ArenaError]) -> Simulated:
    """Return an environment that shows its simulation and has a task with a script; raise ``refusal`` for others."""
    name = getattr(env, "task_name", None)
    if hasattr(env, "backend") and name in TASKS:
        return env
    if name is None:
        raise refusal("the scripted policy needs a simulated arm, which this environment does not have")
    raise refusal(f"the scripted policy has no plan for '{name}'; it has plans for {', '.join(TASKS)}")


class _Player:
    """Plays a script in all env slots of one environment."""

    def __init__(self, environment: Environment, *, speed: float) -> None:
        env = self.env = _with_plan(environment, PolicyError)
        self.backend = env.backend
        self.script: Script = scripts(env.sizes)[env.task_name]
        self.motion = ArmMotion(env.robot, env.backend)
        self.symmetry = Symmetry.HALF_TURNS if env.sizes.get("object_oblong", 0.0) else Symmetry.QUARTER_TURNS
        if env.sizes.get("object_round", 1.0):
            self.symmetry = Symmetry.EVERY_YAW
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
        self.any_toward = any(phase.toward for phase in phases)

        # Tables with one entry per phase, which `Phase` explains; ``role``, ``toward`` and ``carries`` are indices into
        # ``roles``, 0 for none.
        place = {"": 0, **{role: index for index, role in enumerate(self.roles)}}
        plain = ["retry", "offset", "along_m", "ahead_m", "width_m", "step_m", "tolerance_m", "min_steps", "max_steps"]
        values: dict[str, list[Any]] = {
            **{name: [place[getattr(phase, name)] for phase in phases] for name in ("role", "toward", "carries")},
            **{name: [getattr(phase, name) for phase in phases] for name in plain},
            "carrying": [bool(phase.carries) for phase in phases],
            "follows_pose": [phase.follow == "pose" for phase in phases],
            "follows_place": [phase.follow != "nothing" for phase in phases],
        }
        found = {name: torch.tensor(column, device=self.backend.device) for name, column in values.items()}
        dtype = self.backend.qpos.dtype
        self.tables = {name: each.to(dtype) if each.is_floating_point() else each for name, each in found.items()}
        self.tables["step_m"] = self.tables["step_m"] * speed
        self.anchors = self._of_roles("position")
        self.hand = self._hand_goal(self.anchors)

    def action(self) -> torch.Tensor:
        """Return the next action of all env slots. Shape: (num_envs, action_dim)."""
        now = self._of_roles("position")

        # A phase that carries an object is tried again if the object is no longer between the fingertips.
        tcp = self.motion.tool_position()
        held = now[self._now("carries"), self.slots] + self.grip
        dropped = self._now("carrying") & (sim_math.norm(held - tcp) > _AT_FINGERTIPS_M)
        self.steps = torch.where(dropped, 0, self.steps)
        self.phase = torch.where(dropped, self._now("retry"), self.phase)

        # A push is tried again if the tool is no longer behind the object.
        if self.any_toward:
            pushed = now[self._now("role"), self.slots]
            way, rest = horizontal_way(pushed, now[self._now("toward"), self.slots])
            ahead, _ = horizontal_way(self.motion.tool_position(), pushed)
            beside = (self._now("ahead_m") > 0) & (sim_math.dot(way, ahead) < _BEHIND_COSINE) & (rest > _NEAR_M)
            self.steps = torch.where(beside, 0, self.steps)
            self.phase = torch.where(beside, self._now("retry"), self.phase)

        # Anchors remember a landmark's last followed position, for phases that follow nothing.
        for index in range(len(self.roles)):
            following = (self._now("role") == index) & self._now("follows_place")
            self.anchors[index] = torch.where(following[:, None], now[index], self.anchors[index])
        turning = self._now("follows_pose")
        self.hand = torch.where(turning[:, None], self._hand_goal(now), self.hand)

        # Arrival ends a phase, as does its maximum of steps. Only the maximum ends the last one, and restarts the plan.
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        there = (sim_math.norm(translation) < self._now("tolerance_m")) & (sim_math.norm(rotation) < self.turned_rad)
        done = there & (self.steps >= self._now("min_steps")) | (self.steps >= self._now("max_steps"))
        last = self.phase == len(self.script.phases) - 1
        again = last & (self.steps >= self._now("max_steps"))
        self.steps = torch.where((done & ~last) | again, 0, self.steps + 1)
        self.phase = torch.where(again, 0, torch.where(done & ~last, self.phase + 1, self.phase))

        # The phase may have advanced, so the errors are computed again for the new goal.
        translation, rotation = self.motion.errors(self._goal(now), self.hand)
        targets = self.motion.joint_targets(translation, rotation, self._now("step_m"))
        if self.env.action_mode_name == "joint_position":
            arm = targets
        else:
            # The end-effector step from the current joint targets to the new ones.
            held = self.backend.ctrl[:, self.motion.arm_controls]
            jacobian = self.backend.jacobian(self.env.robot.hand_body, self.env.robot.tcp_site)[:, :, self.motion.dofs]
            arm = sim_math.apply_jacobian(jacobian, targets - held)
        if self.env.robot.gripper_actuator is None:
            return arm
        return torch.cat((arm, self._now("width_m")[:, None]), dim=-1)

    def _now(self, name: str) -> torch.Tensor:
        """Return a value of the phase of each env slot."""
        return self.tables[name][self.phase]

    def _goal(self, now: torch.Tensor) -> torch.Tensor:
        followed = self._now("follows_place")
        role = self._now("role")
        place = torch.where(followed[:, None], now[role, self.slots], self.anchors[role, self.slots])
        goal = place + self._now("offset")
        if not self.any_toward:
            return goal
        way, rest = horizontal_way(place, now[self._now("toward"), self.slots])
        behind = goal + way * self._now("along_m")[:, None]

        # A push aims ahead of the tool, and slightly back to the line behind the landmark.
        tcp = self.motion.tool_position()
        missing = behind - tcp
        aside = missing - way * sim_math.dot(missing, way)[:, None]
        step = torch.minimum(self._now("ahead_m"), rest)
        arrived = (step > 0) & (rest < _ARRIVED_M)
        pushed = tcp + way * step[:, None] + aside * constant((_CENTRING, _CENTRING, 1.0), tcp)
        pushing = self._now("ahead_m") != 0
        return torch.where(pushing[:, None], torch.where(arrived[:, None], tcp, pushed), behind)

    def _hand_goal(self, now: torch.Tensor) -> torch.Tensor:
        if self.script.hand == "forward":
            forward = constant(HAND_FORWARD, self.backend.qpos)
            return forward.expand(self.env.num_envs, 4)
        robot, role = self.env.robot, self._now("role")
        if self.script.hand == "across":
            # For a push the hand points down, with its flat side across the way (unit vectors). At rest it points down
            # too: a half turn about a horizontal axis.
            way, _ = horizontal_way(now[role, self.slots], now[self._now("toward"), self.slots])
            _, axis_x, axis_y, _ = robot.hand_down
            along = constant((axis_x * axis_x - axis_y * axis_y, 2 * axis_x * axis_y, 0.0), way)
            aside = torch.stack((-along[1], along[0], along[2]))
            # The hand is symmetric, so half a turn is never needed.
            backward = sim_math.dot(way, along) < 0
            forward = torch.where(backward[:, None], -way, way)
            w = torch.sqrt((1 + sim_math.dot(forward, along)) / 2)
            zero = torch.zeros_like(w)
            held = constant(robot.hand_down, w).expand(w.shape[0], 4)
            # It leans 30 degrees forward, unless orientation has less weight than position.
            if robot.rotation_weight == 1.0:
                sine = torch.where(backward, _PUSH_TILT_SINE, -_PUSH_TILT_SINE).to(w.dtype)
                tilt = torch.stack((zero + _PUSH_TILT_COSINE, sine * aside[0], sine * aside[1], zero), dim=-1)
                held = sim_math.multiply(tilt, held)
            return sim_math.multiply(torch.stack((w, zero, zero, sim_math.dot(forward, aside) / (2 * w)), dim=-1), held)
        orientations = self._of_roles("orientation")
        return hand_down(orientations[role, self.slots], self.symmetry, robot.hand_down)

    def _of_roles(self, kind: Literal["position", "orientation"]) -> torch.Tensor:
        """Read the landmarks of all roles. Shape of positions: (num_roles, num_envs, 3), of orientations: (…, 4)."""
        found, backend = [], self.backend
        for role in self.roles:
            values = []
            for landmark in self.script.candidates if role == NAMED else (role,):
                name = self.env.robot.tcp_site if landmark == TOOL else self.env.landmarks[landmark]
                if kind == "position":
                    is_site = name in backend.names.sites
                    values.append(backend.site_position(name) if is_site else backend.body_position(name))
                elif name in backend.names.bodies:
                    values.append(backend.body_orientation(name))
                else:
                    # A place without a body is upright.
                    upright = constant((1.0, 0.0, 0.0, 0.0), backend.qpos)
                    values.append(upright.expand(self.env.num_envs, 4))
            found.append(torch.stack(values)[self.named, self.slots] if role == NAMED else values[0])
        return torch.stack(found)


# Scripted experts for robosuite's Lift, Stack and PickPlaceCan, which see nothing but the observation.

ACTION_DIM = 7
"""Three of the gripper's place, three of its turn, and one for its fingers."""

OPEN, CLOSE = -1.0, 1.0

_OPENED_M = 0.07
_STILL_M_S = 0.02
_UP_M = np.array([0.0, 0.0, 0.1])

# OSC_POSE moves at most 5 cm or 0.5 rad in one control step. It lags behind, so the gain is above 1.
_ASKED_PER_M = 1.5 / 0.05
_ASKED_PER_RAD = 1.5 / 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A task's object to pick, and the place to put it."""

    thing: str  # the object to pick
    grip: tuple[float, float, float] = (0.0, 0.0, 0.0)  # the grasp, from the object's origin along the world's axes [m]
    has_corners: bool = True  # True if the fingers must align with its sides
    onto: str | None = None  # the object to put it onto, None for a place or only a lift
    # The place relative to ``onto`` if there is one, else in the world [m]; None for only a lift.
    place: tuple[float, float, float] | None = None
    tolerance_m: float = 0.008  # largest error of the place [m]
    clearance_m: float = 0.08  # height above the place while it is carried [m]


PLANS: Mapping[str, Plan] = {
    "Lift": Plan(thing="cube"),
    "Stack": Plan(thing="cubeA", onto="cubeB", place=(0.0, 0.0, 0.0465)),
    "PickPlaceCan": Plan(
        thing="Can", has_corners=False, place=(0.1975, 0.4025, 0.88), tolerance_m=0.03, clearance_m=0.15
    ),
}
"""The tasks for which there is an expert."""


def expert_action(plan: Plan, observed: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the expert's action in one env slot, shape (7,), float32, in [-1, 1]; it has no memory."""
    # Terms of the observation by name, of robosuite's first robot and of the objects.
    gripper, thing = observed["robot0_eef_pos"], observed[f"{plan.thing}_pos"]
    left, right = observed["robot0_gripper_qpos"]
    opening_m, is_still = left - right, bool(np.abs(observed["robot0_gripper_qvel"]).max() < _STILL_M_S)
    grip = thing + plan.grip
    off_m, above_m = float(np.linalg.norm(gripper[:2] - grip[:2])), float(gripper[2] - grip[2])
    is_around = off_m < 0.02 and abs(above_m) < 0.02
    is_held = is_around and is_still and opening_m < 0.075
    # In this order: release a placed object, carry a held one, close around one, else approach.
    if plan.place is not None:
        place = np.asarray(plan.place) + (observed[f"{plan.onto}_pos"] if plan.onto else 0.0)
        if np.linalg.norm(thing[:2] - place[:2]) < 1.5 * plan.tolerance_m and thing[2] - place[2] < 0.005:
            return _towards(_UP_M if opening_m > _OPENED_M else np.zeros(3), fingers=OPEN)
        if is_held:
            # Up, then over its place, then down.
            far_m, height_m = float(np.linalg.norm(thing[:2] - place[:2])), float(thing[2] - place[2])
            wanted = place.copy()
            if far_m > 2 * plan.tolerance_m:
                wanted[2] += plan.clearance_m
                if height_m < 0.6 * plan.clearance_m:
                    wanted[:2] = thing[:2]
            else:
                wanted[2] = max(wanted[2] - 0.01, thing[2] - 0.03) if far_m < plan.tolerance_m else thing[2]
            return _towards(wanted - thing, fingers=CLOSE)
    elif is_held:
        return _towards(_UP_M, fingers=CLOSE)
    if is_around and off_m < 0.012:
        return _towards(grip - gripper, fingers=CLOSE)
    # Quarter turns do not change a cube.
    turn = _yaw(observed[f"{plan.thing}_quat"]) - _yaw(observed["robot0_eef_quat"])
    turn = (turn + np.pi / 4) % (np.pi / 2) - np.pi / 4
    turn = turn if plan.has_corners else 0.0
    # Stay above the object while the fingers are not open, and go lower the better they are aligned.
    funnel_m = float(np.clip(8 * (off_m - 0.008) + 0.3 * abs(turn) - 0.01, 0.0, 0.12))
    height_m = funnel_m if opening_m > _OPENED_M else max(above_m, 0.06)
    return _towards(grip + np.array([0.0, 0.0, height_m]) - gripper, turn=turn, fingers=OPEN)


class RobosuiteExpertPolicy(PolicyBase):
    """Acts as the expert of the environment's task does."""

    name: ClassVar[str] = "robosuite_expert"
    # ``family`` is the prefix of the environments' names, before the name of the task.
    plans: ClassVar[Mapping[str, Plan]] = PLANS
    family: ClassVar[str] = "robosuite:"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions, shape (num_envs, 7); ConfigError if the environment has no expert."""
        task = str(getattr(env, "task_name", env.task_description))
        terms = observation["policy"]
        if task not in self.plans or "robot0_eef_pos" not in terms:
            tasks = ", ".join(f"{self.family}{name}" for name in self.plans)
            raise ConfigError(f"{self.name} acts in {tasks}, and this is {task}")
        if env.action_spec.shape != (ACTION_DIM,):
            raise ConfigError(
                f"{self.name} moves one arm by OSC_POSE, {ACTION_DIM} numbers; '{task}' takes "
                f"{env.action_spec.shape[0]} with these robots and controllers"
            )
        seen = {name: term.to("cpu", torch.float64).numpy() for name, term in terms.items()}
        slots = range(env.num_envs)
        actions = [expert_action(self.plans[task], {name: term[slot] for name, term in seen.items()}) for slot in slots]
        return torch.from_numpy(np.stack(actions)).to(env.device)


def _towards(way: np.ndarray, *, turn: float = 0.0, fingers: float) -> np.ndarray:
    action = np.zeros(ACTION_DIM, np.float32)
    action[:3] = np.clip(way * _ASKED_PER_M, -1.0, 1.0)
    action[5] = np.clip(turn * _ASKED_PER_RAD, -1.0, 1.0)
    action[6] = fingers
    return action


def _yaw(quaternion: np.ndarray) -> float:
    """Return the turn of a body's first axis about the vertical [rad]. Order: x, y, z, w."""
    x, y, z, w = quaternion
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


# A scripted expert for LIBERO's first spatial task, which sees nothing but the observation.

LIBERO_PLANS: Mapping[str, Plan] = {
    "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate": Plan(
        thing="akita_black_bowl_1",
        # The fingers take the rim, one of them inside the bowl.
        grip=(0.0, -0.044, 0.033),
        has_corners=False,
        onto="plate_1",
        place=(0.0, 0.0, 0.01),
        tolerance_m=0.012,
        clearance_m=0.1,
    )
}
"""The tasks of ``libero_spatial`` for which there is an expert."""


class LiberoExpertPolicy(RobosuiteExpertPolicy):
    """Acts as the expert of LIBERO's task does, where the last number of an action closes the gripper at 1."""

    name: ClassVar[str] = "libero_expert"
    plans: ClassVar[Mapping[str, Plan]] = LIBERO_PLANS
    family: ClassVar[str] = "libero:libero_spatial/"


# Meta-World's own scripted experts, one for each of its tasks.


@dataclass(frozen=True)
class MetaWorldExpertCfg(PolicyCfg):
    """Options of `MetaWorldExpertPolicy`.

    Attributes:
        task: Whose expert acts, for example ``reach-v3``; the one of the environment's task by default.
    """

    task: str | None = None


class MetaWorldExpertPolicy(PolicyBase[MetaWorldExpertCfg]):
    """Acts as Meta-World's expert for the task does; it sees nothing but the observation."""

    # The expert runs where the environment's Meta-World is, which may be another interpreter.
    name: ClassVar[str] = "metaworld_expert"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions, shape (num_envs, 4); ConfigError if the environment or task has no expert."""
        ask, here = getattr(env, "expert_actions", None), str(getattr(env, "task_name", env.task_description))
        if ask is None:
            raise ConfigError(f"metaworld_expert acts in environments metaworld:<task>, and this is {here}")
        task = self.config.task if self.config is not None and self.config.task is not None else here
        try:
            actions = ask(task, observation["policy"]["obs"].to("cpu", torch.float32).numpy())
        except ImportError as error:
            message = f"metaworld_expert needs Meta-World where its environment runs ({error})"
            raise ConfigError(f"{message}: docs/how_to/metaworld.md says how to install it") from error
        except LookupError as error:
            raise ConfigError(str(error), key="task") from error
        return torch.tensor(actions, device=env.device)
