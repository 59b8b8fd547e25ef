"""Which device a rank simulates on, which one its policy's network runs on, and how exactly they calculate."""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ConfigError, Problem

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
_DEVICE_PATTERN = re.compile(r"cpu|cuda(?::(0|[1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """A device, and why it was chosen.

    Attributes:
        device: ``cpu``, or a GPU with its index.
        reason: Why, in words for the log.
    """

    device: torch.device
    reason: str


def visible_gpu_count() -> int:
    """Return how many GPUs this process can use; it does not touch any of them."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def selectable_gpu_count() -> int:
    """Return how many GPUs this process sees, without starting CUDA, so that `narrow_gpus` can still choose among them.

    The driver reads CUDA_VISIBLE_DEVICES once, when CUDA starts; torch counts through NVML as long as it can.
    """
    return torch.cuda.device_count()


def visible_devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES, None if it is not set."""
    return environ.get(_VISIBLE_DEVICES)


def narrow_gpus(shown: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let this process see these GPUs only. Call it before anything starts CUDA.

    Args:
        shown: The value of CUDA_VISIBLE_DEVICES; empty for none.
        environ: Environment variables.
    """
    environ.update(gpu_variables(shown))


def gpu_variables(shown: str) -> dict[str, str]:
    """Return the environment variables with which a process sees these GPUs only; see `narrow_gpus`."""
    return {_VISIBLE_DEVICES: shown}


def describe_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that decide about devices and threads, with ``none`` for those not set."""
    names = (_VISIBLE_DEVICES, "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "OMP_NUM_THREADS")
    return {name: repr(environ[name]) if name in environ else "none" for name in names}


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where a checkout of MuJoCo Menagerie is, None if nobody says."""
    return environ.get("MENAGERIE_ROOT") or None


def gpu_address(device: torch.device) -> str:
    """Return where a GPU sits on the machine's PCI bus, as ``nvidia-smi`` shows it: ``00000000:18:00``."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}"


def calculate_deterministically(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have torch give the same bits whenever it makes the same operation on the same input on the same machine.

    Operations that cannot do so raise from now on, and say so. Call it before the first operation on a GPU: cuBLAS
    reads its environment variable only once.

    Args:
        environ: Environment variables; a workspace of cuBLAS that is good for this is left as it is.
    """
    if environ.get(_CUBLAS_WORKSPACE) not in _REPEATABLE_WORKSPACES:
        environ[_CUBLAS_WORKSPACE] = _REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 is repeatable too, but a network would then depend on which GPUs have it.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def choose_rank_device(
    requested: str | None,
    *,
    local_rank: int,
    local_world_size: int,
    visible_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> DeviceChoice:
    """Choose the device of a rank: simulation, cameras and, unless it says otherwise, policy.

    A process that is alone on its machine gets what it asks for. Among several, ``cuda`` with an index means the
    rank's own GPU all the same, as in Isaac Lab Arena: otherwise every rank would pile up on one GPU.

    Args:
        requested: ``cpu``, ``cuda``, ``cuda:<index>``, or None for a GPU where there is one.
        local_rank: The rank's number on its machine.
        local_world_size: Ranks on its machine.
        visible_gpus: GPUs that this process can use.
        environ: Environment variables, for messages.

    Raises:
        ConfigError: If the GPU does not exist, or there are fewer GPUs than ranks.
    """
    if requested is not None:
        device = parse_device(requested, option="--device")
        if device.type == "cpu":
            return DeviceChoice(device=device, reason="asked for")
        if visible_gpus == 0 or local_world_size == 1:
            device = check_device_exists(requested, visible_gpus=visible_gpus, option="--device", environ=environ)
            if local_world_size == 1:
                return DeviceChoice(device=device, reason="asked for")
    if visible_gpus == 0:
        return DeviceChoice(device=torch.device("cpu"), reason="no CUDA device is visible")
    device = _gpu_of_local_rank(local_rank, visible_gpus)
    reason = "the only visible GPU" if visible_gpus == 1 else f"LOCAL_RANK is {local_rank}"
    if requested not in (None, "cuda", str(device)):
        reason += f", which takes precedence over --device {requested} where ranks share a machine"
    return DeviceChoice(device=device, reason=reason)


def resolve_policy_device(
    *,
    policy_device_id: int | None = None,
    policy_device: str | None = None,
    yaml_policy_device: str | None = None,
    environ: Mapping[str, str] = os.environ,
    visible_gpus: int | None = None,
) -> torch.device:
    """Return where a policy's network runs; the first of these that is given decides.

    1. ``LOCAL_RANK`` in the environment: ``cuda:<LOCAL_RANK>``, the only GPU where one is visible, ``cpu`` without;
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
        ConfigError: If the device does not exist; the message names those that do.
    """
    gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
    if "LOCAL_RANK" in environ:
        local_rank = parse_count("LOCAL_RANK", environ["LOCAL_RANK"])
        return _gpu_of_local_rank(local_rank, gpus) if gpus else torch.device("cpu")
    if policy_device_id is not None:
        return _gpu_of_id(policy_device_id, gpus, environ)
    for requested in (policy_device, yaml_policy_device):
        if requested is not None:
            return check_device_exists(requested, visible_gpus=gpus, option="policy_device", environ=environ)
    return torch.device("cuda", 0) if gpus else torch.device("cpu")


def check_device_exists(
    name: str, *, visible_gpus: int, option: str, environ: Mapping[str, str] = os.environ
) -> torch.device:
    """Return the named device, ``cuda`` being ``cuda:0``.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:<index>``.
        visible_gpus: GPUs that this process can use.
        option: What the user gave it as, for the message.
        environ: Environment variables, for the message.

    Raises:
        ConfigError: If it is no such name, or that GPU does not exist; the message names what exists.
    """
    device = parse_device(name, option=option)
    if device.type == "cpu":
        return device
    index = device.index or 0
    if index >= visible_gpus:
        raise ConfigError(Problem(f"'{name}' does not exist; {_what_exists(visible_gpus, environ)}", key=option))
    return torch.device("cuda", index)


def parse_device(name: str, *, option: str) -> torch.device:
    """Return the device of that name, whether it exists or not.

    Raises:
        ConfigError: If it is neither ``cpu`` nor ``cuda`` nor ``cuda:<index>``.
    """
    if not isinstance(name, str) or _DEVICE_PATTERN.fullmatch(name) is None:
        raise ConfigError(Problem(f"'{name}' is no device; use cpu, cuda or cuda:<index>", key=option))
    return torch.device(name)


def parse_count(variable: str, text: str) -> int:
    """Return the value of an environment variable that counts from 0.

    Raises:
        ConfigError: If it is not a plain decimal number: signs, blanks and leading zeros are refused.
    """
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) is None:
        raise ConfigError(f"environment variable {variable}={text!r} is not a whole number from 0")
    return int(text)


def _gpu_of_id(device_id: int, visible_gpus: int, environ: Mapping[str, str]) -> torch.device:
    if isinstance(device_id, bool) or not isinstance(device_id, int) or device_id < 0:
        raise ConfigError(Problem(f"{device_id!r} is no GPU index; indices count from 0", key="policy_device_id"))
    return check_device_exists(
        f"cuda:{device_id}", visible_gpus=visible_gpus, option="policy_device_id", environ=environ
    )


def _gpu_of_local_rank(local_rank: int, visible_gpus: int) -> torch.device:
    # A scheduler that shows each process one GPU calls it cuda:0, whatever the rank.
    if visible_gpus == 1:
        return torch.device("cuda", 0)
    if local_rank >= visible_gpus:
        raise ConfigError(
            f"LOCAL_RANK is {local_rank} but only {visible_gpus} GPUs are visible (cuda:0 to cuda:{visible_gpus - 1}); "
            f"start at most {visible_gpus} processes on this machine, or use --device cpu"
        )
    return torch.device("cuda", local_rank)


def _what_exists(visible_gpus: int, environ: Mapping[str, str]) -> str:
    if visible_gpus:
        gpus = "cuda:0" if visible_gpus == 1 else f"cuda:0 to cuda:{visible_gpus - 1}"
        exists = f"this process can use cpu and {gpus}"
    else:
        exists = "no CUDA device is visible here, use cpu"
    mask = environ.get(_VISIBLE_DEVICES)
    return exists if mask is None else f"{exists} (CUDA_VISIBLE_DEVICES is {mask!r})"
