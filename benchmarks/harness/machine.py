"""Describe the machine and the software that figures were measured with."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from isaaclab_arena.evaluation import provenance


def processor() -> str:
    """Return the processor of this machine and how many of its cores this process may use."""
    here = provenance.node()
    return f"{here.cpu}, {here.cores} cores"


def versions(*packages: str) -> str:
    """Return names and versions of installed packages, separated by commas."""
    return ", ".join(f"{package} {metadata.version(package)}" for package in packages)


def machine_line(*packages: str) -> str:
    """Return processor, GPU, load average, Python, versions and date in one line.

    Args:
        packages: Distributions whose versions matter to the figures.
    """
    # A benchmark that has not loaded PyTorch by now uses no GPU, and need not wait a second for it.
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name()] if torch is not None and torch.cuda.is_available() else []
    load = f"load average {os.getloadavg()[0]:.1f} at the start"
    software = [f"Python {platform.python_version()}", *([versions(*packages)] if packages else [])]
    return ", ".join([processor(), *gpus, load, *software, f"{datetime.now(UTC):%Y-%m-%d}"])


def memory_directory() -> Path | None:
    """Return a directory in memory, so that the disk is not measured; None where there is none."""
    shared_memory = Path("/dev/shm")
    return shared_memory if os.access(shared_memory, os.W_OK) else None
