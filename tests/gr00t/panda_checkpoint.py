"""A checkpoint with random weights for the Panda on the table, and the YAML file that names it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.environments.robots.embodiment import PANDA
from tests.gr00t.fakes import write_yaml

CONFIGS = Path(__file__).parents[2] / "isaaclab_arena_gr00t" / "policy" / "config"
HORIZON = 8
POLICY = "isaaclab_arena_gr00t.policy.gr00t_closedloop_policy.Gr00tClosedloopPolicy"


def save_small_checkpoint(
    directory: Path, shown: Mapping[str, tuple[list[int], Sequence[str]]], limits: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write a checkpoint with random weights: its steps and keys by modality, and examples of its numbers."""
    from gr00t.data.types import ModalityConfig, compute_statistics  # noqa: PLC0415  transformers takes seconds to load
    from gr00t.model.building import build_small_model  # noqa: PLC0415
    from gr00t.model.checkpoint import save_checkpoint  # noqa: PLC0415

    modalities = {name: ModalityConfig(steps, list(keys)) for name, (steps, keys) in shown.items()}
    statistics = {
        name: {key: compute_statistics(np.array(values)) for key, values in each.items()}
        for name, each in limits.items()
    }
    sizes = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2}
    save_checkpoint(directory, *build_small_model({"new_embodiment": (modalities, statistics)}, sizes=sizes))


def save_panda_checkpoint(directory: Path) -> None:
    """Write a checkpoint whose actions are joint positions near the Panda's home."""
    joints, home = ["arm", "gripper"], np.array(PANDA.robot.home)
    shown = {
        "video": ([0], ["head", "wrist"]),
        "state": ([0], joints),
        "action": (list(range(HORIZON)), joints),
        "language": ([0], ["annotation.human.task_description"]),
    }
    arm = np.stack((home - 0.3, home + 0.3))
    limits = {
        "state": {"arm": arm, "gripper": [[0.0, 0.0], [0.04, 0.04]]},
        "action": {"arm": arm, "gripper": [[0.0], [0.08]]},
    }
    save_small_checkpoint(directory, shown, limits)


def write_panda_yaml(path: Path, **changes: Any) -> str:
    """Write the YAML file of a policy for the Panda; the checkpoint is expected in ``checkpoint`` beside it."""
    document = {
        "model_path": "checkpoint",
        "action_horizon": HORIZON,
        "action_chunk_length": 5,
        "pov_cam_name_sim": {"head": "robot_head_cam_rgb", "wrist": "wrist_cam_rgb"},
        "target_image_size": [64, 64, 3],
        "state_names_sim": ["robot_joint_pos", "gripper_pos"],
        "policy_joints_config_path": str(CONFIGS / "panda_joints.yaml"),
        **changes,
    }
    return write_yaml(path, document)
