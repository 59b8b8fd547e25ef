"""The GPU or CPU of a process: names, visible GPUs, OpenGL, determinism, devices of rank and policy, and copies."""

import ctypes
import ctypes.util
import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from math import prod
from typing import NamedTuple

import torch

from isaaclab_arena.errors import ConfigError


def set_up_torch(
    num_threads: int | None, *, deterministic: bool = False, environ: MutableMapping[str, str] = os.environ
) -> None:
    """Set torch's number of threads per operation, None for one; optionally make it return the same bits always."""
    # One thread suits ranks that share a machine, and it keeps results bitwise equal for any number of cores.
    torch.set_num_threads(1 if num_threads is None else num_threads)
    if not deterministic:
        return
    # Call this before the first operation on a GPU: cuBLAS reads its environment variable only once.
    if environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # From here on, an operation without a deterministic implementation raises an error.
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 is deterministic too, but results would then depend on the type of GPU.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


# Parse ``--gpu_ids``, and select its GPUs among the visible ones. Pure functions.

OPTION = "--gpu_ids"
_SEPARATORS = re.compile(r"[\s,]+")
_MORE_INDICES = re.compile(r"[\d\s,\[\]]+", re.ASCII)
_NEGATIVE = re.compile(r"-\d+", re.ASCII)


def joined_gpu_ids(arguments: Sequence[str]) -> list[str]:
    """Join ``--gpu-ids 0 1`` into one argument ``--gpu_ids=0 1``; ConfigError if the option has no value."""
    joined: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        if name.replace("-", "_") != "__gpu_ids":
            joined.append(argument)
            continue
        words = [value]
        if not equals:
            if not waiting or (waiting[0].startswith("-") and not _NEGATIVE.fullmatch(waiting[0])):
                raise ConfigError("give indices such as 0 1, all or none", key=OPTION)
            words = [waiting.pop(0)]
        # After the first word the option takes only words that must be indices. So it never takes the name of an
        # environment or a task that follows.
        while waiting and _MORE_INDICES.fullmatch(words[0]) and _MORE_INDICES.fullmatch(waiting[0]):
            words.append(waiting.pop(0))
        # The value is in lower case, because a command line parser may take the word None for a missing option.
        joined.append(f"{OPTION}={' '.join(words).lower()}")
    return joined


def select_gpus(text: str, *, mask: str | None, visible_gpus: int) -> tuple[tuple[str, ...], str | None]:
    """Select visible GPUs by ``0 1``, ``0,1``, ``[0, 1]``, ``all`` or ``none``; ConfigError if malformed or twice."""
    # Return indices or UUIDs as in CUDA_VISIBLE_DEVICES, in rank order, none for the CPU; and a note for the user if
    # the choice differs from the request. Indices count among the visible GPUs. An empty text means the CPU, like
    # ``none``.
    plain = text.strip().lower()
    listed = "" if plain in {"all", "none"} else plain.removeprefix("[").removesuffix("]")
    words = [word for word in _SEPARATORS.split(listed) if word]
    for word in words:
        if re.fullmatch(r"\d{1,4}", word, re.ASCII) is None:
            raise ConfigError(f"'{word}' is not a GPU index; give indices such as 0 1, all or none", key=OPTION)
    indices = tuple(map(int, words))
    if twice := sorted({index for index in indices if indices.count(index) > 1}):
        raise ConfigError(f"GPU {twice[0]} is named twice; each rank has one of its own", key=OPTION)
    if not indices and plain != "all":
        return (), None

    # A mask (CUDA_VISIBLE_DEVICES) that hides every GPU means the CPU for any request.
    entries = None if mask is None else [entry.strip() for entry in mask.split(",") if entry.strip()]
    visible = tuple(map(str, range(visible_gpus)) if entries is None else entries[:visible_gpus])
    if not visible and entries is not None and entries[:1] in ([], ["-1"]):
        return (), f"CUDA_VISIBLE_DEVICES is '{mask}', so there is one process, on the CPU"
    if plain == "all":
        return visible, None if visible else "no GPU is visible, so there is one process, on the CPU"
    if beyond := [index for index in indices if index >= len(visible)]:
        named = ", ".join(map(str, beyond))
        missing = f"GPU {named} does not exist" if len(beyond) == 1 else f"GPUs {named} do not exist"
        exists = "no GPU is visible here, leave the option out or give none"
        if visible:
            exists = "there is 0" if len(visible) == 1 else f"there are 0 to {len(visible) - 1}"
        masked = "" if mask is None else f" (CUDA_VISIBLE_DEVICES is '{mask}')"
        raise ConfigError(f"{missing}; {exists}{masked}", key=OPTION)
    return tuple(visible[index] for index in indices), None


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_gpu_count() -> int:
    """Return the number of GPUs that this process can use, without initialising any."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def selectable_gpu_count() -> int:
    """Return the number of GPUs this process sees; CUDA does not start, so CUDA_VISIBLE_DEVICES can still narrow them.

    The driver reads that variable once, when CUDA starts. Torch counts through NVML as long as it can.
    """
    return torch.cuda.device_count()


def gpu_address(device: torch.device) -> str:
    """Return the PCI address of a GPU, as ``nvidia-smi`` shows it: ``00000000:18:00``."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}"


