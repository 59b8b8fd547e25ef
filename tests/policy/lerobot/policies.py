"""Directories of policies, as LeRobot's ``save_pretrained`` writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.preloaded.interpreter import preloaded_python

PICTURE = "observation.images.front"
STATE = "observation.state"
SITE = Path(__file__).with_name("site")
INTERPRETER: Mapping[str, Any] = {"python": preloaded_python(), "environment_variables": {"PYTHONPATH": str(SITE)}}
"""Options that run a policy in this same interpreter with something that stands in for LeRobot."""

REMEMBERING: Mapping[str, Mapping[str, Any]] = {"act": {"temporal_ensemble_coeff": 0.0}, "tdmpc": {"use_mpc": True}}
"""Settings of types with which they remember."""

LIMBS: Mapping[str, Any] = {"states": {STATE: ["robot_joint_pos", "fingers"]}}
"""Options that show a policy the states of the environment of the tests."""


def saved(directory: Path, kind: str = "act", **settings: Any) -> Path:
    """Return the directory of a policy for the environment of the tests, which looks at one of its two cameras."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "type": kind,
        "n_obs_steps": 1,
        "n_action_steps": 3,
        "use_amp": False,
        "input_features": {PICTURE: {"type": "VISUAL", "shape": [3, 6, 8]}, STATE: {"type": "STATE", "shape": [6]}},
        "output_features": {"action": {"type": "ACTION", "shape": [5]}},
    }
    (directory / "config.json").write_text(json.dumps({**config, **settings}))
    (directory / "model.safetensors").touch()
    (directory / "policy_preprocessor.json").write_text('{"steps": [{"registry_name": "device_processor"}]}')
    (directory / "policy_postprocessor.json").write_text('{"steps": []}')
    return directory


def normalised(directory: Path, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Path:
    """Give a policy processors that normalise, as LeRobot saves them."""
    features = {
        PICTURE: {"type": "VISUAL", "shape": [3, 6, 8]},
        STATE: {"type": "STATE", "shape": [6]},
        "action": {"type": "ACTION", "shape": [5]},
    }
    modes = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MIN_MAX"}
    files = {
        "policy_preprocessor": ("normalizer_processor", before),
        "policy_postprocessor": ("unnormalizer_processor", after),
    }
    for name, (kind, statistics) in files.items():
        step = {"registry_name": kind, "config": {"eps": 1e-8, "features": features, "norm_map": modes}}
        if statistics is not None:
            step["state_file"] = f"{name}_step_1_{kind}.safetensors"
            arrays = {key: np.asarray(values, np.float32) for key, values in statistics.items()}
            save_file(arrays, directory / step["state_file"])
        steps = [{"registry_name": "device_processor"}, step] if name == "policy_preprocessor" else [step]
        (directory / f"{name}.json").write_text(json.dumps({"steps": steps}))
    return directory


def dataset(directory: Path, names: list[str], fps: float) -> Path:
    """Return the directory of a dataset, as far as its description goes."""
    (directory / "meta").mkdir(parents=True)
    document = {"fps": fps, "features": {STATE: {"names": names}, PICTURE: {"names": ["height", "width", "channels"]}}}
    (directory / "meta" / "info.json").write_text(json.dumps(document))
    return directory


def options_for(directory: Path, **options: Any) -> dict[str, Any]:
    """Return the options of a job that plays a policy in the environment of the tests."""
    return {"pretrained": str(directory), **INTERPRETER, **LIMBS, **options}
