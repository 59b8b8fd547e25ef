"""The network that a file holds, whatever kind of file it is."""

from pathlib import Path

import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.agent_settings import AGENT_FILE, AgentSettings
from isaaclab_arena.models.exported import OnnxNetwork, TorchScriptNetwork, is_torchscript
from isaaclab_arena.models.network import PolicyNetwork
from isaaclab_arena.models.rsl_rl_checkpoint import load_actor, read_checkpoint, refuse_other_trainers


def load_network(path: Path, settings: AgentSettings | None, device: torch.device) -> PolicyNetwork:
    """Return the network of a checkpoint of rsl_rl, an ONNX file or a TorchScript file.

    Args:
        path: The file.
        settings: The configuration that it was trained with; exported files do without.
        device: Where it is to run. ONNX runs on the CPU.

    Raises:
        ConfigError: If the file is none of these, or its network is not known here.
    """
    if path.suffix.lower() == ".onnx":
        return OnnxNetwork(path)
    if is_torchscript(path):
        return TorchScriptNetwork(path, device)
    if settings is None:
        refuse_other_trainers(read_checkpoint(path), path)
        message = (
            f"has no {AGENT_FILE} beside it or one directory above, and without its training's configuration nobody "
            "knows its activation; name the file as agent_cfg_path"
        )
        raise ConfigError(Problem(message, file=str(path)))
    return load_actor(path, settings, device)
