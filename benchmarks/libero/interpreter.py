"""What a program needs to run LIBERO in LIBERO's own interpreter."""

from __future__ import annotations

import importlib.util
import sys
import types
import typing
from pathlib import Path

HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""What the policy of every harness does: nothing, with the gripper open."""

# By its file, because the package around it needs more than LIBERO's interpreter has.
_READER = Path(__file__).parents[2] / "isaaclab_arena/environments/gym/worker/sources/libero_tasks.py"


def stand_in_for_torch() -> None:
    """Let LIBERO read its initial states without torch, where that is not installed; nothing else needs it."""
    if importlib.util.find_spec("torch") is None:
        torch: typing.Any = types.ModuleType("torch")
        torch.load = _load
        sys.modules["torch"] = torch


def _load(path: str | Path, **_: typing.Any) -> typing.Any:
    spec = importlib.util.spec_from_file_location("libero_init_states", _READER)
    reader: typing.Any = importlib.util.module_from_spec(typing.cast("typing.Any", spec))
    typing.cast("typing.Any", spec).loader.exec_module(reader)
    return reader.read_init_states(str(path))
