"""The built-in arms: the Franka Emika Panda and the SO-ARM101."""

from isaaclab_arena.environments.robots.embodiment import REFERENCE_WORKSPACE, Embodiment, Workspace
from isaaclab_arena.sim.scene.scene import CameraPose, Robot

# The Franka Emika Panda: seven joints, a parallel gripper of 0 to 0.04 m per finger.

_PANDA_JOINTS = tuple(f"robot/panda_joint{number}" for number in range(1, 8))

PANDA = Embodiment(
    asset="robots/panda.xml",
    workspace=REFERENCE_WORKSPACE,
    robot=Robot(
        name="panda",
        arm_joints=_PANDA_JOINTS,
        arm_actuators=_PANDA_JOINTS,
        joint_low=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
        joint_high=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
        joint_velocity_limit=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
        joint_torque_limit=(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
        home=(0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.7854),
        finger_joints=("robot/panda_finger_joint1", "robot/panda_finger_joint2"),
        finger_open=(0.04, 0.04),
        gripper_actuator="robot/gripper",
        gripper_closed=0.0,
        gripper_open=0.04,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/hand",
        finger_bodies=("robot/left_finger", "robot/right_finger"),
        tcp_site="robot/tcp",
        base_body="robot/link0",
    ),
)


# The SO-ARM101 of The Robot Studio, LeRobot's arm: five joints, and a gripper with one moving jaw.
#
# Joint names and ranges, link lengths, masses and the servos' friction and torque are those of
# https://github.com/TheRobotStudio/SO-ARM100, Simulation/SO101/so101_new_calib.xml, in which zero is the middle of each
# joint's range. The servos are Feetech STS3215 of 12 V: 2.94 Nm, and 45 turns per minute without load.

_SO101_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
_JAW_CLOSED_RAD = -0.1745
_JAW_OPEN_RAD = 1.0015
_HALF_SQRT = 0.5**0.5

SO101 = Embodiment(
    asset="robots/so101.xml",
    workspace=Workspace(low=(0.20, -0.16, 0.06), high=(0.27, 0.16, 0.22), reach_m=0.39, tallest_m=0.17),
    scene_cameras=(
        CameraPose(name="robot_head_cam", position=(0.12, -0.50, 0.48), target=(0.18, 0.0, 0.09), fovy_deg=46.0),
        CameraPose(name="viewport", position=(0.50, -0.75, 0.42), target=(0.16, 0.0, 0.10), fovy_deg=34.0),
    ),
    robot=Robot(
        name="so101",
        arm_joints=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        arm_actuators=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        joint_low=(-1.91986, -1.74533, -1.69, -1.65806, -2.74385),
        joint_high=(1.91986, 1.74533, 1.69, 1.65806, 2.84121),
        joint_velocity_limit=(4.7,) * 5,
        joint_torque_limit=(2.94,) * 5,
        home=(0.0, -0.80, 0.55, 1.45, 0.0487),
        finger_joints=("robot/gripper",),
        finger_open=(_JAW_OPEN_RAD,),
        gripper_actuator="robot/gripper",
        gripper_closed=_JAW_CLOSED_RAD,
        gripper_open=_JAW_OPEN_RAD,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/gripper",
        finger_bodies=("robot/moving_jaw", "robot/fixed_jaw"),
        tcp_site="robot/tcp",
        base_body="robot/base",
        finger_unit="rad",
        hand_down=(0.0, _HALF_SQRT, _HALF_SQRT, 0.0),
        rotation_weight=0.05,
        ik_damping=0.02,
        right_finger_fixed=True,
    ),
)
