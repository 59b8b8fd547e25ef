"""What a result has to be accompanied by: versions, revision, machine."""

import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from isaaclab_arena.storage.run_plan import Machine

DISTRIBUTION = "isaaclab-arena-mujoco"
_PACKAGES = (
    DISTRIBUTION,
    "torch",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "numpy",
    "scipy",
    "pandas",
    "h5py",
    "gymnasium",
)
_GIT_TIMEOUT_S = 5.0


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the version of Python and of each package that can influence a result; absent ones are left out.

    Args:
        more: Further packages.
    """
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision(directory: Path) -> str | None:
    """Return the commit of the checkout that holds ``directory``, with ``-dirty`` where files were changed.

    None outside a checkout, or where git is not installed.
    """
    command = ["git", "-C", str(directory), "describe", "--always", "--abbrev=40", "--dirty", "--match="]
    try:
        answer = subprocess.run(  # noqa: S603  a fixed command
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def machine() -> Machine:
    """Return where this process runs."""
    return Machine(
        host=socket.gethostname(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=platform.platform(),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
