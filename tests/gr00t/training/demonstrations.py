"""Small recordings of a Panda whose joints move evenly, so that a model can learn what comes next."""

from pathlib import Path

import numpy as np
import yaml

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena.storage.layout import episode_file_name
from isaaclab_arena_gr00t.config import read_joint_files, read_policy_config
from isaaclab_arena_gr00t.training.finetune import PANDA_CONFIG, interface_of, new_model, wire_recordings
from isaaclab_arena_gr00t.training.trainer import DemonstrationSteps, Trainer, TrainingSettings, find_demonstrations

SIZE = 16
INSTRUCTIONS = ("lift the cube", "lower the cube")


def recording(index: int, *, success: bool = True, **attributes) -> RecordedEpisode:
    generator = np.random.default_rng(index)
    length = 6 + index % 3
    joints = (generator.uniform(-1, 1, 7) + 0.05 * np.arange(length)[:, None]).astype(np.float32)
    pictures = generator.integers(0, 255, (2, length, SIZE, SIZE, 3), np.uint8)
    return RecordedEpisode(
        episode_index=index,
        arrays={
            "actions": np.concatenate([joints + np.float32(0.05), np.full((length, 1), 0.08, np.float32)], axis=1),
            "obs/robot_joint_pos": joints,
            "obs/gripper_pos": np.full((length, 2), 0.04, np.float32),
            "obs/cube_pos": generator.random((length, 3)).astype(np.float32),
            "camera_obs/robot_head_cam_rgb": pictures[0],
            "camera_obs/wrist_cam_rgb": pictures[1],
        },
        attributes={
            "job": "lift",
            "success": success,
            "language_instruction": INSTRUCTIONS[index % 2],
            "control_dt": 0.05,
            **attributes,
        },
        env_args={"env_name": "lift_object"},
    )


def write_recordings(directory: Path, *episodes: RecordedEpisode) -> Path:
    """Write episodes into the directory of a job, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    for episode in episodes:
        hdf5.write_episode(directory / episode_file_name(episode.episode_index), episode)
    return directory


def write_config(path: Path, **changes) -> Path:
    """Write the Panda's policy file for small pictures and a short horizon, and return its path."""
    document = yaml.safe_load(PANDA_CONFIG.read_text())
    for key in ("policy_joints_config_path", "state_joints_config_path", "action_joints_config_path"):
        document[key] = str(PANDA_CONFIG.parent / document[key])
    document |= {"action_horizon": 4, "action_chunk_length": 4, "target_image_size": [32, 32, 3], **changes}
    path.write_text(yaml.safe_dump(document))
    return path


SIZES = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2, "vision_feature_size": 16, "num_keypoints": 4}
SETTINGS = TrainingSettings(max_steps=40, batch_size=8, noise_draws=2, warmup_steps=5)


def small_trainer(
    directory: Path, context: DistributedContext, steps: RecordedSteps, settings: TrainingSettings = SETTINGS
) -> Trainer:
    """Return a trainer on the recordings ``*.h5`` and the policy file ``policy.yaml`` of a directory."""
    config = read_policy_config(directory / "policy.yaml")
    files = read_joint_files(config)
    found = find_demonstrations(sorted(directory.glob("*.h5")))
    interface = interface_of(config, files)
    wiring = wire_recordings(found, interface, config, files, file="policy.yaml", steps=steps)
    data = DemonstrationSteps(found, wiring, horizon=interface.horizon, steps=steps)
    model, processor = new_model(data, found, interface, config, seed=settings.seed, sizes=SIZES)
    return Trainer(model, processor, config.embodiment_tag, data, settings, context)
