"""What a robot arm is called and what it can do, for environments that build it and policies that drive it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Robot:
    """An arm with a two-finger gripper, as it stands in the scene.

    Attributes:
        name: Registered name, for example ``panda``.
        arm_joints: Joints of the arm, base to wrist; the actuators that hold them have the same names.
        joint_low: Lowest joint positions [rad].
        joint_high: Highest joint positions [rad].
        joint_velocity_limit: Highest joint speeds [rad/s].
        joint_torque_limit: Highest joint torques [Nm].
        home: Joint positions at the start of an episode, before noise [rad].
        finger_joints: Sliding joints of the fingers [m].
        gripper_actuator: Actuator that sets the position of each finger [m].
        gripper_width: Distance between the fingers when open [m].
        hand_body: Body that carries the tool centre point.
        finger_bodies: Bodies of the left and the right finger.
        tcp_site: The tool centre point, between the fingertips; its axes are those of the hand.
        base_body: The body that stands in the scene.
    """

    name: str
    arm_joints: tuple[str, ...]
    joint_low: tuple[float, ...]
    joint_high: tuple[float, ...]
    joint_velocity_limit: tuple[float, ...]
    joint_torque_limit: tuple[float, ...]
    home: tuple[float, ...]
    finger_joints: tuple[str, str]
    gripper_actuator: str
    gripper_width: float
    hand_body: str
    finger_bodies: tuple[str, str]
    tcp_site: str
    base_body: str