# Parse device names and counts of users and launchers: ``cpu``, ``cuda:1``, ``LOCAL_RANK=3``.

_CPU = "cpu"
_DEVICE_PATTERN = re.compile(r"cpu|cuda(?::(0|[1-9][0-9]{0,3}))?", re.ASCII)


def check_device_exists(
    name: str, *, visible_gpus: int, option: str, environ: Mapping[str, str] = os.environ
) -> torch.device:
    """Return the device ``cpu``, ``cuda`` (``cuda:0``) or ``cuda:<index>``; ConfigError if it does not exist."""
    match = _DEVICE_PATTERN.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(f"'{name}' is not a device; use cpu, cuda or cuda:<index>", key=option)
    index = int(match[1] or 0)
    if name == _CPU:
        return torch.device(_CPU)
    # The message names the option in which the user gave the device, and the devices that exist.
    if index >= visible_gpus:
        exists = "no CUDA device is visible here, use cpu"
        if visible_gpus:
            gpus = "cuda:0" if visible_gpus == 1 else f"cuda:0 to cuda:{visible_gpus - 1}"
            exists = f"this process can use cpu and {gpus}"
        mask = environ.get(VISIBLE_DEVICES)
        masked = "" if mask is None else f" (CUDA_VISIBLE_DEVICES is {mask!r})"
        raise ConfigError(f"'{name}' does not exist; {exists}{masked}", key=option)
    return torch.device("cuda", index)


def parse_count(variable: str, text: str) -> int:
    """Parse an environment variable that counts from 0; ConfigError on signs, blanks and leading zeros."""
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII) is None:
        raise ConfigError(f"environment variable {variable}={text!r} is not a whole number from 0")
    return int(text)


# Find the GPUs on which OpenGL can render without a display, through EGL, and their CUDA indices.
# EGL numbers devices in its own order, so MUJOCO_EGL_DEVICE_ID is in general not a CUDA index. Names and numbers are
# those of the extensions EGL_EXT_device_base, EGL_EXT_device_enumeration and EGL_NV_device_cuda.

_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
_CUDA_DEVICE = 0x323A


def describe_egl_devices() -> str:
    """Describe the EGL devices and, if the driver reports them, their CUDA indices; OSError without a usable EGL."""
    devices = egl_cuda_indices()
    if not devices:
        return "loads, devices: none"
    named = ", ".join(
        f"{number}: " + ("no CUDA" if index is None else f"cuda:{index}") for number, index in enumerate(devices)
    )
    return f"loads, {len(devices)} devices ({named})"


