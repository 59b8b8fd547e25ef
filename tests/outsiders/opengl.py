"""Says what the interpreters of other benchmarks draw with in tests: the same as the workers of a run."""

import ctypes.util
import os

import torch


def opengl_variables() -> dict[str, str]:
    """Return the environment variables: what is set, else EGL on a GPU, else OSMesa on the CPU."""
    if "MUJOCO_GL" in os.environ:
        return {"MUJOCO_GL": os.environ["MUJOCO_GL"]}
    if torch.cuda.is_available() and ctypes.util.find_library("EGL") is not None:
        return {"MUJOCO_GL": "egl"}
    return {} if ctypes.util.find_library("OSMesa") is None else {"MUJOCO_GL": "osmesa"}
