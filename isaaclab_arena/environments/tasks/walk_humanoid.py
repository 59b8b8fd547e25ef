"""Walk forward on two legs at the speed that the episode asks for.

The humanoid is here too: its names, its posture, and what its tasks share.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import FloorEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import ViewportOptions
from isaaclab_arena.environments.events import FloorFacts, ever, moved_from_start
from isaaclab_arena.environments.mdp import spaces, terms
from isaaclab_arena.environments.mdp.task import FloorTask, TaskSpec, Verdict
from isaaclab_arena.interfaces.episode import Conditions, Metric, draw_around, draw_uniform, number, point, upright_pose
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.math import rotate
from isaaclab_arena.sim.scene import CameraPose, ContactSensor, FloorRobot

# Define the humanoid: its names, its posture, and the terms that tasks share. All shapes begin with (num_envs, ...).

STANDING_HEIGHT_M = 0.812
PELVIS, ROOT = "robot/pelvis", "robot/root"
FEET = ("robot/left_foot", "robot/right_foot")
KEYPOINTS = ("robot/head", "robot/left_hand", "robot/right_hand", *FEET)

# Joint, position in the default posture [rad], and target offset per unit of action [rad].
_WAIST = (("waist_yaw", 0.0, 0.3), ("waist_roll", 0.0, 0.2), ("waist_pitch", 0.0, 0.3))
_LEG = (
    ("hip_yaw", 0.0, 0.3),
    ("hip_roll", 0.0, 0.3),
    ("hip_pitch", -0.22, 0.6),
    ("knee", 0.50, 0.6),
    ("ankle_pitch", -0.28, 0.5),
    ("ankle_roll", 0.0, 0.3),
)
_ARM = (("shoulder_pitch", 0.10, 0.5), ("shoulder_roll", 0.12, 0.4), ("elbow", -0.40, 0.5))
# Rolls and yaws of the right side are mirrored.
_JOINTS = (
    *_WAIST,
    *(
        (f"{side}_{name}", default * (mirrored if name.endswith(("roll", "yaw")) else 1.0), scale)
        for joints in (_LEG, _ARM)
        for side, mirrored in (("left", 1.0), ("right", -1.0))
        for name, default, scale in joints
    ),
)
_NAMES = tuple(f"robot/{name}" for name, _, _ in _JOINTS)
JOINTS = tuple(name for name, _, _ in _JOINTS)
_DEFAULT = tuple(default for _, default, _ in _JOINTS)

HUMANOID = FloorRobot(
    name="humanoid",
    asset="robots/humanoid.xml",
    root_body=PELVIS,
    free_joint=ROOT,
    joints=_NAMES,
    default_joint_position=_DEFAULT,
    actuators=_NAMES,
    default_control=_DEFAULT,
    action_scale=tuple(scale for _, _, scale in _JOINTS),
    action_bound=1.0,
    viewport=CameraPose("viewport", (2.3, -2.6, 1.5), (0.0, 0.0, 0.75), fovy_deg=38.0, follows=PELVIS),
)


class HumanoidTask(FloorTask):
    """A task of the humanoid. It counts steps and stores the previous action, for rewards of smooth motion."""

    robot = HUMANOID
    control_dt = 0.02
    cleared = (*FloorTask.cleared, "previous_action", "_length")

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        self.previous_action = backend.ctrl.new_zeros(backend.num_envs, len(HUMANOID.joints))
        self._length = torch.zeros_like(self.held_steps)

    def observation_terms(self) -> dict[str, spaces.ObservationTerm]:
        last_action = spaces.vector_term(JOINTS, "", self.last_action)
        return {**spaces.sense_terms(HUMANOID, lambda: self.senses), "last_action": last_action}

    def last_action(self, backend: Backend) -> torch.Tensor:
        """Return the action that gave the current controls. Shape: (num_envs, num_joints)."""
        return self.actions.last(backend)

    def jerkiness(self, backend: Backend, running: torch.Tensor) -> torch.Tensor:
        """Return the mean squared change between the last two actions; call it once per step. Shape: (num_envs,)."""
        action = self.last_action(backend)
        change = action - self.previous_action
        # Env slots outside ``running`` made no step and keep their action.
        self.previous_action = torch.where(running[:, None], action, self.previous_action)
        return terms.mean_square(change)


def heading(backend: NamedState) -> torch.Tensor:
    """Return the pelvis' horizontal forward direction, a unit vector. Shape: (num_envs, 2)."""
    orientation = backend.body_orientation(PELVIS)
    ahead = torch.zeros_like(orientation[:, :3])
    ahead[:, 0].fill_(1.0)
    x, y, _ = rotate(orientation, ahead).unbind(-1)
    length = torch.sqrt(x * x + y * y).clamp(min=1e-6)
    return torch.stack((x / length, y / length), dim=-1)


