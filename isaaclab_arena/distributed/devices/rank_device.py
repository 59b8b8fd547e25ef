"""Choose the device of a rank, by one rule for simulation, cameras and policy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from isaaclab_arena.distributed.devices.device_names import check_device_exists
from isaaclab_arena.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """A device, and why it was chosen.

    Attributes:
        device: ``cpu``, or a GPU with its index.
        reason: The reason, for the log.
    """

    device: torch.device
    reason: str


def choose_rank_device(
    requested: str | None,
    *,
    local_rank: int,
    local_world_size: int | None,
    visible_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> DeviceChoice:
    """Choose the device of a rank: simulation, cameras and, unless it says otherwise, policy.

    A process that is alone on its machine gets the requested device. Among several, even ``cuda`` with an index means
    the rank's own GPU, as in Isaac Lab Arena, because otherwise all ranks would share one GPU.

    Args:
        requested: ``cpu``, ``cuda``, ``cuda:<index>``, or None for a GPU where there is one.
        local_rank: The rank's number on its machine.
        local_world_size: Number of ranks on its machine, None if unknown.
        visible_gpus: GPUs that this process can use.
        environ: Environment variables, for messages.

    Raises:
        ConfigError: If the GPU does not exist, or the ranks cannot share the GPUs evenly.
    """
    if requested is not None:
        device = check_device_exists(requested, visible_gpus=visible_gpus, option="--device", environ=environ)
        if device.type == "cpu" or local_world_size == 1:
            return DeviceChoice(device=device, reason="asked for")
    if visible_gpus == 0:
        return DeviceChoice(device=torch.device("cpu"), reason="no CUDA device is visible")
    device = gpu_of_rank(local_rank, local_world_size=local_world_size, visible_gpus=visible_gpus)
    reason = "the only visible GPU" if visible_gpus == 1 else f"LOCAL_RANK is {local_rank}"
    if local_rank >= visible_gpus > 1:
        reason += f", and {local_world_size} ranks share {visible_gpus} GPUs"
    if requested not in (None, "cuda", str(device)):
        reason += f", which takes precedence over --device {requested} where ranks share a machine"
    return DeviceChoice(device=device, reason=reason)


def gpu_of_rank(local_rank: int, *, local_world_size: int | None, visible_gpus: int) -> torch.device:
    """Return the GPU of a rank, for simulation, cameras and policy.

    It is ``cuda:<LOCAL_RANK>``. More ranks than GPUs share them evenly, in turn. If each rank sees only one GPU, it is
    ``cuda:0``.

    Args:
        local_rank: The rank's number on its machine.
        local_world_size: Number of ranks on its machine, None if unknown.
        visible_gpus: GPUs that this process can use, at least one.

    Raises:
        ConfigError: If the ranks cannot share the GPUs evenly; the message names both numbers. All ranks of the machine
            reach the same result if ``local_world_size`` is known.
    """
    # If a scheduler shows each process one GPU, it is cuda:0 for every rank.
    if visible_gpus == 1:
        return torch.device("cuda", 0)
    are_too_many = local_rank >= visible_gpus if local_world_size is None else local_world_size > visible_gpus
    if are_too_many and (local_world_size is None or local_world_size % visible_gpus):
        beyond = local_rank >= visible_gpus
        many = f"LOCAL_RANK is {local_rank}" if beyond else f"{local_world_size} ranks are on this machine"
        shared = "" if local_world_size is None else f", and {local_world_size} ranks cannot share them evenly"
        raise ConfigError(
            f"{many} but only {visible_gpus} GPUs are visible (cuda:0 to cuda:{visible_gpus - 1}){shared}; "
            f"start {visible_gpus} processes on this machine or a multiple of that, or use --device cpu"
        )
    return torch.device("cuda", local_rank % visible_gpus)
