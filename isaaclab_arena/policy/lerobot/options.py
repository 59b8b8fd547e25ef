"""Options of policies of LeRobot."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from isaaclab_arena.config.options import Count, Positive
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.paths import given_path


@dataclass(frozen=True)
class LeRobotPolicyCfg(PolicyCfg):
    """Options of `LeRobotPolicy`. Paths are relative to the working directory.

    Attributes:
        pretrained: Directory that LeRobot's ``save_pretrained`` wrote, or one of a training, whose last checkpoint is
            taken.
        python: Interpreter that has LeRobot; that of this program by default.
        environment_variables: What the policy's process has beside this program's variables.
        images: Camera for each of the policy's pictures: ``{"observation.images.front": "front_cam_rgb"}``. By default
            the camera of the same name, or the only one.
        states: Observations of the group ``policy``, in order, for each of the policy's other inputs:
            ``{"observation.state": ["robot_joint_pos", "gripper_pos"]}``. By default those that the training's dataset
            names, or the only one of that size.
        dataset: The training's dataset, for names of states and the rate; by default where the training found it.
        fps: Control steps per second that the policy is made for; by default the dataset's.
        action_columns: Indices into the policy's action for each number of the environment's; None if both are the
            same.
        n_action_steps: Actions that are played before the policy looks again, at most as many as it was saved with.
        slots_per_call: Env slots in each call of the network; by default up to 4 on a CPU, and on a GPU as many as need
            a chunk.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        policy_device_id: Index of a GPU.
        start_timeout_s: How long importing LeRobot and loading the policy may take [s].
        timeout_s: How long an answer may take [s].
    """

    pretrained: str
    python: str | None = None
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dataset: str | None = None
    fps: Positive | None = None
    action_columns: tuple[int, ...] | None = None
    n_action_steps: Count | None = None
    slots_per_call: Count | None = None
    policy_device: str | None = None
    policy_device_id: int | None = None
    start_timeout_s: Positive = 300.0
    timeout_s: Positive = 120.0

    @property
    def interpreter(self) -> str:
        """The interpreter of the policy's process."""
        return str(given_path(self.python or sys.executable))
