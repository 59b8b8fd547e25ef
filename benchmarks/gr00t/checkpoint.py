"""The checkpoint of the GR00T benchmarks, the YAML file that names it, and its observations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from gr00t.data.types import ModalityConfig, compute_statistics
from gr00t.model.building import build_small_model
from gr00t.model.checkpoint import save_checkpoint

from benchmarks import ROOT
from isaaclab_arena.environments.robots.embodiment import PANDA
from isaaclab_arena_gr00t.config import Dimensions, Gr00tClosedloopPolicyConfig, read_joint_files, read_policy_config
from isaaclab_arena_gr00t.training.finetune import interface_of

PANDA_YAML = ROOT / "isaaclab_arena_gr00t" / "policy" / "config" / "panda_closedloop.yaml"
INSTRUCTION = "pick up the red cube and lift it"
_AROUND_HOME_RAD = 0.3
_FINGERS_M = (0.0, 0.04)
_GRIPPER_M = (0.0, 0.08)


def modalities() -> dict[str, ModalityConfig]:
    """Return the modalities of a model for the Panda's YAML file."""
    config = read_policy_config(PANDA_YAML)
    files = read_joint_files(config)
    interface = interface_of(config, files)
    steps = list(range(interface.horizon))
    return {
        "video": ModalityConfig(delta_indices=[0], modality_keys=list(interface.video_keys)),
        "state": ModalityConfig(delta_indices=[0], modality_keys=list(interface.state_keys)),
        "action": ModalityConfig(delta_indices=steps, modality_keys=list(interface.action_keys)),
        "language": ModalityConfig(delta_indices=[0], modality_keys=list(interface.language_keys)),
    }


def save_random_checkpoint(directory: Path) -> int:
    """Write a checkpoint of the usual size with actions near the Panda's home; return its number of parameters."""
    home = np.array(PANDA.robot.home)
    arm = compute_statistics(np.stack((home - _AROUND_HOME_RAD, home + _AROUND_HOME_RAD)))
    statistics = {
        "state": {
            "arm": arm,
            "gripper": compute_statistics(np.stack((np.full(2, _FINGERS_M[0]), np.full(2, _FINGERS_M[1])))),
        },
        "action": {"arm": arm, "gripper": compute_statistics(np.array(_GRIPPER_M)[:, None])},
    }
    config = read_policy_config(PANDA_YAML)
    model, processor = build_small_model(
        {config.embodiment_tag: (modalities(), statistics)},
        instructions=[INSTRUCTION],
        image_size=config.target_image_size[0],
    )
    save_checkpoint(directory, model, processor)
    return sum(parameter.numel() for parameter in model.parameters())


def write_policy_yaml(path: Path, model_path: Path, **changes: Any) -> str:
    """Write the Panda's YAML file with a checkpoint's directory in it, and return its path."""
    document = yaml.safe_load(PANDA_YAML.read_text(encoding="utf-8"))
    joint_files = {
        key: str(PANDA_YAML.parent / value) for key, value in document.items() if key.endswith("_joints_config_path")
    }
    path.write_text(yaml.safe_dump({**document, **joint_files, "model_path": str(model_path.resolve()), **changes}))
    return str(path)


def shown(
    model: Mapping[str, Any], dimensions: Dimensions, batch_size: int, config: Gr00tClosedloopPolicyConfig
) -> dict[str, Any]:
    """Return an observation of noise in the format of a model, with pictures of the configured size."""
    generator = np.random.default_rng(batch_size)
    size = (batch_size, 1, *config.target_image_size)
    state = dimensions["state"]
    return {
        "video": {key: generator.integers(0, 256, size, np.uint8) for key in model["video"].modality_keys},
        "state": {key: np.zeros((batch_size, 1, state[key]), np.float32) for key in model["state"].modality_keys},
        "language": {key: [[INSTRUCTION]] * batch_size for key in model["language"].modality_keys},
    }
