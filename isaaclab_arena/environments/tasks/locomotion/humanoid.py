"""The humanoid: its names, how it stands, and what tasks read of it. All shapes begin with (num_envs, ...)."""

import torch

from isaaclab_arena.environments.mdp.floor_observations import sense_terms, vector_term
from isaaclab_arena.environments.mdp.floor_task import FloorTask
from isaaclab_arena.environments.mdp.locomotion_terms import mean_square
from isaaclab_arena.environments.mdp.observations import ObservationTerm
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.math.rotation import rotate
from isaaclab_arena.sim.named_state import NamedState
from isaaclab_arena.sim.scene.floor_robot import FloorRobot
from isaaclab_arena.sim.scene.scene import CameraPose

STANDING_HEIGHT_M = 0.812
PELVIS, ROOT = "robot/pelvis", "robot/root"
FEET = ("robot/left_foot", "robot/right_foot")
KEYPOINTS = ("robot/head", "robot/left_hand", "robot/right_hand", *FEET)

# Joint, position in the default posture [rad], and how far an action of 1 moves its target [rad].
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


def _side(side: str, joints: tuple[tuple[str, float, float], ...]) -> tuple[tuple[str, float, float], ...]:
    mirrored = -1.0 if side == "right" else 1.0
    return tuple(
        (f"{side}_{name}", default * (mirrored if name.endswith(("roll", "yaw")) else 1.0), scale)
        for name, default, scale in joints
    )


_JOINTS = (*_WAIST, *_side("left", _LEG), *_side("right", _LEG), *_side("left", _ARM), *_side("right", _ARM))
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
    viewport=CameraPose(
        name="viewport", position=(2.3, -2.6, 1.5), target=(0.0, 0.0, 0.75), fovy_deg=38.0, follows=PELVIS
    ),
)


class HumanoidTask(FloorTask):
    """A task of the humanoid, which keeps the action before the last, for rewards of smooth motion."""

    robot = HUMANOID
    control_dt = 0.02

    def attach(self, backend: Backend) -> None:
        """Make room for what is remembered of each env slot."""
        super().attach(backend)
        num_joints = len(HUMANOID.joints)
        self.previous_action = torch.zeros(
            backend.num_envs, num_joints, dtype=backend.ctrl.dtype, device=backend.device
        )

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget the past of env slots that were just reset. Shape: (n,), int64."""
        super().begin(backend, env_ids)
        self.previous_action[env_ids] = 0

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return what it feels of itself: how the pelvis moves and leans, its joints, and its last action."""
        return {
            **sense_terms(HUMANOID, lambda: self.senses),
            "last_action": vector_term(JOINTS, "", self.last_action),
        }

    def last_action(self, backend: Backend) -> torch.Tensor:
        """Return the action of which the controls are now the result. Shape: (num_envs, num_joints)."""
        return self.actions.last(backend)

    def jerkiness(self, backend: Backend, running: torch.Tensor) -> torch.Tensor:
        """Return the mean square of the change between the last two actions; called once per step.

        Args:
            backend: The simulation.
            running: Env slots that made the step. Shape: (num_envs,), bool.

        Returns:
            Shape: (num_envs,).
        """
        action = self.last_action(backend)
        change = action - self.previous_action
        self.previous_action = torch.where(running[:, None], action, self.previous_action)
        return mean_square(change)


def heading(backend: NamedState) -> torch.Tensor:
    """Return the direction in which the pelvis looks, seen from above, as a unit vector. Shape: (num_envs, 2)."""
    orientation = backend.body_orientation(PELVIS)
    ahead = torch.zeros_like(orientation[:, :3])
    ahead[:, 0].fill_(1.0)
    x, y, _ = rotate(orientation, ahead).unbind(-1)
    length = torch.sqrt(x * x + y * y).clamp(min=1e-6)
    return torch.stack((x / length, y / length), dim=-1)
