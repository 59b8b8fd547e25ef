"""The robot that an ``embodiment`` option names, and whether it moves as its description says.

A robot from outside this package is measured before its success rate is blamed on a policy. It stands alone in the
scene of the tasks. Each world asks something else of it, twice for a second: to hold still, to move one joint a little
to one side and then to the other, to close the gripper and then to open it, to open it half.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import mujoco
import numpy as np
import torch

from isaaclab_arena.environments.catalog import EMBODIMENTS
from isaaclab_arena.environments.robots.embodiment import TABLE, Embodiment, described_embodiment, read_description
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.math import rotate, rotate_inverse
from isaaclab_arena.sim.scene import ASSETS, MOST_KNOWN, ContentKey, Robot, compose_scene, content_key, stamps

_LOG = logging.getLogger(__name__)

_known: dict[Path, tuple[Embodiment, Path, tuple[ContentKey, ContentKey]]] = {}
"""Described robots by the absolute path of the description, with the MJCF file that it names and all content; emptied
once it has `MOST_KNOWN`."""


def find_embodiment(name: object) -> Embodiment:
    """Return the robot of a registered name or YAML path, tested; ConfigError with every problem."""
    # A robot from outside this package is simulated for two seconds first, once per process and content.
    embodiment = known_embodiment(name)
    asset = (ASSETS / embodiment.asset).resolve()
    if asset.is_relative_to(ASSETS):
        return embodiment
    try:
        failing = _failing(embodiment, content_key(asset), str(name))
    except OSError as error:
        raise ConfigError(Problem(f"cannot read {error.filename}: {error.strerror}", key="embodiment")) from error
    if failing:
        raise ConfigError([Problem(message, key="embodiment") for message in failing])
    return embodiment


def known_embodiment(name: object) -> Embodiment:
    """Return the robot of a registered name or YAML path without a test of its motions, else ConfigError."""
    try:
        if isinstance(name, str) and name.lower().endswith((".yaml", ".yml")):
            # A description is read again if it or a file of the robot has changed.
            path = Path(name).absolute()
            if path in _known:
                embodiment, mjcf, key = _known[path]
                if mjcf.resolve() == Path(embodiment.asset) and key == (stamps([path]), content_key(mjcf)):
                    return embodiment
            embodiment = described_embodiment(name)
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            mjcf = path.parent / read_description(path).mjcf
            _known[path] = embodiment, mjcf, (stamps([path]), content_key(mjcf))
            return embodiment
        if isinstance(name, str) and name in EMBODIMENTS:
            return EMBODIMENTS.get(name)
    except ConfigError as error:
        raise ConfigError([Problem(str(problem), key="embodiment") for problem in error.problems]) from error
    hint = did_you_mean(str(name), EMBODIMENTS.names())
    raise ConfigError(Problem(f"no embodiment called '{name}'{hint}", key="embodiment"))


@lru_cache(maxsize=32)
def _failing(embodiment: Embodiment, key: ContentKey, name: str) -> tuple[str, ...]:
    """Return the failures of a robot's motions, and log the doubtful ones; ``key`` invalidates the cache."""
    del key
    try:
        found = findings(embodiment, measured_motions(embodiment))
    except ValueError as error:
        found = (Finding(key="mjcf", message=f"does not compile in a scene: {error}"),)
    except KeyError as error:
        found = (Finding(key="mjcf", message=f"has no part called {error}"),)
    for each in found:
        if not each.fails:
            _LOG.warning("embodiment %s: %s: %s", name, each.key, each.message)
    return tuple(f"{name}: {each.key}: {each.message}" for each in found if each.fails)


# Measure a robot's motions, and compare them with its description.

PHASE_S = 1.0  # how long each thing is asked for
SAMPLE_S = 0.05
_PHASE = round(PHASE_S / SAMPLE_S)
# The mean of the last quarter of a second, so that an oscillating servo is read at its centre.
_SETTLED = (slice(_PHASE - 5, _PHASE), slice(2 * _PHASE - 5, 2 * _PHASE))

_STEP_RAD, _STEP_OF_RANGE = 0.1, 0.1

