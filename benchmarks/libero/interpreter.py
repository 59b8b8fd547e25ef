"""What a program needs to run LIBERO in LIBERO's own interpreter."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import types
import typing
import zipfile
from pathlib import Path

HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""What the policy of every harness does: nothing, with the gripper open."""


def stand_in_for_torch() -> None:
    """Let LIBERO read its initial states without torch, where that is not installed; nothing else needs it."""
    if importlib.util.find_spec("torch") is None:
        torch: typing.Any = types.ModuleType("torch")
        torch.load = _load
        sys.modules["torch"] = torch


def _load(path: str | Path, **_: typing.Any) -> typing.Any:
    with zipfile.ZipFile(path) as archive:
        (data,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return pickle.loads(archive.read(data))
