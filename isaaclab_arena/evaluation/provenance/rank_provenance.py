"""Record what the results of a rank depend on: versions, node, device."""

import torch

from isaaclab_arena.evaluation.provenance.provenance import node, versions
from isaaclab_arena.storage.provenance import Provenance


def provenance_on(device: torch.device) -> Provenance:
    """Return what results of this process depend on.

    Args:
        device: Where the rank simulates.
    """
    return Provenance.of(versions(), node(), device=_kind_of_device(device))


def _kind_of_device(device: torch.device) -> str:
    """Return ``cpu``, or ``cuda`` with the GPU's name; which of several equal GPUs it is decides nothing."""
    return "cpu" if device.type == "cpu" else f"{device.type} ({torch.cuda.get_device_name(device)})"
