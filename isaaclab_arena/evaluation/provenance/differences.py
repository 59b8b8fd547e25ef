"""What a result depends on beside its job: versions, processor, system and model; and how two such lists differ."""

from collections.abc import Mapping

import torch

from isaaclab_arena.evaluation.provenance.provenance import machine, versions

SERVED_MODEL = "served_model"
"""What a policy server stated of its model; a replay, which asks none, does not compare it."""

_NOT_COMPARED = frozenset({"config_hash", "policy_type"})


def surroundings(device: torch.device) -> dict[str, str]:
    """Return the versions, the processor, the system and the kind of device that results come from here.

    Args:
        device: Where the rank simulates.
    """
    here = machine()
    return {**versions(), "cpu": here.cpu, "platform": here.platform, "device": kind_of_device(device)}


def kind_of_device(device: torch.device) -> str:
    """Return ``cpu``, or ``cuda`` with the GPU's name; which of several equal GPUs it is decides nothing."""
    return "cpu" if device.type == "cpu" else f"{device.type} ({torch.cuda.get_device_name(device)})"


def named_differences(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return one line for each thing that was other when something was recorded.

    Args:
        recorded: What the recording names, of which only this is compared.
        now: What there is now.
    """
    return tuple(
        f"{name} was {recorded[name]}, is now {now.get(name, 'absent')}"
        for name in sorted(recorded.keys() - _NOT_COMPARED)
        if recorded[name] != now.get(name)
    )
