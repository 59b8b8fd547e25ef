"""A checkpoint with random weights for the Panda on the table, and the YAML file that names it."""

from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.environments.robots.embodiment import PANDA
from tests.gr00t.fakes import write_yaml

CONFIGS = Path(__file__).parents[2] / "isaaclab_arena_gr00t" / "policy" / "config"
HORIZON = 8
POLICY = "isaaclab_arena_gr00t.policy.gr00t_closedloop_policy.Gr00tClosedloopPolicy"


def save_panda_checkpoint(directory: Path) -> None:
    """Write a checkpoint whose actions are joint positions near the Panda's home."""
    from gr00t.data.types import ModalityConfig, compute_statistics  # noqa: PLC0415  transformers takes seconds to load
    from gr00t.model.building import build_small_model  # noqa: PLC0415
    from gr00t.model.checkpoint import save_checkpoint  # noqa: PLC0415

    home = np.array(PANDA.robot.home)
    arm = compute_statistics(np.stack((home - 0.3, home + 0.3)))
    modalities = {
        "video": ModalityConfig(delta_indices=[0], modality_keys=["head", "wrist"]),
        "state": ModalityConfig(delta_indices=[0], modality_keys=["arm", "gripper"]),
        "action": ModalityConfig(delta_indices=list(range(HORIZON)), modality_keys=["arm", "gripper"]),
        "language": ModalityConfig(delta_indices=[0], modality_keys=["annotation.human.task_description"]),
    }
    statistics = {
        "state": {"arm": arm, "gripper": compute_statistics(np.array([[0.0, 0.0], [0.04, 0.04]]))},
        "action": {"arm": arm, "gripper": compute_statistics(np.array([[0.0], [0.08]]))},
    }
    sizes = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2}
    model, processor = build_small_model({"new_embodiment": (modalities, statistics)}, sizes=sizes)
    save_checkpoint(directory, model, processor)


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
