"""Bring a robot whose MJCF file has torque motors: give it position actuators, describe it, and evaluate with it.

python examples/robot_with_torque_motors.py

Arms of this package are told where their joints should be. A motor is told a torque, so it becomes a position actuator
of the same strength: a servo with stiffness kp [N m / rad] and damping kv [N m s / rad].
"""

from pathlib import Path

import mujoco

import isaaclab_arena as arena

DIRECTORY = Path("outputs") / "robot"
# As somebody else wrote it. A motor gives at most its gear times its control.
FOREIGN = """
<mujoco model="six_axis">
  <compiler angle="radian" autolimits="true"/>
  <default>
    <joint axis="0 1 0" range="-2.9 2.9" armature="0.1" damping="2"/>
    <geom contype="0" conaffinity="1"/>
    <motor ctrlrange="-1 1" gear="90"/>
  </default>
  <worldbody>
    <body name="base">
      <geom type="cylinder" size="0.07 0.06" pos="0 0 0.06" mass="3" contype="0" conaffinity="0"/>
      <body name="turret" pos="0 0 0.20">
        <joint name="yaw" axis="0 0 1"/>
        <geom type="sphere" size="0.065" mass="2"/>
        <body name="upper">
          <joint name="shoulder" range="-1.9 1.9"/>
          <geom type="capsule" size="0.04" fromto="0 0 0.06 0 0 0.28" mass="2"/>
          <body name="forearm" pos="0 0 0.34">
            <joint name="elbow"/>
            <geom type="capsule" size="0.035" fromto="0 0 0 0 0 0.26" mass="1.5"/>
            <body name="wrist" pos="0 0 0.32">
              <joint name="wrist_pitch"/>
              <geom type="sphere" size="0.04" mass="0.6"/>
              <body name="flange">
                <joint name="wrist_yaw" axis="1 0 0" range="-1.5 1.5"/>
                <geom type="capsule" size="0.03" fromto="0 0 0 0 0 0.06" mass="0.4"/>
                <body name="hand" pos="0 0 0.08" quat="0 0 0 1">
                  <joint name="wrist_roll" axis="0 0 1"/>
                  <geom type="box" size="0.02 0.06 0.015" pos="0 0 0.01" mass="0.4"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="m1" joint="yaw"/>
    <motor name="m2" joint="shoulder"/>
    <motor name="m3" joint="elbow"/>
    <motor name="m4" joint="wrist_pitch"/>
    <motor name="m5" joint="wrist_yaw"/>
    <motor name="m6" joint="wrist_roll"/>
  </actuator>
</mujoco>
"""
# Stiff enough for the arm's inertia: the damping is critical or a little more, and the force is the motor's.
GAINS = {"m1": (2000, 120), "m2": (2000, 120), "m3": (2000, 120), "m4": (2000, 120), "m5": (500, 30), "m6": (500, 30)}
DESCRIPTION = """
name: six_axis_of_torques
mjcf: six_axis.xml
base: {body: base}
arm:
  joints: [yaw, shoulder, elbow, wrist_pitch, wrist_yaw, wrist_roll]
  actuators: [m1, m2, m3, m4, m5, m6]
  home: [0.0, 0.4115, 1.3531, 1.377, 0.0, 0.0]
tool: {body: hand, position: [0.0, 0.0, 0.05]}
workspace: {low: [0.35, -0.20, 0.10], high: [0.52, 0.20, 0.40]}
gravity_compensation: true
"""


def with_position_actuators(mjcf: str) -> str:
    """Return an MJCF file with position actuators in place of its motors, as strong as they were."""
    spec = mujoco.MjSpec.from_string(mjcf)
    for actuator in spec.actuators:
        kp, kv = GAINS[actuator.name]
        strength = actuator.gear[0] * actuator.ctrlrange
        actuator.set_to_position(kp=kp, kv=kv)
        actuator.gear[0] = 1.0  # the target is the joint's own angle
        actuator.ctrlrange = spec.joint(actuator.target).range
        actuator.forcerange = strength
    spec.compile()
    return spec.to_xml()


def main() -> float:
    """Write the robot and its description, let the scripted policy reach with it, and return the success rate."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    (DIRECTORY / "six_axis.xml").write_text(with_position_actuators(FOREIGN))
    (DIRECTORY / "robot.yaml").write_text(DESCRIPTION)
    results = arena.evaluate(
        environment="reach",
        policy="scripted",
        num_episodes=20,
        num_envs=4,
        embodiment=str(DIRECTORY / "robot.yaml"),
    )
    print(results)
    return results.job().success_rate or 0.0


if __name__ == "__main__":
    main()
