"""Find the GPUs on which OpenGL can draw without a display, through EGL, and their CUDA indices.

EGL counts devices in an order of its own, so MUJOCO_EGL_DEVICE_ID is in general no CUDA index. Names and numbers are
those of the extensions EGL_EXT_device_base, EGL_EXT_device_enumeration and EGL_NV_device_cuda.
"""

import ctypes
import os
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress

import torch

from isaaclab_arena.distributed.devices.visible_gpus import VISIBLE_DEVICES

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
