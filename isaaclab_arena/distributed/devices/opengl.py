"""Choose what OpenGL draws with on a machine that may have no screen and no GPU, as the variable MUJOCO_GL says it."""

import ctypes.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from isaaclab_arena.distributed.devices.egl_devices import egl_cuda_indices

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
