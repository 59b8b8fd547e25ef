"""Which device a rank simulates on, which one its policy's network runs on, and how exactly they calculate."""

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from isaaclab_arena.distributed.devices.egl_devices import egl_cuda_indices
from isaaclab_arena.errors import ConfigError, Problem

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
_CPU = "cpu"
_LAST_INDEX = 127
"""torch keeps an index in eight bits: to it ``cuda:256`` is ``cuda:0``."""
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
    names = (_VISIBLE_DEVICES, "MUJOCO_GL", _EGL_DEVICE, "OMP_NUM_THREADS")
    return {name: repr(environ[name]) if name in environ else "none" for name in names}


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where a checkout of MuJoCo Menagerie is, None if nobody says."""
    return environ.get("MENAGERIE_ROOT") or None


def draw_on(
    device: torch.device,
    environ: MutableMapping[str, str] = os.environ,
    egl_gpus: Callable[[], list[int | None]] = egl_cuda_indices,
) -> None:
    """Let what draws with OpenGL, in this process or in those that it starts, do so on the rank's GPU.

    MuJoCo takes the first GPU that answers unless MUJOCO_EGL_DEVICE_ID says otherwise, so all ranks would draw on one.
    EGL counts GPUs in an order of its own; where it does not tell which is which, nothing is set.

    Args:
        device: The rank's device; nothing is set for the CPU.
        environ: Environment variables; a choice of the user's is left as it is.
        egl_gpus: Returns the CUDA index of each of EGL's devices, in EGL's order.
    """
    if device.type != "cuda" or _EGL_DEVICE in environ:
        return
    with suppress(OSError, ValueError):
        environ[_EGL_DEVICE] = str(egl_gpus().index(device.index or 0))


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
    local_world_size: int | None,
    visible_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> DeviceChoice:
    """Choose the device of a rank: simulation, cameras and, unless it says otherwise, policy.

    A process that is alone on its machine gets what it asks for. Among several, ``cuda`` with an index means the
    rank's own GPU all the same, as in Isaac Lab Arena: otherwise every rank would pile up on one GPU.

    Args:
        requested: ``cpu``, ``cuda``, ``cuda:<index>``, or None for a GPU where there is one.
        local_rank: The rank's number on its machine.
        local_world_size: Ranks on its machine, None if nobody says how many.
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
    """Return the GPU of a rank: the one rule for simulation, cameras and policy.

    It is ``cuda:<LOCAL_RANK>``. More ranks than GPUs share them evenly, going round; ranks that see one GPU each, or
    all the same one, know it as ``cuda:0``.

    Args:
        local_rank: The rank's number on its machine.
        local_world_size: Ranks on its machine, None if nobody says how many.
        visible_gpus: GPUs that this process can use, at least one.

    Raises:
        ConfigError: If the ranks cannot share the GPUs evenly; the message names both numbers. Every rank of the
            machine comes to the same verdict where ``local_world_size`` is known.
    """
    # A scheduler that shows each process one GPU calls it cuda:0, whatever the rank.
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


def resolve_policy_device(
    *,
    policy_device_id: int | None = None,
    policy_device: str | None = None,
    yaml_policy_device: str | None = None,
    environ: Mapping[str, str] = os.environ,
    visible_gpus: int | None = None,
) -> torch.device:
    """Return where a policy's network runs; the first of these that is given decides.

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
        ConfigError: If the device does not exist; the message names those that do.
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

    It is refused under a launcher too, where LOCAL_RANK decides which GPU the policy gets: a job file that is wrong on
    a machine is wrong there for any number of ranks.

    Args:
        policy_device_id: Index of a GPU.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``; not looked at beside ``policy_device_id``.
        environ: Environment variables.
        visible_gpus: GPUs that this process can use; counted where None.

    Returns:
        What is named, ``policy_device_id 1``, if under a launcher it is not what all ranks get; otherwise None.

    Raises:
        ConfigError: If the device does not exist; the message names those that do.
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
    """Return whether ``--device`` keeps policies that name no device off the GPUs: ``cpu`` does, under a launcher.

    There LOCAL_RANK would choose a GPU for the policy. A process that nobody launched leaves it to the policy.

    Args:
        device: ``--device`` as the user gave it.
        environ: Environment variables.
    """
    return device == _CPU and "LOCAL_RANK" in environ


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
    index = _index_of(name, option=option)
    if name == _CPU:
        return torch.device(_CPU)
    if index >= visible_gpus:
        raise ConfigError(Problem(f"'{name}' does not exist; {_what_exists(visible_gpus, environ)}", key=option))
    return torch.device("cuda", index)


def parse_device(name: str, *, option: str) -> torch.device:
    """Return the device of that name, whether it exists or not.

    Raises:
        ConfigError: If it is neither ``cpu`` nor ``cuda`` nor ``cuda:<index>``, or torch cannot count so far.
    """
    if _index_of(name, option=option) > _LAST_INDEX:
        raise ConfigError(Problem(f"'{name}' does not exist; torch counts to cuda:{_LAST_INDEX}", key=option))
    return torch.device(name)


def parse_count(variable: str, text: str) -> int:
    """Return the value of an environment variable that counts from 0.

    Raises:
        ConfigError: If it is not a plain decimal number: signs, blanks and leading zeros are refused.
    """
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) is None:
        raise ConfigError(f"environment variable {variable}={text!r} is not a whole number from 0")
    return int(text)


def _index_of(name: str, *, option: str) -> int:
    """Return the index that a device's name holds, 0 where it holds none."""
    match = _DEVICE_PATTERN.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(Problem(f"'{name}' is no device; use cpu, cuda or cuda:<index>", key=option))
    return int(match[1] or 0)


def _gpu_of_id(device_id: int, visible_gpus: int, environ: Mapping[str, str]) -> torch.device:
    if isinstance(device_id, bool) or not isinstance(device_id, int) or device_id < 0:
        raise ConfigError(Problem(f"{device_id!r} is no GPU index; indices count from 0", key="policy_device_id"))
    return check_device_exists(
        f"cuda:{device_id}", visible_gpus=visible_gpus, option="policy_device_id", environ=environ
    )


def _ranks_of_machine(environ: Mapping[str, str]) -> int | None:
    """Return how many ranks this machine has, None if nobody says."""
    name = "LOCAL_WORLD_SIZE"
    return parse_count(name, environ[name]) if name in environ else None


def _what_exists(visible_gpus: int, environ: Mapping[str, str]) -> str:
    if visible_gpus:
        gpus = "cuda:0" if visible_gpus == 1 else f"cuda:0 to cuda:{visible_gpus - 1}"
        exists = f"this process can use cpu and {gpus}"
    else:
        exists = "no CUDA device is visible here, use cpu"
    mask = environ.get(_VISIBLE_DEVICES)
    return exists if mask is None else f"{exists} (CUDA_VISIBLE_DEVICES is {mask!r})"
