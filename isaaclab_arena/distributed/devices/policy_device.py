"""Choose the device of a policy's network, and refuse devices that do not exist."""

import os
from collections.abc import Mapping

import torch

from isaaclab_arena.distributed.devices.device_names import check_device_exists, parse_count
from isaaclab_arena.distributed.devices.rank_device import gpu_of_rank
from isaaclab_arena.distributed.devices.visible_gpus import visible_gpu_count
from isaaclab_arena.errors import ConfigError, Problem

_CPU = "cpu"


def resolve_policy_device(
    *,
    policy_device_id: int | None = None,
    policy_device: str | None = None,
    yaml_policy_device: str | None = None,
    environ: Mapping[str, str] = os.environ,
    visible_gpus: int | None = None,
) -> torch.device:
    """Return the device of a policy's network; the first of these that is given decides.

    1. ``LOCAL_RANK`` in the environment: the rank's GPU, see `gpu_of_rank`, and ``cpu`` where there is none or where
       ``policy_device`` says so and no ``policy_device_id`` is given;
    2. ``policy_device_id``: ``cuda:<id>``;
    3. ``policy_device`` of the job or the command line;
    4. ``yaml_policy_device``, the ``policy_device`` of the policy's own YAML;
    5. a GPU where there is one, otherwise ``cpu``.

    Args:
        policy_device_id: Index of a GPU.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        yaml_policy_device: The same.
        environ: Environment variables.
        visible_gpus: GPUs that this process can use; counted where None.

    Raises:
        ConfigError: If the device does not exist; the message names the existing ones.
    """
    gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
    if "LOCAL_RANK" in environ:
        local_rank = parse_count("LOCAL_RANK", environ["LOCAL_RANK"])
        if not gpus or (policy_device_id is None and policy_device == _CPU):
            return torch.device(_CPU)
        return gpu_of_rank(local_rank, local_world_size=_ranks_of_machine(environ), visible_gpus=gpus)
    if policy_device_id is not None:
        return _gpu_of_id(policy_device_id, gpus, environ)
    for requested in (policy_device, yaml_policy_device):
        if requested is not None:
            return check_device_exists(requested, visible_gpus=gpus, option="policy_device", environ=environ)
    return torch.device("cuda", 0) if gpus else torch.device("cpu")


def check_policy_device(
    *,
    policy_device_id: int | None = None,
    policy_device: str | None = None,
    environ: Mapping[str, str] = os.environ,
    visible_gpus: int | None = None,
) -> str | None:
    """Refuse a GPU that a job or the command line names for a policy and that does not exist.

    It is refused under a launcher too, where LOCAL_RANK decides the policy's GPU, so that a job file is right or wrong
    on a machine for any number of ranks.

    Args:
        policy_device_id: Index of a GPU.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``; ignored if ``policy_device_id`` is given.
        environ: Environment variables.
        visible_gpus: GPUs that this process can use; counted where None.

    Returns:
        The named device, ``policy_device_id 1``, if a launcher gives some rank another one; otherwise None.

    Raises:
        ConfigError: If the device does not exist; the message names the existing ones.
    """
    gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
    if policy_device_id is not None:
        named, words = _gpu_of_id(policy_device_id, gpus, environ), f"policy_device_id {policy_device_id}"
    elif policy_device is not None:
        named = check_device_exists(policy_device, visible_gpus=gpus, option="policy_device", environ=environ)
        words = f"policy_device '{policy_device}'"
        if ":" not in policy_device:
            return None
    else:
        return None
    if "LOCAL_RANK" not in environ:
        return None
    own = resolve_policy_device(environ=environ, visible_gpus=gpus)
    are_several = gpus > 1 and _ranks_of_machine(environ) != 1
    return words if are_several or named != own else None


def cpu_holds_for_policy(device: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``--device`` puts policies without a named device on the CPU: ``cpu`` does, under a launcher.

    There LOCAL_RANK would choose a GPU for the policy. A process without a launcher leaves the choice to the policy.

    Args:
        device: ``--device`` as the user gave it.
        environ: Environment variables.
    """
    return device == _CPU and "LOCAL_RANK" in environ


def _gpu_of_id(device_id: int, visible_gpus: int, environ: Mapping[str, str]) -> torch.device:
    if isinstance(device_id, bool) or not isinstance(device_id, int) or device_id < 0:
        raise ConfigError(Problem(f"{device_id!r} is no GPU index; indices count from 0", key="policy_device_id"))
    return check_device_exists(
        f"cuda:{device_id}", visible_gpus=visible_gpus, option="policy_device_id", environ=environ
    )


def _ranks_of_machine(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks on this machine, None if unknown."""
    name = "LOCAL_WORLD_SIZE"
    return parse_count(name, environ[name]) if name in environ else None