# A failure is far from the behaviour of MuJoCo Menagerie's robots, and from half of the request: that is a gear of 2,
# an integrator, or one finger of two. Values in between are doubtful.
_HOME_FAILS, _HOME_DOUBTFUL = 1.5, 0.3  # distance from home, in steps
_STEP_FAILS, _STEP_DOUBTFUL = (0.6, 1.5), (0.85, 1.2)  # share of a step that is made
_WIDTH_FAILS, _WIDTH_DOUBTFUL = (0.6, 1.67), (0.8, 1.25)  # share of the described width
_STOOD_STILL = 0.25  # share of a finger's way below which nothing drives it
_ALONG_Y = 0.7  # share of the tool's y axis in the direction from the right finger to the left one
_SLOW_S = 0.6
_STOOD_STILL_M = 1e-3
_CONTROL_SLACK = 0.01  # share of a range of controls by which it may differ from the joint's


@dataclass(frozen=True, kw_only=True, eq=False)
class Motions:
    """A robot's motions in two phases of `PHASE_S`: t samples, n arm joints, f finger joints."""

    model: mujoco.MjModel  # the compiled scene
    held: np.ndarray  # arm joints of the world that was to stay at home [rad], (t, n)
    asked: np.ndarray  # targets of each joint, alone, in both phases [rad], (2, n)
    moved: np.ndarray  # position of each of them, in its own world [rad], (t, n)
    fingers: np.ndarray  # finger joints with the gripper open, (t, f)
    # Left and right fingertip from their meeting point in the tool's axes [m], (3, t, 2, 3): gripper open, closing then
    # opening, half open. Empty without a gripper.
    tips: np.ndarray
    base_shift_m: float  # largest distance of the base from its place
    diverged: bool  # the physics broke down


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A difference between a description and the robot's behaviour."""

    key: str  # the faulty key of the description
    message: str  # request, measurement, and likely cause
    fails: bool = True  # False: doubtful only


