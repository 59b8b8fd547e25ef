"""A tiny robot with two cameras, and checkpoints of models that know it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gr00t.data.types import ModalityConfig, compute_statistics
from gr00t.model import Gr00tSmall, Gr00tSmallProcessor
from gr00t.model.building import build_small_model
from gr00t.model.checkpoint import save_checkpoint
from gr00t.policy.gr00t_policy import Gr00tPolicy

LANGUAGE_KEY = "annotation.human.task_description"
HORIZON = 6

Observe = Callable[..., dict[str, Any]]
Built = tuple[Gr00tSmall, Gr00tSmallProcessor]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _robot(state_keys: dict[str, int], action_keys: dict[str, int], cameras: list[str]) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    configs = {
        "video": ModalityConfig([0], cameras),
        "state": ModalityConfig([0], list(state_keys)),
        "action": ModalityConfig(list(range(HORIZON)), list(action_keys)),
        "language": ModalityConfig([0], [LANGUAGE_KEY]),
    }
    statistics = {
        modality: {key: compute_statistics(rng.uniform(-2, 3, (500, size))) for key, size in keys.items()}
        for modality, keys in (("state", state_keys), ("action", action_keys))
    }
    return configs, statistics


@pytest.fixture(scope="session")
def built() -> Built:
    """A model of two robots: one with two cameras and two state keys, one with less of everything."""
    robots = {
        "new_embodiment": _robot({"arm": 3, "gripper": 1}, {"arm": 3, "gripper": 1}, ["head", "wrist"]),
        "gr1": _robot({"arm": 2}, {"arm": 2}, ["head"]),
    }
    model, processor = build_small_model(robots, sizes={"num_layers": 2, "hidden_size": 64, "num_keypoints": 4})
    return model.eval(), processor


@pytest.fixture(scope="session")
def checkpoint(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(path, *built)
    return path


@pytest.fixture(scope="session")
def policy(checkpoint: Path) -> Gr00tPolicy:
    return Gr00tPolicy("new_embodiment", checkpoint, device="cpu")


@pytest.fixture
def observe() -> Observe:
    """Make an observation of the robot with two cameras."""

    def make(batch_size: int, *, seed: int = 0, instruction: str = "pick up the red cube") -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {
            "video": {
                camera: rng.integers(0, 256, (batch_size, 1, 64, 64, 3), dtype=np.uint8) for camera in ("head", "wrist")
            },
            "state": {
                key: rng.uniform(-2, 3, (batch_size, 1, size)).astype(np.float32)
                for key, size in (("arm", 3), ("gripper", 1))
            },
            "language": {LANGUAGE_KEY: [[instruction]] * batch_size},
        }

    return make
