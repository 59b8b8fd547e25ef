"""Record what this process's results come from: versions, revision, node."""

import hashlib
import json
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from isaaclab_arena.storage.provenance import Node

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
        version = _version_of(package)
        if version is not None:
            found[package] = version
    return found


@cache
def _version_of(package: str) -> str | None:
    """Return a package's version, None for a package that is absent; it reads a long file each time."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def package_content(package: str) -> str | None:
    """Return version, revision and a hash of the files of the package that provides an import name.

    The hash is of the hashes that were written down when it was installed, so a package that was built anew under the
    same version is told from the one before.

    Args:
        package: Name of the topmost module.

    Returns:
        None where no installed package provides it.
    """
    providers = _packages_by_import_name().get(package)
    return None if not providers else "; ".join(map(_content_of_distribution, sorted(set(providers))))


@cache
def _packages_by_import_name() -> dict[str, list[str]]:
    # It reads the metadata of everything that is installed, which takes a moment.
    return dict(metadata.packages_distributions())


def _content_of_distribution(name: str) -> str:
    found = metadata.distribution(name)
    parts = [f"{name} {found.version}"]
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    revision = origin.get("vcs_info", {}).get("commit_id") if isinstance(origin, dict) else None
    if revision:
        parts.append(f"commit {revision}")
    files = sorted(
        f"{file.as_posix()} {file.hash.value}"
        for file in found.files or ()
        # What the installer adds differs from one directory to the next.
        if file.hash is not None and ".." not in file.parts and not file.parts[0].endswith(".dist-info")
    )
    if files:
        parts.append(f"files {hashlib.sha256(chr(10).join(files).encode()).hexdigest()[:16]}")
    return ", ".join(parts)


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


def node() -> Node:
    """Return where this process runs."""
    return Node(
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