def measured_motions(embodiment: Embodiment) -> Motions:
    """Simulate a robot alone and return its motions, with the same bits each time; ValueError or KeyError."""
    robot = embodiment.robot
    # ValueError: the robot does not compile in a scene. KeyError: its file lacks a named part. Seven joints take 0.2 s.
    model = compose_scene(TABLE, (embodiment.part(),), cameras=embodiment.scene_cameras)
    # The robot is measured, not the scene: a hand may rest on the table at home.
    in_scene = [not model.body(int(body)).name.startswith("robot/") for body in model.geom_bodyid]
    model.geom_contype[in_scene] = model.geom_conaffinity[in_scene] = 0

    # World 0 stays at home, one world per joint moves that joint alone, the last two move the gripper.
    num_joints = len(robot.arm_joints)
    has_gripper = robot.gripper_actuator is not None and bool(robot.finger_bodies) and robot.gripper_width > 0
    num_worlds = 1 + num_joints + 2 * has_gripper
    closing, half = (num_worlds - 2, num_worlds - 1) if has_gripper else (0, 0)
    home, low, high = (np.array(values) for values in (robot.home, robot.joint_low, robot.joint_high))
    step = np.minimum(_STEP_RAD, _STEP_OF_RANGE * (high - low))
    asked = np.stack([np.minimum(home + step, high), np.maximum(home - step, low)])
    backend = MujocoBackend(model, num_envs=num_worlds)
    controls = np.tile(backend.ctrl.numpy(), (2, 1, 1))
    alone = np.arange(num_joints)
    actuators = [backend.names.actuators[name] for name in robot.arm_actuators]
    controls[:, :, actuators] = home
    controls[:, 1 + alone, actuators] = asked
    if has_gripper:
        gripper = backend.names.actuators[str(robot.gripper_actuator)]
        controls[:, :, gripper] = robot.gripper_open
        controls[0, closing, gripper] = robot.gripper_closed
        controls[:, half, gripper] = (robot.gripper_open + robot.gripper_closed) / 2

    start = dict(zip((*robot.arm_joints, *robot.finger_joints), (*robot.home, *robot.finger_open), strict=True))
    at_start = StartState(joint_positions={joint: (value,) for joint, value in start.items()})
    backend.reset(torch.arange(num_worlds), [at_start] * num_worlds)
    everyone = torch.ones(num_worlds, dtype=torch.bool)
    base = backend.names.bodies[robot.base_body]
    first_base = backend.xpos[:, base].clone()
    samples = []
    for sample in range(2 * _PHASE):
        backend.ctrl.copy_(torch.from_numpy(controls[sample // _PHASE]))
        backend.step(everyone, round(SAMPLE_S / backend.physics_dt))
        samples.append(tuple(state.clone() for state in (backend.qpos, backend.xpos, backend.xquat, backend.site_xpos)))
    qpos, xpos, xquat, site_xpos = (torch.stack(states) for states in zip(*samples, strict=True))

    # A fingertip is the finger's point at the tool when the gripper is closed. With one fixed finger, the tips meet at
    # that one.
    tips = np.zeros((3, 0, 2, 3))
    if has_gripper:
        worlds, closed, of_fingers = [0, -2, -1], _PHASE - 1, []
        hand, site = xquat[:, worlds, backend.names.bodies[robot.hand_body]], backend.names.sites[robot.tcp_site]
        aside = -robot.gripper_width / 2 if robot.right_finger_fixed else 0.0
        shift = torch.tensor([0.0, aside, 0.0], dtype=hand.dtype)
        meeting = site_xpos[:, worlds, site] + rotate(hand, shift.expand(*hand.shape[:-1], 3))
        for name in robot.fingers:
            position, turn = (states[:, worlds, backend.names.bodies[name]] for states in (xpos, xquat))
            tip = rotate_inverse(turn[closed, 1], meeting[closed, 1] - position[closed, 1])
            of_fingers.append(rotate_inverse(hand, position + rotate(turn, tip.expand_as(position)) - meeting))
        tips = torch.stack(of_fingers, dim=-2).transpose(0, 1).numpy()

    joint_at = {name: place.start for name, place in backend.names.joint_qpos.items()}
    arm, fingers = ([joint_at[name] for name in names] for names in (robot.arm_joints, robot.finger_joints))
    return Motions(
        model=model,
        held=qpos[:, 0, arm].numpy(),
        asked=asked,
        moved=qpos[:, 1 + alone, arm].numpy(),
        fingers=qpos[:, 0, fingers].numpy(),
        tips=tips,
        base_shift_m=float((xpos[:, :, base] - first_base).norm(dim=-1).max()),
        diverged=bool(backend.diverged.any()),
    )


def findings(embodiment: Embodiment, motions: Motions) -> tuple[Finding, ...]:
    """Return the differences between a description and the measured motions."""
    if motions.diverged:
        message = "the physics breaks down within two seconds at home; look at masses, inertias, gains and contacts"
        return (Finding(key="mjcf", message=message),)
    robot = embodiment.robot
    found: list[Finding] = []
    if motions.base_shift_m > _STOOD_STILL_M:
        # Joints between the base and the world can move the base; the most specific cause wins.
        model, body, carriers = motions.model, motions.model.body(robot.base_body).id, []
        while body:
            first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
            carriers += [model.joint(index) for index in range(first, first + count)]
            body = int(model.body_parentid[body])
        why = f": joint '{_own(carriers[0].name)}' carries it; make that a fixed body" if carriers else ""
        if any(joint.name in robot.arm_joints for joint in carriers):
            why = ": name the outermost body"
        is_free = any(int(joint.type[0]) == int(mujoco.mjtJoint.mjJNT_FREE) for joint in carriers)
        if is_free:
            why = ": it hangs on a free joint; take that out of the MJCF file"
        message = f"'{_own(robot.base_body)}' moved by {1000 * motions.base_shift_m:.0f} mm as the arm did{why}"
        found.append(Finding(key="base.body", message=message, fails=is_free))
    for index in range(len(robot.arm_joints)):
        found += _of_joint(robot, motions, index)
    return (*found, *(_of_gripper(robot, motions) if motions.tips.size else ()))


def _of_joint(robot: Robot, motions: Motions, index: int) -> Iterator[Finding]:
    """Yield the findings of an arm joint: it leaves home, misses its target, or is slow."""
    home, low, high = robot.home[index], robot.joint_low[index], robot.joint_high[index]
    held, moved, asked = motions.held[:, index], motions.moved[:, index], motions.asked[:, index].tolist()
    step = min(_STEP_RAD, _STEP_OF_RANGE * (high - low))
    key, name = f"arm.joints.{index}", _own(robot.arm_joints[index])
    # The joint's actuators that the description does not name for it.
    model, own = motions.model, motions.model.actuator(robot.arm_actuators[index]).id
    at_joints = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    of_joint = at_joints & (model.actuator_trnid[:, 0] == model.joint(robot.arm_joints[index]).id)
    others = [_own(model.actuator(other).name) for other in np.flatnonzero(of_joint).tolist() if other != own]
    causes = _causes(robot, model, index, others)
    why = f": {'; '.join(causes)}" if causes else ""

    off = max((float(held[last].mean()) - home for last in _SETTLED), key=abs)
    if abs(off) > _HOME_DOUBTFUL * step:
        message = f"'{name}' stands at {home + off:+.3f} rad where {home:+.3f}, its home, was asked{why}"
        yield Finding(key=key, message=message, fails=abs(off) > _HOME_FAILS * step)

    first, then = (float((moved - held)[last].mean()) for last in _SETTLED)
    # A joint at the end of its range has no motion to one side.
    steps = [
        (made, wanted)
        for made, wanted in ((first, asked[0] - home), (then - first, asked[1] - asked[0]))
        if abs(wanted) > _STOOD_STILL * step and not _within(made / wanted, _STEP_DOUBTFUL)
    ]
    if steps:
        made, wanted = max(steps, key=lambda each: not _within(each[0] / each[1], _STEP_FAILS))
        message = f"'{name}' moved {made + 0.0:+.3f} rad where {wanted:+.3f} was asked{why}"
        yield Finding(key=key, message=message, fails=not _within(made / wanted, _STEP_FAILS))
        return

    arrived = np.abs(moved - held)[:_PHASE] >= _STEP_DOUBTFUL[0] * abs(asked[0] - home)
    if not arrived[round(_SLOW_S / SAMPLE_S)]:
        message = f"'{name}' took more than {_SLOW_S:g} s for {asked[0] - home:.3f} rad{why}"
        yield Finding(key=key, message=message, fails=False)

    takes_low, takes_high = model.actuator(robot.arm_actuators[index]).ctrlrange.tolist()
    slack = _CONTROL_SLACK * (high - low)
    if takes_low < takes_high and (takes_low > low + slack or takes_high < high - slack):
        span = f"{takes_low:.3f} to {takes_high:.3f}"
        message = f"'{name}' can turn from {low:.3f} to {high:.3f} rad, and its actuator takes targets from {span} only"
        yield Finding(key=key, message=message, fails=False)
    for other in others:
        message = f"actuator '{other}' drives '{name}' too and stays at control 0; take it out if it brakes"
        yield Finding(key=key, message=message, fails=False)


def _causes(robot: Robot, model: mujoco.MjModel, index: int, others: list[str]) -> list[str]:
    """Return the likely causes in the MJCF file for a joint that misses its target."""
    joint, actuator = model.joint(robot.arm_joints[index]), model.actuator(robot.arm_actuators[index])
    takes, dynamics = actuator.ctrlrange.tolist(), int(actuator.dyntype[0])
    causes = [f"actuator '{other}' drives it too, at control 0" for other in others]
    if not np.isclose(actuator.gear[0], 1.0):
        causes.append(f"the gear of its actuator is {actuator.gear[0]:g}, not 1")
    if takes[0] < takes[1] and not _within(robot.home[index], (takes[0], takes[1])):
        causes.append(f"its actuator takes targets from {takes[0]:g} to {takes[1]:g} only")
    if dynamics == int(mujoco.mjtDyn.mjDYN_INTEGRATOR):
        causes.append("its actuator integrates its target, as a velocity servo does")
    elif dynamics != int(mujoco.mjtDyn.mjDYN_NONE):
        causes.append(f"its actuator delays its target by {actuator.dynprm[0]:g} s")
    if actuator.biasprm[0]:
        causes.append(f"its actuator has a constant bias of {actuator.biasprm[0]:g}")
    if joint.stiffness[0]:
        spring = float(model.qpos_spring[joint.qposadr[0]])
        causes.append(f"a spring of {joint.stiffness[0]:g} Nm/rad pulls it to {spring:g} rad")
    # Weak actuators and gravity are only likely without a clearer cause.
    if not causes and model.actuator_forcelimited[actuator.id]:
        causes.append(f"its actuator has at most {actuator.forcerange[1]:g} Nm")
    if not causes and not model.body_gravcomp[joint.bodyid[0]]:
        causes.append("its weight is not compensated; give it gravity_compensation: true, or a higher kp")
    return causes


def _of_gripper(robot: Robot, motions: Motions) -> Iterator[Finding]:
    """Yield the findings of a gripper: its width, a finger that stands still, units, sides."""
    actuator, wanted_m = motions.model.actuator(str(robot.gripper_actuator)), robot.gripper_width
    opened, reopened, half = (tips[_SETTLED[1]].mean(axis=0) for tips in motions.tips)
    width_m, reopened_m, half_m = (float(np.linalg.norm(tips[0] - tips[1])) for tips in (opened, reopened, half))
    fails = not _within(width_m / wanted_m, _WIDTH_FAILS)

    # Each finger moves half of the width, or the left one all of it.
    share = 1.0 if robot.right_finger_fixed else 0.5
    ways_m, due_m = np.linalg.norm(opened, axis=-1).tolist(), (share * wanted_m, (1.0 - share) * wanted_m)
    still = [index for index in range(2) if due_m[index] and ways_m[index] < _STOOD_STILL * due_m[index]]
    if fails and len(still) == 1:
        message = (
            f"'{_own(robot.finger_bodies[still[0]])}' moves by {ways_m[still[0]]:.3f} m and not by "
            f"{due_m[still[0]]:.3f} m as the gripper opens: actuator '{_own(actuator.name)}' does not drive it; couple "
            "the fingers with an equality or a tendon, or say right_finger_fixed"
        )
        yield Finding(key="gripper.bodies", message=message)
    elif not _within(width_m / wanted_m, _WIDTH_DOUBTFUL):
        stands = width_m < _STOOD_STILL_M
        why = f"; its actuator takes {actuator.ctrlrange[0]:g} to {actuator.ctrlrange[1]:g}" if stands else ""
        why = "; give metres" if _within(1000 * width_m / wanted_m, _WIDTH_FAILS) and not stands else why
        message = (
            f"the fingers open by {width_m:.3f} m and not by {wanted_m:g} m between the controls "
            f"{robot.gripper_closed:g} and {robot.gripper_open:g}{why}"
        )
        yield Finding(key="gripper.open_control" if stands else "gripper.width", message=message, fails=fails)
    if fails:
        return

    if reopened_m < _WIDTH_FAILS[0] * width_m:
        message = f"once closed, the fingers open to {reopened_m:.3f} m and not to {width_m:.3f} m within {PHASE_S:g} s"
        yield Finding(key="gripper.actuator", message=message)
    if abs(half_m - wanted_m / 2) > _STOOD_STILL * wanted_m:
        message = f"asked for {wanted_m / 2:.3f} m the fingers stand {half_m:.3f} m apart, so only the ends are true"
        yield Finding(key="gripper.actuator", message=message, fails=False)
    along = (opened[0] - opened[1]) / width_m
    if along[1] < _ALONG_Y:
        where = " ".join(f"{part + 0.0:+.1f}" for part in along.round(1))
        message = f"the left finger is to be on the side of the tool's +y, and is towards ({where}) from the right one"
        yield Finding(key="gripper.bodies", message=message, fails=False)
    for index, (joint, wanted) in enumerate(zip(robot.finger_joints, robot.finger_open, strict=True)):
        found, limits = float(motions.fingers[_SETTLED[1], index].mean()), motions.model.joint(joint).range
        if abs(found - wanted) > _STOOD_STILL * max(abs(found), float(limits[1] - limits[0])):
            message = f"'{_own(joint)}' starts episodes at {wanted:g} {robot.finger_unit} and is open at {found:.3f}"
            yield Finding(key=f"gripper.open.{index}", message=message, fails=False)


def _within(value: float, span: tuple[float, float]) -> bool:
    return span[0] <= value <= span[1]


def _own(name: str) -> str:
    """Return the name of a scene's part in the robot's file."""
    return name.removeprefix("robot/")
