"""Count and choose the GPUs that this process sees, and find their PCI addresses."""

import os
from collections.abc import Mapping, MutableMapping

import torch

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_gpu_count() -> int:
    """Return how many GPUs this process can use, without initialising any."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def selectable_gpu_count() -> int:
    """Return how many GPUs this process sees, without starting CUDA, so that `narrow_gpus` can still choose.

    The driver reads CUDA_VISIBLE_DEVICES once, when CUDA starts; torch counts through NVML as long as it can.
    """
    return torch.cuda.device_count()


def visible_devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES, None if it is not set."""
    return environ.get(VISIBLE_DEVICES)


def narrow_gpus(shown: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make only these GPUs visible to this process. Call it before anything starts CUDA.

    Args:
        shown: The value of CUDA_VISIBLE_DEVICES; empty for none.
        environ: Environment variables.
    """
    environ.update(gpu_variables(shown))


def gpu_variables(shown: str) -> dict[str, str]:
    """Return the environment variables with which a process sees these GPUs only; see `narrow_gpus`."""
    return {VISIBLE_DEVICES: shown}


def gpu_address(device: torch.device) -> str:
    """Return the PCI address of a GPU, as ``nvidia-smi`` shows it: ``00000000:18:00``."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}"
