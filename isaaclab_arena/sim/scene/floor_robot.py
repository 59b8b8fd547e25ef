"""Define a robot on a floor: the names of its parts, and the effect of its actions."""

from dataclasses import dataclass

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.sim.scene.scene import ASSETS, CameraPose, part_names


@dataclass(frozen=True, kw_only=True)
class FloorRobot:
    """A cart, a quadruped, a humanoid, as it stands in the scene.

    An action has one number per actuator. The actuator's control is ``default_control + action_scale * action``: with
    position actuators a joint target about the default posture, Isaac Lab's ``JointPositionAction``; with motors a
    share of the greatest force.

    Attributes:
        name: Registered name, for example ``go1``.
        asset: Its MJCF file, relative to the package's assets or absolute.
        root_body: The body that everything else hangs on.
        free_joint: The root's free joint, None for a robot that is fixed to the floor.
        joints: Its other joints, in the order of observations.
        default_joint_position: Their positions in the default posture [rad or m].
        actuators: Its actuators, in the order of actions.
        default_control: Control of each that a zero action asks for.
        action_scale: What an action of 1 adds to each [rad, N or Nm].
        action_bound: Largest absolute value of an action; what is beyond counts as it.
        viewport: From where a person watches it.
        holds_targets: Whether a control is a position that is held, and not a force.

    Raises:
        ConfigError: If its file cannot be read or lacks a part that is named, or if numbers and parts do not pair up.
    """

    name: str
    asset: str
    root_body: str
    free_joint: str | None
    joints: tuple[str, ...]
    default_joint_position: tuple[float, ...]
    actuators: tuple[str, ...]
    default_control: tuple[float, ...]
    action_scale: tuple[float, ...]
    action_bound: float
    viewport: CameraPose
    holds_targets: bool = True

    def __post_init__(self) -> None:
        names, file = part_names(self.asset), str(ASSETS / self.asset)
        free = () if self.free_joint is None else (self.free_joint,)
        named = (
            ("body", (self.root_body,), names.bodies),
            ("free joint", free, names.free_joints),
            ("joint", self.joints, names.joints),
            ("actuator", self.actuators, names.actuators),
        )
        problems = []
        for kind, wanted, own in named:
            known = [f"robot/{name}" for name in own]
            problems += [
                Problem(f"'{self.name}': no {kind} called '{name}'{did_you_mean(name, known)}", file=file)
                for name in wanted
                if name not in known
            ]
        for key, count, of in (
            ("default_joint_position", len(self.joints), "joints"),
            ("default_control", len(self.actuators), "actuators"),
            ("action_scale", len(self.actuators), "actuators"),
        ):
            if len(getattr(self, key)) != count:
                message = f"'{self.name}': {key} has {len(getattr(self, key))} entries for {count} {of}"
                problems.append(Problem(message, file=file))
        if problems:
            raise ConfigError(problems)
