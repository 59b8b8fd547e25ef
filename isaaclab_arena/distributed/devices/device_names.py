"""Parse device names and counts of users and launchers: ``cpu``, ``cuda:1``, ``LOCAL_RANK=3``."""

import os
import re
from collections.abc import Mapping

import torch

from isaaclab_arena.distributed.devices.visible_gpus import visible_devices
from isaaclab_arena.errors import ConfigError, Problem

_CPU = "cpu"
_DEVICE_PATTERN = re.compile(r"cpu|cuda(?::(0|[1-9][0-9]{0,3}))?", re.ASCII)


def check_device_exists(
    name: str, *, visible_gpus: int, option: str, environ: Mapping[str, str] = os.environ
) -> torch.device:
    """Return the named device, if it exists; ``cuda`` means ``cuda:0``.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:<index>``.
        visible_gpus: GPUs that this process can use.
        option: The option in which the user named it, for the message.
        environ: Environment variables, for the message.

    Raises:
        ConfigError: If the name is malformed, or the GPU does not exist; the message names the existing ones.
    """
    index = _index_of(name, option=option)
    if name == _CPU:
        return torch.device(_CPU)
    if index >= visible_gpus:
        raise ConfigError(Problem(f"'{name}' does not exist; {_what_exists(visible_gpus, environ)}", key=option))
    return torch.device("cuda", index)


def parse_count(variable: str, text: str) -> int:
    """Return the value of an environment variable that counts from 0.

    Raises:
        ConfigError: If it is not a plain decimal number: signs, blanks and leading zeros are refused.
    """
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) is None:
        raise ConfigError(f"environment variable {variable}={text!r} is not a whole number from 0")
    return int(text)


def _index_of(name: str, *, option: str) -> int:
    """Return the index in a device's name, 0 if it has none."""
    match = _DEVICE_PATTERN.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(Problem(f"'{name}' is no device; use cpu, cuda or cuda:<index>", key=option))
    return int(match[1] or 0)


def _what_exists(visible_gpus: int, environ: Mapping[str, str]) -> str:
    if visible_gpus:
        gpus = "cuda:0" if visible_gpus == 1 else f"cuda:0 to cuda:{visible_gpus - 1}"
        exists = f"this process can use cpu and {gpus}"
    else:
        exists = "no CUDA device is visible here, use cpu"
    mask = visible_devices(environ)
    return exists if mask is None else f"{exists} (CUDA_VISIBLE_DEVICES is {mask!r})"