SHARE_OF_THE_WAY = 0.7
LOWEST_M = 0.5

_TIME_LIMIT_S = 10.0
_SEEN_WAY_M = 0.5
_SWING_HEIGHT_M = 0.09
_CONTACTS = tuple(f"{foot.rpartition('/')[2]}_on_floor" for foot in FEET)


class WalkHumanoid(HumanoidTask):
    """Solved when it has not fallen after 10 s and has come 70 % of the way that the asked speed makes, straight ahead.

    The speed is 0.6 to 1.0 m/s, and ahead is where the pelvis looked at the start. Lost when it falls: when the
    pelvis is lower than 0.5 m or leans by more than 60 degrees.
    """

    moment_fields = ("qpos", "qvel")
    capturable = True

    def __init__(self) -> None:
        feet = (
            ContactSensor(name=name, body=foot, other="floor", other_is_geom=True)
            for name, foot in zip(_CONTACTS, FEET, strict=True)
        )
        spec = TaskSpec(name="walk_humanoid", instruction="walk straight ahead", time_limit_s=_TIME_LIMIT_S)
        metrics = (Metric(name="distance_m", unit="m", better="higher"),)
        super().__init__(replace(spec, contact_sensors=tuple(feet), metrics=metrics))
        self._episode_length = round(_TIME_LIMIT_S / self.control_dt)
        self._gait_steps = round(0.8 / self.control_dt)

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        num_envs, zeros = backend.num_envs, backend.qpos.new_zeros
        self._speed, self._start, self._ahead = zeros(num_envs), zeros(num_envs, 2), zeros(num_envs, 2)
        self._feet = zeros(num_envs, len(FEET), 3)
        self._clock = spaces.gait_clock(self._gait_steps, backend)
        self._aside = torch.tensor(_ASIDE, device=backend.device)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        speed, yaw = draw_uniform(generator, (0.6, -np.pi), (1.0, np.pi))
        joints = draw_around(generator, HUMANOID.default_joint_position, 0.03)
        return {"command.speed": speed, "robot.yaw": yaw, "robot.joint_position": joints}

    def start_state(self, conditions: Conditions) -> StartState:
        root = upright_pose((0.0, 0.0, STANDING_HEIGHT_M + 0.01), conditions["robot.yaw"])
        return StartState(joint_positions=HUMANOID.by_joint(root, point(conditions["robot.joint_position"])))

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        self._speed[env_ids] = self._speed.new_tensor([number(each["command.speed"]) for each in conditions])

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        super().begin(backend, env_ids)
        self._start[env_ids] = backend.body_position(PELVIS)[env_ids, :2]
        self._ahead[env_ids] = heading(backend)[env_ids]
        self._feet[env_ids] = spaces.site_positions(backend, FEET)[env_ids]

    def observation_terms(self) -> dict[str, spaces.ObservationTerm]:
        angle = ("cos", "sin")
        return {
            **super().observation_terms(),
            "speed_command": spaces.number_term("x", "m/s", lambda _: self._speed[:, None]),
            "heading_error": spaces.vector_term(angle, "", self._heading_error),
            "gait_clock": spaces.vector_term(angle, "", lambda _: self._clock[self._length % self._gait_steps]),
        }

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        self._length = self._length + running
        distance = _along(backend.body_position(PELVIS)[:, :2] - self._start, self._ahead)
        fallen, asked = _fallen(backend, self.senses), SHARE_OF_THE_WAY * _TIME_LIMIT_S * self._speed

        # The reward per second is for speed, direction, posture and gait by the clock, less roughness.
        velocity = backend.joint_velocity(ROOT)[:, :2]
        forward, aside = _along(velocity, self._ahead), _across(velocity, self._ahead)
        # The miss counts both the wrong speed and the drift to the side.
        miss = torch.sqrt((forward - self._speed) ** 2 + aside**2)
        cosine = self._heading_error(backend)[:, 0]
        tilt = 1 + self.senses.gravity()[:, 2]
        height = backend.body_position(PELVIS)[:, 2] - STANDING_HEIGHT_M
        spin = self.senses.angular_velocity()

        # The gait is up to 1 for feet that stand and swing by the clock, and swing high enough.
        gait = torch.zeros_like(self._speed)
        for index, (foot, contact) in enumerate(zip(FEET, _CONTACTS, strict=True)):
            step = (self._length % self._gait_steps + index * self._gait_steps // 2) % self._gait_steps
            stands = step < 0.55 * self._gait_steps
            lifted = (backend.site_position(foot)[:, 2] / _SWING_HEIGHT_M).clamp(0, 1)
            touches = backend.touching(contact)
            gait = gait + 0.5 * torch.where(stands, touches.to(gait.dtype), torch.where(touches, 0.0, lifted))
        feet_velocity = (spaces.site_positions(backend, FEET) - self._feet)[:, :, :2] / self.control_dt
        touching = torch.stack([backend.touching(contact) for contact in _CONTACTS], dim=-1)
        smooth = (
            0.5 * self.jerkiness(backend, running)
            + 0.002 * terms.mean_square(self.senses.joint_velocity())
            + 0.05 * terms.mean_square(spin[:, :2])
            + 0.2 * terms.mean_square(self.senses.joint_position()[:, self._aside])
        )
        reward = (
            3.0 * terms.closeness(miss, half_at=0.25)
            + 0.5 * terms.closeness(1 - cosine, half_at=0.05)
            + 0.5 * terms.closeness(tilt, half_at=0.03)
            + 0.5 * terms.closeness(height, half_at=0.06)
            + 2.0 * gait
            - 0.3 * terms.slip(feet_velocity, touching)
            - smooth
        )
        self._feet = torch.where(running[:, None, None], spaces.site_positions(backend, FEET), self._feet)
        reward = self.control_dt * reward
        success = (self._length >= self._episode_length) & ~fallen & (distance >= asked)
        metrics = {"distance_m": distance, "asked_distance_m": _TIME_LIMIT_S * self._speed}
        return Verdict(reward=reward, success=success, lost=fallen, metrics=metrics)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        place = moments.body_position(PELVIS)[:, :2]
        way, ahead = place - place[:1], heading(moments)[:1]
        distance, aside = _along(way, ahead).numpy(), abs(_across(way, ahead).numpy())
        made = distance / (SHARE_OF_THE_WAY * _TIME_LIMIT_S * self._speed[env_id].cpu()).numpy()
        fallen = ever(_fallen(moments, spaces.FloorSenses(HUMANOID, moments)).numpy())
        return FloorFacts(
            dt_s=self.control_dt,
            share=np.minimum(made, np.arange(len(made)) / self._episode_length),
            lost=fallen,
            fallen=fallen,
            nearly=made >= 0.8,
            # It walks sideways or back, far enough to be visible.
            strayed=(distance < aside) & (aside * aside + distance * distance > _SEEN_WAY_M * _SEEN_WAY_M),
            moved=moved_from_start(moments.joint_position(ROOT).numpy()),
        )

    def _heading_error(self, backend: Backend) -> torch.Tensor:
        now = heading(backend)
        return torch.stack((_along(now, self._ahead), _across(now, self._ahead)), dim=-1)


_ASIDE = [
    index
    for index, joint in enumerate(HUMANOID.joints)
    if joint.endswith(("hip_yaw", "hip_roll", "waist_yaw", "waist_roll", "waist_pitch", "shoulder_roll", "elbow"))
]


def _fallen(state: NamedState, senses: spaces.FloorSenses) -> torch.Tensor:
    """True where the pelvis is low or leans too far. Shape: (n,), bool."""
    return (state.body_position(PELVIS)[:, 2] < LOWEST_M) | (senses.gravity()[:, 2] > -0.5)


def _along(vector: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Return the part of horizontal vectors along a direction. Shapes: (num_envs, 2), (num_envs, 2) -> (num_envs,)."""
    return vector[:, 0] * direction[:, 0] + vector[:, 1] * direction[:, 1]


def _across(vector: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Return the part of horizontal vectors to the left of a direction. Shapes: as `_along`."""
    return vector[:, 1] * direction[:, 0] - vector[:, 0] * direction[:, 1]


WALK_HUMANOID = FloorEnvironmentBuilder(config_class=ViewportOptions, make_task=lambda _: WalkHumanoid())
