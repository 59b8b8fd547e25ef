"""Checkpoints as trainings write them, as bytes by the name of the file."""

import io
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

Files = dict[str, bytes]


def rsl_rl(seed: int) -> Files:
    """Return the file of rsl_rl's ``save``; the names of files are relative to the directory of the training."""
    buffer = io.BytesIO()
    torch.save({"weights": weights(seed), "iter": seed}, buffer)
    return {"model_100.pt": buffer.getvalue()}


def lerobot(seed: int) -> Files:
    """Return the files of LeRobot's ``save_checkpoint``, in the order in which it writes them."""
    below = "checkpoints/000100/pretrained_model"
    return {
        f"{below}/config.json": json.dumps({"type": "act", "seed": seed}).encode(),
        f"{below}/model.safetensors": save({"weights": weights(seed)}),
        f"{below}/policy_preprocessor.json": b'{"steps": []}',
        "checkpoints/000100/training_state/training_step.json": b'{"step": 100}',
    }


def trainer(seed: int) -> Files:
    """Return the files of transformers' ``Trainer``, in the order in which it writes them."""
    return {
        "checkpoint-100/config.json": json.dumps({"seed": seed}).encode(),
        "checkpoint-100/model-00001-of-00002.safetensors": save({"a": weights(seed)}),
        "checkpoint-100/model-00002-of-00002.safetensors": save({"b": weights(seed)}),
        "checkpoint-100/model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
        ).encode(),
        "checkpoint-100/trainer_state.json": b"{}",
    }


FAMILIES = {"rsl_rl": rsl_rl, "lerobot": lerobot, "trainer": trainer}
PATHS = {rsl_rl: "model_100.pt", lerobot: "checkpoints/000100/pretrained_model", trainer: "checkpoint-100"}
"""What a policy loads."""


def write(directory: Path, files: Files) -> None:
    """Write all files of a checkpoint."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def weights(seed: int) -> torch.Tensor:
    """Return the weights that a checkpoint has."""
    return torch.from_numpy(np.random.default_rng(seed).random((16, 16), dtype=np.float32))