def egl_cuda_indices() -> list[int | None]:
    """Return the CUDA index of each EGL device, None if it has none; OSError if EGL cannot list devices."""
    egl = None
    for name in ("libEGL.so.1", "libEGL.so"):
        with suppress(OSError):
            egl = ctypes.CDLL(name)
            break
    if egl is None:
        raise OSError("cannot be loaded, devices: none; only a viewport video through OpenGL would need it")

    # The functions of extensions are found by name, if the driver has them.
    find = egl.eglGetProcAddress
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = find(b"eglQueryDevicesEXT")
    if not address:
        raise OSError("loads, but cannot list devices")
    query_devices = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
    address = find(b"eglQueryDeviceAttribEXT")
    attribute_type = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    query_attribute = attribute_type(address) if address else None

    number = ctypes.c_int(0)
    if not query_devices(0, None, ctypes.byref(number)) or number.value == 0:
        return []
    devices = (ctypes.c_void_p * number.value)()
    query_devices(number.value, devices, ctypes.byref(number))
    indices: list[int | None] = []
    for device in devices[: number.value]:
        index = ctypes.c_ssize_t(-1)
        known = query_attribute is not None and query_attribute(device, _CUDA_DEVICE, ctypes.byref(index))
        indices.append(index.value if known else None)
    return indices


def draw_on(
    device: torch.device,
    environ: MutableMapping[str, str] = os.environ,
    egl_gpus: Callable[[], list[int | None]] = egl_cuda_indices,
) -> None:
    """Make OpenGL render on the rank's GPU, in this process and its children; a CPU device changes nothing."""
    if device.type != "cuda":
        return
    # MuJoCo takes the first GPU that answers unless MUJOCO_EGL_DEVICE_ID is set, so all ranks would render on one. A
    # user's choice is kept. If EGL does not report CUDA indices, the variable stays unset.
    if _EGL_DEVICE not in environ:
        with suppress(OSError, ValueError):
            environ[_EGL_DEVICE] = str(egl_gpus().index(device.index or 0))
    visible, chosen = environ.get(VISIBLE_DEVICES), environ.get(_EGL_DEVICE)
    if visible and chosen and chosen not in visible:
        # robosuite takes EGL's number for a CUDA index, and cannot be imported unless the number is named as visible.
        # CUDA stops reading at -1, so the visible GPUs stay the same.
        environ[VISIBLE_DEVICES] = f"{visible},-1,{chosen}"


def describe_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that affect devices and threads, with ``none`` for those not set."""
    names = (VISIBLE_DEVICES, "MUJOCO_GL", _EGL_DEVICE, "OMP_NUM_THREADS")
    return {name: repr(environ[name]) if name in environ else "none" for name in names}


# Choose the OpenGL backend on a machine that may have no screen and no GPU: the value of MUJOCO_GL.

VARIABLE = "MUJOCO_GL"


class OpenglChoice(NamedTuple):
    """The OpenGL backend, as a value of MUJOCO_GL, and the reason for it."""

    name: str | None  # None if no backend was found; then MuJoCo decides
    reason: str
    lacks_library: bool = False  # True without the backend's shared library; then MuJoCo cannot be imported

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that select the backend, empty if none was found."""
        return {} if self.name is None else {VARIABLE: self.name}


def choose_opengl(
    device: torch.device,
    given: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    egl_gpus: Callable[[], list[int | None]] = egl_cuda_indices,
    find_library: Callable[[str], str | None] = ctypes.util.find_library,
) -> OpenglChoice:
    """Choose the OpenGL backend: the user's choice, else EGL on the rank's GPU, else OSMesa on the CPU."""
    # The variables that a job gives its workers (``given``) take precedence over this process's.
    if (chosen := given.get(VARIABLE, environ.get(VARIABLE))) is not None:
        lacks = chosen == "osmesa" and find_library("OSMesa") is None
        return OpenglChoice(name=chosen, reason="as the variable says", lacks_library=lacks)
    if device.type == "cuda":
        with suppress(OSError):
            if (device.index or 0) in egl_gpus():
                return OpenglChoice(name="egl", reason=f"EGL draws on {device}")
    if find_library("OSMesa") is not None:
        return OpenglChoice(name="osmesa", reason="OSMesa draws on the CPU")
    reason = "there is no EGL on a GPU of this rank, and no OSMesa; install libosmesa6, or set MUJOCO_GL"
    return OpenglChoice(name=None, reason=reason)


