"""Define a robot arm: the names of its parts and its limits, for environments and policies."""

from dataclasses import dataclass

from isaaclab_arena.errors import ConfigError, Problem

_NUM_FINGERS = 2


@dataclass(frozen=True, kw_only=True)
class Robot:
    """An arm, with a two-finger gripper or without, as it stands in the scene.

    Attributes:
        name: Registered name, for example ``panda``.
        arm_joints: Joints of the arm, base to wrist.
        arm_actuators: Actuators that hold them at a position, in the same order.
        joint_low: Lowest joint positions [rad].
        joint_high: Highest joint positions [rad].
        joint_velocity_limit: Highest joint speeds [rad/s].
        joint_torque_limit: Highest joint torques [Nm].
        home: Joint positions at the start of an episode, before noise [rad].
        finger_joints: Joints of the fingers that move: sliding [m] or turning [rad], see ``finger_unit``.
        finger_open: Their positions when the gripper is open.
        gripper_actuator: Actuator that sets the distance between the fingers, None for a robot without a gripper.
        gripper_closed: Its control when the fingers meet.
        gripper_open: Its control when the gripper is open; widths in between are interpolated.
        gripper_width: Distance between the fingertips when open [m]; 0 without a gripper.
        hand_body: Body that carries the tool centre point; its z axis points out of the hand, and the fingers close
            along its y axis.
        palm_body: Body that carries the fingers; what touches it or them touches the hand.
        finger_bodies: Bodies of the left and the right finger, the left one on the side of +y; empty without a gripper.
        tcp_site: The tool centre point, between the tips of the open fingers; its axes are those of the hand.
        base_body: The body that stands in the scene.
        finger_unit: Unit of ``finger_joints``.
        hand_down: How the hand is held when it points down and may choose its yaw.
        rotation_weight: What a turn of 1 rad counts in inverse kinematics, against 1 m of translation. An arm of fewer
            than six joints cannot do both and needs a small weight, so that its position is right.
        ik_damping: Damping of the inverse kinematics.
        right_finger_fixed: Whether the left finger alone moves, so that the middle between the fingertips comes nearer
            to the right finger as the gripper closes.
    """

    name: str
    arm_joints: tuple[str, ...]
    arm_actuators: tuple[str, ...]
    joint_low: tuple[float, ...]
    joint_high: tuple[float, ...]
    joint_velocity_limit: tuple[float, ...]
    joint_torque_limit: tuple[float, ...]
    home: tuple[float, ...]
    finger_joints: tuple[str, ...]
    finger_open: tuple[float, ...]
    gripper_actuator: str | None
    gripper_closed: float
    gripper_open: float
    gripper_width: float
    hand_body: str
    palm_body: str
    finger_bodies: tuple[str, ...]
    tcp_site: str
    base_body: str
    finger_unit: str = "m"
    hand_down: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 0.0)
    rotation_weight: float = 1.0
    ik_damping: float = 0.03
    right_finger_fixed: bool = False

    @property
    def fingers(self) -> tuple[str, str]:
        """Bodies of the left and the right finger, for tasks that cannot do without.

        Raises:
            ConfigError: If the robot has no gripper.
        """
        if len(self.finger_bodies) != _NUM_FINGERS:
            raise ConfigError(Problem(f"'{self.name}' has no gripper, and the task needs one", key="embodiment"))
        left, right = self.finger_bodies
        return left, right

    @property
    def control_per_metre(self) -> float:
        """How far the gripper's control moves per metre between the fingers; 0 without a gripper."""
        return (self.gripper_open - self.gripper_closed) / self.gripper_width if self.gripper_width else 0.0
