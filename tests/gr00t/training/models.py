"""A trainer of a small model on small recordings."""

from pathlib import Path

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena_gr00t.config import read_joint_files, read_policy_config
from isaaclab_arena_gr00t.training.finetune import interface_of, new_model, wire_recordings
from isaaclab_arena_gr00t.training.trainer import DemonstrationSteps, Trainer, TrainingSettings, find_demonstrations

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
