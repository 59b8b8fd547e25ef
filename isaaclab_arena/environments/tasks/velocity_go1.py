"""Walk with a commanded velocity, on four legs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import FloorEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import ViewportOptions
from isaaclab_arena.environments.events import FloorFacts, ever, moved_from_start
from isaaclab_arena.environments.mdp import spaces, terms
from isaaclab_arena.environments.mdp.task import FloorTask, TaskSpec, Verdict
from isaaclab_arena.interfaces.episode import Conditions, Metric, draw_around, draw_uniform, number, point, upright_pose
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.scene import CameraPose, ContactSensor, FloorRobot

COMMAND = "command.velocity"
STANDING_SHARE = 0.1

SPEED_BOUND_M_S = 0.25
TURN_BOUND_RAD_S = 0.3
SETTLING_S = 1.5
FILTER_S = 0.25

_LEGS = ("FR", "FL", "RR", "RL")
_FEET = tuple(f"robot/{leg}_foot" for leg in _LEGS)
_ACTUATORS = tuple(f"{leg}_{part}" for leg in _LEGS for part in ("hip", "thigh", "calf"))
_TRUNK_TOUCH = "trunk_touches_floor"
_START_HEIGHT_M = 0.335
_STANDING_HEIGHT_M = 0.31
_FOOT_RADIUS_M = 0.022
_JOINT_NOISE_RAD = 0.1
_GAIT_STEPS = 20
_SWING_HEIGHT_M = 0.07

GO1 = FloorRobot(
    name="go1",
    asset="robots/go1.xml",
    root_body="robot/trunk",
    free_joint="robot/free",
    joints=tuple(f"robot/{actuator}_joint" for actuator in _ACTUATORS),
    default_joint_position=(0.0, 0.8, -1.5) * 4,
    actuators=tuple(f"robot/{actuator}" for actuator in _ACTUATORS),
    # Knee targets straighter than the posture carry the robot's weight.
    default_control=(0.0, 0.8, -1.38) * 4,
    action_scale=(0.25,) * 12,
    action_bound=4.0,
    viewport=CameraPose("viewport", (1.0, -1.5, 0.75), (0.0, 0.0, 0.22), fovy_deg=40.0, follows="robot/trunk"),
)


class VelocityGo1(FloorTask):
    """Solved when the time is up, and after its first 1.5 s the robot has always moved as it was told.

    That is to say that the velocity in its own frame, smoothed over about half a second because a gait sways, was
    within 0.25 m/s and 0.3 rad/s of the command in every step. Lost when the trunk touches the floor or tilts by 60
    degrees.
    """

    robot = GO1
    control_dt = 0.02
    settling_steps = round(SETTLING_S / control_dt)
    cleared = (
        *FloorTask.cleared,
        *("_length", "_velocity", "_action", "_error_sums", "_worst_errors", "_broke_bounds"),
    )
    moment_fields = ("qpos", "qvel", "sensordata")
    capturable = True

    def __init__(self) -> None:
        feet = (
            ContactSensor(name=f"{leg}_touches_floor", body=foot, other="floor", other_is_geom=True)
            for leg, foot in zip(_LEGS, _FEET, strict=True)
        )
        trunk = ContactSensor(name=_TRUNK_TOUCH, body="robot/shell", other="floor", other_is_geom=True)
        spec = TaskSpec(name="velocity_go1", instruction="walk with the commanded velocity", time_limit_s=10.0)
        metrics = (
            Metric(name="mean_speed_error_m_s", unit="m/s", better="lower"),
            Metric(name="mean_turn_error_rad_s", unit="rad/s", better="lower"),
        )
        super().__init__(replace(spec, contact_sensors=(*feet, trunk), metrics=metrics))

    def attach(self, backend: Backend) -> None:
        super().attach(backend)
        num_envs, zeros = backend.num_envs, backend.qpos.new_zeros
        self._length = torch.zeros_like(self.held_steps)
        self._broke_bounds = torch.zeros_like(self.held_steps, dtype=torch.bool)
        self._command, self._velocity = zeros(num_envs, 3), zeros(num_envs, 3)
        self._action, self._feet = zeros(num_envs, len(GO1.actuators)), zeros(num_envs, len(_LEGS), 3)
        self._error_sums, self._worst_errors = zeros(num_envs, 2), zeros(num_envs, 2)
        self._clock = spaces.gait_clock(_GAIT_STEPS, backend)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the robot's posture and the commanded velocity: forward, left [m/s], turn [rad/s]."""
        joints = draw_around(generator, GO1.default_joint_position, _JOINT_NOISE_RAD)
        (yaw,) = draw_uniform(generator, (-np.pi,), (np.pi,))
        command = draw_uniform(generator, (-0.6, -0.4, -0.7), (1.0, 0.4, 0.7))
        stands = generator.random() < STANDING_SHARE
        return {"robot.joint_position": joints, "robot.yaw": yaw, COMMAND: (0.0,) * 3 if stands else command}

    def start_state(self, conditions: Conditions) -> StartState:
        pose = upright_pose((0.0, 0.0, _START_HEIGHT_M), number(conditions["robot.yaw"]))
        return StartState(joint_positions=GO1.by_joint(pose, point(conditions["robot.joint_position"])))

    def observation_terms(self) -> dict[str, spaces.ObservationTerm]:
        return {
            **spaces.sense_terms(GO1, lambda: self.senses),
            # There are no `actions` before `attach`.
            "last_action": spaces.vector_term(_ACTUATORS, "", lambda now: self.actions.last(now)),  # noqa: PLW0108
            "gait_clock": spaces.vector_term(("cos", "sin"), "", lambda _: self._clock[self._length % _GAIT_STEPS]),
            "velocity_command": spaces.vector_term(("vx", "vy", "turn"), "m/s, rad/s", lambda _: self._command),
        }

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        commands = [point(condition[COMMAND]) for condition in conditions]
        self._command[env_ids] = self._command.new_tensor(commands).reshape(-1, 3)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        super().begin(backend, env_ids)
        self._feet[env_ids] = spaces.site_positions(backend, _FEET)[env_ids]

    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        # The reward per second comes before this step changes the memory of env slots.
        senses, action = self.senses, self.actions.last(backend)
        linear, angular, gravity = senses.linear_velocity(), senses.angular_velocity(), senses.gravity()
        touching = torch.stack([backend.touching(f"{leg}_touches_floor") for leg in _LEGS], dim=-1)
        feet = spaces.site_positions(backend, _FEET)
        error, command = _planar_velocity(senses) - self._command, self._command
        speed_error = torch.sqrt(terms.total_square(error[:, :2]))
        height = backend.body_position(GO1.root_body)[:, 2] - _STANDING_HEIGHT_M
        # Every third joint is a hip, with a penalty of its own.
        joints = senses.joint_position()
        # A robot with a command trots: diagonal pairs of feet swing in turn.
        lift = _SWING_HEIGHT_M * (terms.total_square(command) > 0) * self._clock[self._length % _GAIT_STEPS][:, 1]
        one_pair, other_pair = lift.clamp(min=0.0), (-lift).clamp(min=0.0)
        wanted = torch.stack((one_pair, other_pair, other_pair, one_pair), dim=-1)
        reward = (
            1.0 * terms.tracking(speed_error * speed_error, width=0.25)
            + 1.5 * terms.relative_tracking(speed_error, torch.sqrt(terms.total_square(command[:, :2])), slack=0.2)
            + 0.5 * terms.tracking(error[:, 2] * error[:, 2], width=0.3)
            + 0.75 * terms.relative_tracking(error[:, 2].abs(), command[:, 2].abs(), slack=0.3)
            + 1.5 * terms.clearance_tracking(feet[:, :, 2] - _FOOT_RADIUS_M, wanted, width=0.04)
            - 1.0 * linear[:, 2] * linear[:, 2]
            - 0.05 * terms.total_square(angular[:, :2])
            - 2.0 * terms.total_square(gravity[:, :2])
            - 20.0 * height * height
            - 0.01 * terms.total_square(action - self._action)
            - 0.0005 * terms.total_square(senses.joint_velocity())
            - 0.05 * terms.total_square(joints)
            - 0.3 * terms.total_square(joints[:, ::3])
            - 0.1 * terms.slip((feet - self._feet)[:, :, :2] / self.control_dt, touching)
        )

        # Env slots that made no step keep their state.
        slots = running[:, None]
        velocity = terms.low_passed(self._velocity, _planar_velocity(self.senses), self.control_dt, FILTER_S)
        self._velocity = torch.where(slots, velocity, self._velocity)
        self._action = torch.where(slots, self.actions.last(backend), self._action)
        self._feet = torch.where(slots[:, None], spaces.site_positions(backend, _FEET), self._feet)
        self._length = self._length + running
        errors = _errors(self._velocity, self._command) * (slots & (self._length > self.settling_steps)[:, None])
        self._error_sums = self._error_sums + errors
        self._worst_errors = torch.maximum(self._worst_errors, errors)
        self._broke_bounds = self._broke_bounds | _beyond_bounds(errors)

        ended = self._length >= round(self.spec.time_limit_s / self.control_dt)
        # An episode that ended before has no mean error: 0 / 0 is NaN.
        judged = (self._length - self.settling_steps).clamp(min=0)
        reward = self.control_dt * reward
        lost = _fallen(backend, self.senses)
        metrics = {
            "mean_speed_error_m_s": self._error_sums[:, 0] / judged,
            "mean_turn_error_rad_s": self._error_sums[:, 1] / judged,
            "worst_speed_error_m_s": self._worst_errors[:, 0],
            "worst_turn_error_rad_s": self._worst_errors[:, 1],
        }
        return Verdict(reward=reward, success=ended & ~self._broke_bounds, lost=lost, metrics=metrics)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        senses, command = spaces.FloorSenses(GO1, moments), self._command[env_id].cpu()
        low_passed = partial(terms.low_passed, dt=self.control_dt, time_constant=FILTER_S)
        # Plain numbers: filtering a tensor of one moment costs as much as a hundred of these.
        velocity = _planar_velocity(senses)
        columns = [list(accumulate(each.tolist(), low_passed, initial=0.0)) for each in velocity[1:].T]
        errors = _errors(velocity.new_tensor(columns).T, command)
        steps = torch.arange(len(errors))
        # As in `judge`, the first steps do not count: the robot has to accelerate.
        judged = steps > self.settling_steps
        strayed, fallen = (ever(holds.numpy()) for holds in (judged & _beyond_bounds(errors), _fallen(moments, senses)))
        return FloorFacts(
            dt_s=self.control_dt,
            share=steps.numpy() / round(self.spec.time_limit_s / self.control_dt),
            lost=strayed | fallen,
            fallen=fallen,
            nearly=strayed & ~(judged & _beyond_bounds(errors, times=2.0)).any().numpy(),
            strayed=strayed,
            moved=moved_from_start(moments.joint_position("robot/free").numpy()) if bool(command.any()) else None,
        )