def choose_rank_device(
    requested: str | None,
    *,
    local_rank: int,
    local_world_size: int | None,
    visible_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> tuple[torch.device, str]:
    """Return a rank's device and the reason for it; ConfigError if it does not exist or ranks cannot share GPUs."""
    # ``requested`` is None for a GPU if there is one. Among several ranks on a machine even ``cuda:<index>`` means the
    # rank's own GPU, as in Isaac Lab Arena; otherwise all ranks would share one GPU.
    if requested is not None:
        device = check_device_exists(requested, visible_gpus=visible_gpus, option="--device", environ=environ)
        if device.type == "cpu" or local_world_size == 1:
            return device, "asked for"
    if visible_gpus == 0:
        return torch.device("cpu"), "no CUDA device is visible"
    device = gpu_of_rank(local_rank, local_world_size=local_world_size, visible_gpus=visible_gpus)
    reason = "the only visible GPU" if visible_gpus == 1 else f"LOCAL_RANK is {local_rank}"
    if local_rank >= visible_gpus > 1:
        reason += f", and {local_world_size} ranks share {visible_gpus} GPUs"
    if requested not in (None, "cuda", str(device)):
        reason += f", which takes precedence over --device {requested} where ranks share a machine"
    return device, reason


def gpu_of_rank(local_rank: int, *, local_world_size: int | None, visible_gpus: int) -> torch.device:
    """Return the GPU of a rank, ``cuda:<LOCAL_RANK>``; ConfigError if the ranks cannot share the GPUs evenly."""
    # If a scheduler shows each process one GPU, it is cuda:0 for every rank.
    if visible_gpus == 1:
        return torch.device("cuda", 0)
    # All ranks of the machine reach the same result if ``local_world_size`` is known (not None).
    are_too_many = local_rank >= visible_gpus if local_world_size is None else local_world_size > visible_gpus
    if are_too_many and (local_world_size is None or local_world_size % visible_gpus):
        beyond = local_rank >= visible_gpus
        many = f"LOCAL_RANK is {local_rank}" if beyond else f"{local_world_size} ranks are on this machine"
        shared = "" if local_world_size is None else f", and {local_world_size} ranks cannot share them evenly"
        raise ConfigError(
            f"{many} but only {visible_gpus} GPUs are visible (cuda:0 to cuda:{visible_gpus - 1}){shared}; "
            f"start {visible_gpus} processes on this machine or a multiple of that, or use --device cpu"
        )
    # More ranks than GPUs share them in turn.
    return torch.device("cuda", local_rank % visible_gpus)


def resolve_policy_device(
    *,
    policy_device_id: int | None = None,
    policy_device: str | None = None,
    yaml_policy_device: str | None = None,
    environ: Mapping[str, str] = os.environ,
    visible_gpus: int | None = None,
) -> torch.device:
    """Return the device of a policy's network; ConfigError if it does not exist."""
    # The first of these that is set decides:
    # 1. LOCAL_RANK: the rank's GPU, see `gpu_of_rank`. It is the CPU if there is no GPU, or if ``policy_device`` is
    # ``cpu`` and ``policy_device_id`` is None.
    # 2. ``policy_device_id``: ``cuda:<id>``.
    # 3. ``policy_device`` of the job or the command line.
    # 4. ``yaml_policy_device``: the ``policy_device`` of the policy's own YAML.
    # 5. A GPU if there is one, otherwise the CPU.
    gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
    if "LOCAL_RANK" in environ:
        local_rank = parse_count("LOCAL_RANK", environ["LOCAL_RANK"])
        if not gpus or (policy_device_id is None and policy_device == _CPU):
            return torch.device(_CPU)
        size = environ.get("LOCAL_WORLD_SIZE")
        local_world_size = None if size is None else parse_count("LOCAL_WORLD_SIZE", size)
        return gpu_of_rank(local_rank, local_world_size=local_world_size, visible_gpus=gpus)
    if policy_device_id is not None:
        if isinstance(policy_device_id, bool) or not isinstance(policy_device_id, int) or policy_device_id < 0:
            raise ConfigError(f"{policy_device_id!r} is not a GPU index; indices count from 0", key="policy_device_id")
        name = f"cuda:{policy_device_id}"
        return check_device_exists(name, visible_gpus=gpus, option="policy_device_id", environ=environ)
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
    """Refuse a missing policy GPU by ConfigError; return the named device if a launcher overrides it, else None."""
    # The check also holds under a launcher, where LOCAL_RANK decides the policy's GPU. So a job file is right or wrong
    # on a machine for any number of ranks. ``policy_device_id`` takes precedence over ``policy_device``.
    if policy_device_id is None and policy_device is None:
        return None
    gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
    alone = {name: value for name, value in environ.items() if name != "LOCAL_RANK"}
    named = resolve_policy_device(
        policy_device_id=policy_device_id, policy_device=policy_device, environ=alone, visible_gpus=gpus
    )
    words = f"policy_device '{policy_device}'" if policy_device_id is None else f"policy_device_id {policy_device_id}"
    # Only a launcher overrides a named device: on some rank LOCAL_RANK then gives another GPU.
    if "LOCAL_RANK" not in environ or (policy_device_id is None and ":" not in str(policy_device)):
        return None
    own = resolve_policy_device(environ=environ, visible_gpus=gpus)
    size = environ.get("LOCAL_WORLD_SIZE")
    are_several = gpus > 1 and (size is None or parse_count("LOCAL_WORLD_SIZE", size) != 1)
    return words if are_several or named != own else None


def cpu_holds_for_policy(device: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """True if ``--device cpu`` under a launcher puts policies without a named device on the CPU."""
    # Under a launcher LOCAL_RANK would choose a GPU for the policy. Without one the policy chooses.
    return device == _CPU and "LOCAL_RANK" in environ


# Copy several tensors between a device and the CPU at once. Each copy from a device lets the CPU wait until it has
# caught up, and each one to it takes a call of its own.


def on_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors on the CPU, in order and bit for bit, with one transfer for all that are on a device."""
    # The largest types first, so that each tensor begins at an aligned address. All tensors on a device must be on the
    # same one.
    away = sorted((tensor for tensor in tensors if not tensor.is_cpu), key=lambda tensor: -tensor.element_size())
    if not away:
        return list(tensors)
    packed = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in away])
    # A GPU writes into pinned memory without a copy in between.
    staged = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=packed.device.type == "cuda")
    staged.copy_(packed)
    sizes = [tensor.element_size() * prod(tensor.shape) for tensor in away]
    copies = {
        id(tensor): part.view(tensor.dtype).reshape(tensor.shape)
        for tensor, part in zip(away, staged.split(sizes), strict=True)
    }
    return [copies.get(id(tensor), tensor) for tensor in tensors]


def on_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy CPU tensors to a device, in order and bit for bit, without waiting; a CPU device returns them unchanged."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    # One transfer for all tensors; the largest types first, so that each begins at an aligned address.
    order = sorted(range(len(tensors)), key=lambda number: -tensors[number].element_size())
    sizes = [tensors[number].element_size() * tensors[number].numel() for number in order]
    staged = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    torch.cat([tensors[number].reshape(-1).view(torch.uint8) for number in order], out=staged)
    there = dict(zip(order, staged.to(device, non_blocking=True).split(sizes), strict=True))
    return [there[number].view(tensor.dtype).reshape(tensor.shape) for number, tensor in enumerate(tensors)]


def default_num_threads(local_world_size: int | None = None) -> int:
    """Return this rank's share of the usable cores, at least 1; ``local_world_size`` ranks share the machine."""
    if local_world_size is None:
        local_world_size = parse_count("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # A container or `taskset` may limit the cores of this process.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // max(1, local_world_size))
