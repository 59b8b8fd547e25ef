"""The GPU or CPU of a process: names, visible GPUs, OpenGL, determinism, and the devices of rank and policy."""

import ctypes
import ctypes.util
import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ConfigError, Problem

# Make torch give the same bits for the same operation on the same input.

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")


def calculate_deterministically(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make torch give the same bits for the same operation on the same input and machine.

    Operations that cannot do so raise an error from now on. Call it before the first operation on a GPU: cuBLAS reads
    its environment variable only once.

    Args:
        environ: Environment variables; a suitable cuBLAS workspace is kept.
    """
    if environ.get(_CUBLAS_WORKSPACE) not in _REPEATABLE_WORKSPACES:
        environ[_CUBLAS_WORKSPACE] = _REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 is deterministic too, but results would then depend on the type of GPU.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


# Parse ``--gpu_ids``, and select its GPUs among the visible ones. Pure functions.

OPTION = "--gpu_ids"
_ALL = "all"
_SEPARATORS = re.compile(r"[\s,]+")
_MORE_INDICES = re.compile(r"[\d\s,\[\]]+", re.ASCII)
_NEGATIVE = re.compile(r"-\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GpuSelection:
    """The GPUs of the ranks, one each.

    Attributes:
        ids: Indices or UUIDs as in CUDA_VISIBLE_DEVICES, in the order of the ranks; empty for the CPU.
        note: A note for the user if the choice differs from the request, otherwise None.
    """

    ids: tuple[str, ...]
    note: str | None = None

    @property
    def visible_devices(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES that shows these GPUs and no others."""
        return ",".join(self.ids)

    @property
    def num_processes(self) -> int:
        """The number of ranks: one per GPU, or one on the CPU."""
        return max(1, len(self.ids))


def joined_gpu_ids(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which ``--gpu-ids 0 1`` is one argument, ``--gpu_ids=0 1``; others are unchanged.

    The option takes the next word, and after it only words that must be indices. So a following name of an environment
    or a task is not taken.

    Args:
        arguments: What was typed after the program's name.

    Raises:
        ConfigError: If nothing follows the option.
    """
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
                raise ConfigError(Problem("give indices such as 0 1, all or none", key=OPTION))
            words = [waiting.pop(0)]
        while waiting and _MORE_INDICES.fullmatch(words[0]) and _MORE_INDICES.fullmatch(waiting[0]):
            words.append(waiting.pop(0))
        # The value is in lower case, because a command line parser may take the word None for a missing option.
        joined.append(f"{OPTION}={' '.join(words).lower()}")
    return joined


def select_gpus(text: str, *, mask: str | None, visible_gpus: int) -> GpuSelection:
    """Return the GPUs that a value of the option selects among the visible ones.

    Args:
        text: ``0 1``, ``0,1`` or ``[0, 1]``: indices among the visible GPUs; ``all`` of them; ``none`` or nothing for
            the CPU.
        mask: The value of CUDA_VISIBLE_DEVICES, None if it is not set. One that hides every GPU means the CPU, whatever
            is asked for.
        visible_gpus: How many GPUs this process sees with that mask.

    Raises:
        ConfigError: If the value is malformed, names a GPU twice, or one that does not exist.
    """
    indices = _parsed(text)
    if indices == ():
        return GpuSelection(ids=())
    visible = _visible_ids(mask, visible_gpus)
    if not visible and mask is not None and _hides_everything(mask):
        return GpuSelection(ids=(), note=f"CUDA_VISIBLE_DEVICES is '{mask}', so there is one process, on the CPU")
    if indices is None:
        note = None if visible else "no GPU is visible, so there is one process, on the CPU"
        return GpuSelection(ids=visible, note=note)
    beyond = [index for index in indices if index >= len(visible)]
    if beyond:
        raise ConfigError(Problem(f"{_named(beyond)}; {_visible_gpus_in_words(visible, mask)}", key=OPTION))
    return GpuSelection(ids=tuple(visible[index] for index in indices))


def _parsed(text: str) -> tuple[int, ...] | None:
    """Return the indices, an empty tuple for the CPU, None for all GPUs."""
    plain = text.strip().lower()
    if plain in {"", "none"}:
        return ()
    if plain == _ALL:
        return None
    words = [word for word in _SEPARATORS.split(plain.removeprefix("[").removesuffix("]")) if word]
    for word in words:
        if re.fullmatch(r"\d{1,4}", word, re.ASCII) is None:
            raise ConfigError(Problem(f"'{word}' is no GPU index; give some such as 0 1, all or none", key=OPTION))
    indices = tuple(map(int, words))
    twice = sorted({index for index in indices if indices.count(index) > 1})
    if twice:
        raise ConfigError(Problem(f"GPU {twice[0]} is named twice; each rank has one of its own", key=OPTION))
    return indices


def _visible_ids(mask: str | None, visible_gpus: int) -> tuple[str, ...]:
    if mask is None:
        return tuple(map(str, range(visible_gpus)))
    return tuple(entry.strip() for entry in mask.split(",") if entry.strip())[:visible_gpus]


def _hides_everything(mask: str) -> bool:
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    return not entries or entries[0] == "-1"


def _named(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"GPU {indices[0]} does not exist"
    return f"GPUs {', '.join(map(str, indices))} do not exist"


def _visible_gpus_in_words(visible: Sequence[str], mask: str | None) -> str:
    if not visible:
        exists = "no GPU is visible here, leave the option out or give none"
    else:
        exists = "there is 0" if len(visible) == 1 else f"there are 0 to {len(visible) - 1}"
    return exists if mask is None else f"{exists} (CUDA_VISIBLE_DEVICES is '{mask}')"


# Count and choose the GPUs that this process sees, and find their PCI addresses.

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


# Parse device names and counts of users and launchers: ``cpu``, ``cuda:1``, ``LOCAL_RANK=3``.

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


# Find the GPUs on which OpenGL can draw without a display, through EGL, and their CUDA indices.
#
# EGL counts devices in an order of its own, so MUJOCO_EGL_DEVICE_ID is in general no CUDA index. Names and numbers
# are those of the extensions EGL_EXT_device_base, EGL_EXT_device_enumeration and EGL_NV_device_cuda.

_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
_CUDA_DEVICE = 0x323A
_END_OF_VISIBLE = "-1"
_LIBRARIES = ("libEGL.so.1", "libEGL.so")


def describe_egl_devices() -> str:
    """Return the number of EGL devices, and their CUDA indices if the driver tells them.

    Raises:
        OSError: If there is no EGL, or it cannot list devices.
    """
    devices = egl_cuda_indices()
    if not devices:
        return "loads, devices: none"
    named = ", ".join(
        f"{number}: " + ("no CUDA" if index is None else f"cuda:{index}") for number, index in enumerate(devices)
    )
    return f"loads, {len(devices)} devices ({named})"


def egl_cuda_indices() -> list[int | None]:
    """Return the CUDA index of each EGL device in this process, None if it has none.

    Raises:
        OSError: If there is no EGL, or it cannot list devices.
    """
    return _cuda_indices(_load_egl())


def draw_on(
    device: torch.device,
    environ: MutableMapping[str, str] = os.environ,
    egl_gpus: Callable[[], list[int | None]] = egl_cuda_indices,
) -> None:
    """Let OpenGL draw on the rank's GPU, in this process and in processes that it starts.

    MuJoCo takes the first GPU that answers unless MUJOCO_EGL_DEVICE_ID says otherwise, so all ranks would draw on one.
    EGL counts GPUs in an order of its own; if it does not tell their CUDA indices, nothing is set. CUDA_VISIBLE_DEVICES
    shows the same GPUs afterwards, in words that robosuite does not stumble over.

    Args:
        device: The rank's device; nothing is set for the CPU.
        environ: Environment variables; a user's choice is kept.
        egl_gpus: Returns the CUDA index of each of EGL's devices, in EGL's order.
    """
    if device.type != "cuda":
        return
    if _EGL_DEVICE not in environ:
        with suppress(OSError, ValueError):
            environ[_EGL_DEVICE] = str(egl_gpus().index(device.index or 0))
    visible, chosen = environ.get(VISIBLE_DEVICES), environ.get(_EGL_DEVICE)
    if visible and chosen and chosen not in visible:
        # robosuite takes EGL's number for one of CUDA's, and cannot be imported unless it is named as visible, too.
        # CUDA reads no further than -1.
        environ[VISIBLE_DEVICES] = f"{visible},{_END_OF_VISIBLE},{chosen}"


def describe_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that affect devices and threads, with ``none`` for those not set."""
    names = (VISIBLE_DEVICES, "MUJOCO_GL", _EGL_DEVICE, "OMP_NUM_THREADS")
    return {name: repr(environ[name]) if name in environ else "none" for name in names}


def _load_egl() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("cannot be loaded, devices: none; only a viewport video through OpenGL would need it")


def _cuda_indices(egl: ctypes.CDLL) -> list[int | None]:
    """Return the CUDA index of each EGL device, None if it has none."""
    query_devices = _function(egl, "eglQueryDevicesEXT", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    if query_devices is None:
        raise OSError("loads, but cannot list devices")
    query_attribute = _function(egl, "eglQueryDeviceAttribEXT", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
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


def _function(egl: ctypes.CDLL, name: str, *argument_types: type):
    find = egl.eglGetProcAddress
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = find(name.encode())
    return ctypes.CFUNCTYPE(ctypes.c_uint, *argument_types)(address) if address else None


# Choose what OpenGL draws with on a machine that may have no screen and no GPU, as the variable MUJOCO_GL says it.

VARIABLE = "MUJOCO_GL"


@dataclass(frozen=True, kw_only=True)
class OpenglChoice:
    """What OpenGL draws with.

    Attributes:
        name: Value of MUJOCO_GL; None if nothing was found, and MuJoCo decides.
        reason: Why, in a few words.
        lacks_library: Whether the library that it needs is not installed, so that no MuJoCo can be imported.
    """

    name: str | None
    reason: str
    lacks_library: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that say so."""
        return {} if self.name is None else {VARIABLE: self.name}


def choose_opengl(
    device: torch.device,
    given: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    egl_gpus: Callable[[], list[int | None]] = egl_cuda_indices,
    find_library: Callable[[str], str | None] = ctypes.util.find_library,
) -> OpenglChoice:
    """Return what draws: what a user has chosen, else EGL on the rank's GPU, else OSMesa on the CPU.

    Args:
        device: The rank's device.
        given: Variables that a job gives its workers.
        environ: Those of this process.
        egl_gpus: Returns the CUDA index of each of EGL's devices.
        find_library: Returns the file of a shared library, None if it is not installed.
    """
    told = given.get(VARIABLE, environ.get(VARIABLE))
    if told is not None:
        lacks = told == "osmesa" and find_library("OSMesa") is None
        return OpenglChoice(name=told, reason="as the variable says", lacks_library=lacks)
    if device.type == "cuda":
        with suppress(OSError):
            if (device.index or 0) in egl_gpus():
                return OpenglChoice(name="egl", reason=f"EGL draws on {device}")
    if find_library("OSMesa") is not None:
        return OpenglChoice(name="osmesa", reason="OSMesa draws on the CPU")
    reason = "there is no EGL on a GPU of this rank, and no OSMesa; install libosmesa6, or set MUJOCO_GL"
    return OpenglChoice(name=None, reason=reason)


# Choose the device of a rank, by one rule for simulation, cameras and policy.


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


# Choose the device of a policy's network, and refuse devices that do not exist.


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
