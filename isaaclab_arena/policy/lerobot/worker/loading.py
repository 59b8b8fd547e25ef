"""Loads a policy of LeRobot with its processors, and imports no more of LeRobot than the policy needs."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
import traceback
import typing

from .deferred_imports import deferred_imports  # noqa: TID252  beside this file, whatever imports it
from .weights import surely_loaded  # noqa: TID252

_TRIED = frozenset({"act", "diffusion"})
"""Types that were seen to act without what LeRobot imports for others. For any other type all is imported."""

_NOT_NEEDED = (
    "accelerate",
    "torch._dynamo",
    "transformers",
    "datasets",
    "lerobot.datasets",
    "lerobot.configs.train",
    "lerobot.envs",
    "lerobot.teleoperators",
)
"""What LeRobot imports for training, datasets and robots. It takes three times as long as what a policy needs."""

_USED_UNIMPORTED = "packaging.version"
"""What LeRobot uses and leaves to `accelerate` to import."""

_DEVICE_STEP = "device_processor"
_WEIGHTS = "model.safetensors"


class Loaded(typing.NamedTuple):
    """A policy, and its saved processors."""

    policy: typing.Any
    before: typing.Any
    after: typing.Any


def loaded(directory: str, device: str) -> Loaded:
    """Return a policy with its processors.

    Args:
        directory: What LeRobot's ``save_pretrained`` wrote.
        device: Where it is to run, such as ``cuda:1``.
    """
    kind = json.loads((pathlib.Path(directory) / "config.json").read_text())["type"]
    if kind in _TRIED:
        try:
            return _loaded(directory, device, kind, (*_NOT_NEEDED, *_other_types(kind)))
        except Exception:  # noqa: BLE001  whatever it is, LeRobot as it is either does it, or says what is wrong
            traceback.print_exc()
            for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
                del sys.modules[name]
    # Types of other packages register themselves where they are found.
    getattr(_lerobot("utils.import_utils"), "register_third_party_plugins", lambda: None)()
    return _loaded(directory, device, kind, ())


def saved_steps(directory: str, processor: str) -> set[str]:
    """Return the names of the steps of a saved processor, ``policy_preprocessor`` or ``policy_postprocessor``."""
    saved = json.loads((pathlib.Path(directory) / f"{processor}.json").read_text())
    return {step.get("registry_name") for step in saved["steps"]}


def _loaded(directory: str, device: str, kind: str, not_needed: typing.Collection[str]) -> Loaded:
    if not_needed:
        importlib.import_module(_USED_UNIMPORTED)
    with deferred_imports(not_needed):
        factory, configurations = _lerobot("policies.factory"), _lerobot("configs.policies")
        policy_class = factory.get_policy_class(kind)
    config = configurations.PreTrainedConfig.from_pretrained(directory)
    config.device = device
    has_device_step = _DEVICE_STEP in saved_steps(directory, "policy_preprocessor")
    processors = factory.make_pre_post_processors(
        config,
        pretrained_path=directory,
        preprocessor_overrides={_DEVICE_STEP: {"device": device}} if has_device_step else {},
    )
    file = str(pathlib.Path(directory, _WEIGHTS))
    policy = surely_loaded(lambda: policy_class.from_pretrained(directory, config=config), file)
    return Loaded(policy, *processors)


def _other_types(kind: str) -> list[str]:
    """Return the packages of all types of policies but one."""
    policies = pathlib.Path(importlib.import_module("lerobot").__path__[0], "policies")
    return [f"lerobot.policies.{path.name}" for path in policies.iterdir() if path.is_dir() and path.name != kind]


def _lerobot(module: str) -> typing.Any:
    return importlib.import_module(f"lerobot.{module}")
