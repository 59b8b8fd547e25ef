"""The Franka Emika Panda: seven joints, a parallel gripper of 0 to 0.04 m per finger."""

from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import REFERENCE_WORKSPACE
from isaaclab_arena.sim.scene.robot import Robot

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
