"""Read the settings of a replayed LeRobot dataset: the options of a job, and the YAML file that they may name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena_gr00t.config import read_settings


@dataclass(frozen=True)
class ReplayLerobotPolicyArgs(PolicyCfg):
    """Options of `ReplayLerobotPolicy`; ``dataset_path`` or ``policy_config_yaml_path`` must be given.

    Attributes:
        policy_config_yaml_path: The YAML file that names the dataset; see `LerobotReplayConfig`.
        dataset_path: The directory of the dataset; takes precedence over the YAML file's.
        trajectory_index: The trajectory to replay in every episode; None replays trajectory i in episode i.
        episodes: Which trajectories to replay one after the other, from episode 0 on: their numbers, or ``present`` for
            all that there are, ascending.
        max_steps: Control steps after which an episode ends, if its trajectory is longer.
        device: Where actions are kept until they are played, None for the environment's device.
        config_yaml_path: Isaac Lab Arena's name of ``policy_config_yaml_path`` on the command line.
        num_envs: Accepted for Isaac Lab Arena's job files; the policy serves whatever number of env slots there is.
    """

    policy_config_yaml_path: str | None = None
    dataset_path: str | None = None
    trajectory_index: int | None = None
    episodes: Literal["present"] | tuple[int, ...] | None = None
    max_steps: int | None = None
    device: str | None = None
    config_yaml_path: str | None = None
    num_envs: int = 1

    @property
    def yaml_path(self) -> str | None:
        """The YAML file, given under either name."""
        return self.policy_config_yaml_path or self.config_yaml_path


@dataclass(frozen=True, kw_only=True)
class LerobotReplayConfig:
    """The YAML file of a replayed dataset, with Isaac Lab Arena's keys; paths as in `Gr00tClosedloopPolicyConfig`.

    Attributes:
        dataset_path: The directory of the dataset.
        policy_joints_config_path: File with the joints of the groups in ``modality.json``. Without it, a dataset that
            was made from a recording gets its original actions back, and others are replayed unchanged.
        action_joints_config_path: File with the position of every joint in the environment's action.
        action_horizon: Accepted and not used: every action is played.
        action_chunk_length: Accepted and not used: every action is played.
        embodiment_tag: Accepted and not used: the dataset has it.
        modality_config_path: Accepted and not used: the dataset has it.
        task_mode_name: Accepted and not used: the joint files say where actions go.
        video_backend: Accepted and not used: no videos are read.
    """

    dataset_path: str
    policy_joints_config_path: str | None = None
    action_joints_config_path: str | None = None
    action_horizon: int | None = None
    action_chunk_length: int | None = None
    embodiment_tag: str | None = None
    modality_config_path: str | None = None
    task_mode_name: str | None = None
    video_backend: str | None = None


def read_replay_config(args: ReplayLerobotPolicyArgs) -> LerobotReplayConfig:
    """Return the settings in a job's options and in the YAML file that they may name.

    Raises:
        ConfigError: With every problem, each with the key, and with the file where it is there.
    """
    file = args.yaml_path
    if file is None:
        if args.dataset_path is None:
            raise ConfigError(Problem("is missing; give it, or policy_config_yaml_path", key="dataset_path"))
        return LerobotReplayConfig(dataset_path=args.dataset_path)
    paths = ("dataset_path", "policy_joints_config_path", "action_joints_config_path")
    given = {} if args.dataset_path is None else {"dataset_path": str(Path(args.dataset_path).absolute())}
    return read_settings(LerobotReplayConfig, file, owner="a replayed dataset", paths=paths, **given)