def _planar_velocity(senses: spaces.FloorSenses) -> torch.Tensor:
    """Return the forward and left velocity [m/s] and the turn [rad/s]. Shape: (n, 3)."""
    return torch.cat((senses.linear_velocity()[:, :2], senses.angular_velocity()[:, 2:]), dim=-1)


def _errors(velocity: torch.Tensor, command: torch.Tensor) -> torch.Tensor:
    """Return the errors against a command [m/s, rad/s]. Shapes: (n, 3), (n, 3) or (3,) -> (n, 2)."""
    difference = velocity - command
    return torch.stack((torch.sqrt(terms.total_square(difference[:, :2])), difference[:, 2].abs()), dim=-1)


def _beyond_bounds(errors: torch.Tensor, times: float = 1.0) -> torch.Tensor:
    """True where errors exceed the bounds times a factor. Shape: (n, 2) -> (n,), bool."""
    return (errors[:, 0] > times * SPEED_BOUND_M_S) | (errors[:, 1] > times * TURN_BOUND_RAD_S)


def _fallen(state: NamedState, senses: spaces.FloorSenses) -> torch.Tensor:
    """True where the trunk lies on the floor or tilts too far. Shape: (n,), bool."""
    return state.touching(_TRUNK_TOUCH) | (senses.gravity()[:, 2] > -0.5)


VELOCITY_GO1 = FloorEnvironmentBuilder(config_class=ViewportOptions, make_task=lambda _: VelocityGo1())
