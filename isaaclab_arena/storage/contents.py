"""The dependencies of results, by content: hashes of files, versions, processor, system, device."""

import hashlib
import os
import platform
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.storage.atomic import storage_errors

_SETTLED_NS = 2_000_000_000
"""A file that was changed less long before it is read may change again without another time, as clocks tick slowly."""

# No program can set the change time of the inode, unlike that of the file.
_version = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns")
_KNOWN: dict[tuple[int, int], tuple[tuple[int, int, int], str]] = {}
"""Device and inode of files to their size and the times of their last changes, and to the hash that they had then."""


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file or directory, ``absent``, or ``no regular file`` for a pipe, device or socket."""
    # A directory's hash covers names and contents in order of the names, without names that begin with a dot and
    # without byte code. Links are followed.
    with storage_errors("read", path):
        if not path.is_dir():
            return _hash_of_file(path)
        files: list[tuple[str, Path]] = []
        seen: set[tuple[int, int]] = set()
        for root, directories, names in os.walk(path, followlinks=True):
            status = Path(root).stat()
            if (status.st_dev, status.st_ino) in seen:
                # A link leads back up to a directory that was visited.
                directories.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            directories[:] = sorted(name for name in directories if not name.startswith(".") and name != "__pycache__")
            found = (Path(root, name) for name in names if not name.startswith("."))
            files += [(file.relative_to(path).as_posix(), file) for file in found]
        digest = hashlib.sha256()
        for name, file in sorted(files):
            # Length prefixes separate names from contents.
            encoded = name.encode("utf-8", "surrogateescape")
            digest.update(b"%d:%s %s\n" % (len(encoded), encoded, _hash_of_file(file).encode()))
        return digest.hexdigest()


def _hash_of_file(path: Path) -> str:
    if not path.exists():
        return "absent"
    # A pipe blocks, and a device may never end. Either may replace the file between check and open, hence O_NONBLOCK
    # and the second check.
    if not stat.S_ISREG(path.stat().st_mode):
        return "no regular file"
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "no regular file"
        file, version = (status.st_dev, status.st_ino), _version(status)
        # Large checkpoints are hashed once per process, as long as size and times are unchanged.
        known = _KNOWN.get(file)
        if known is not None and known[0] == version:
            return known[1]
        digest = hashlib.file_digest(stream, hashlib.sha256).hexdigest()
        if _version(os.fstat(stream.fileno())) == version and time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
            _KNOWN[file] = version, digest
    return digest


# Identify the inputs of a job by content: checkpoints by their hash, packages by their version.

SAVED_CONDITIONS = "saved conditions"  # the name of a job's saved conditions among the inputs of its environment
_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The inputs of a job's results beside its options and this package."""

    # Inputs of the policy, such as ``checkpoint_path model_300.pt``, to their SHA-256, their version, or `UNKNOWN`.
    policy: Mapping[str, str] = field(default_factory=dict)
    # The same for the environment and its saved conditions.
    environment: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None  # name in tables; None for a policy without a checkpoint

    @property
    def is_known(self) -> bool:
        """Whether equal contents imply that the same was evaluated."""
        return UNKNOWN not in {*self.policy.values(), *self.environment.values()}


def one_hash(inputs: Mapping[str, str]) -> str | None:
    """Return one hash of a policy's or environment's inputs without their names, `UNKNOWN` if one is, None without."""
    if not inputs or UNKNOWN in inputs.values():
        return UNKNOWN if inputs else None
    return hashlib.sha256("\n".join(sorted(inputs.values())).encode()).hexdigest()


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name with different content and its change, ``was 1a2b…, is now 9f8e…``."""
    # Unknown content differs from nothing.
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "not there"), now.get(name, "not there")
        if old != new and UNKNOWN not in {old, new}:
            yield name, f"was {shown(old)}, is now {shown(new)}"


def shown(content: str) -> str:
    """Shorten a SHA-256 to its first digits, and return anything else unchanged."""
    return content[:_SHOWN_DIGITS] if _HASH.fullmatch(content) else content


# The dependencies of results beside the plan, and their comparison: versions, processor, system, device.

SERVED_MODEL = "served_model"
"""The name of the facts that a policy server stated about its model. A replay asks no server, so it skips them."""

_NOT_COMPARED = frozenset({"config_hash", "policy_type"})


@dataclass(frozen=True, kw_only=True)
class Node:
    """The computer of a process."""

    host: str
    cpu: str  # processor model
    cores: int  # cores available to the process
    platform: str  # operating system, release and architecture


Provenance: TypeAlias = Mapping[str, str]
"""The dependencies of results beside the request: ``torch``, ``cpu`` or ``device`` to its version or kind."""


def provenance_of(versions: Mapping[str, str], node: Node, **more: str) -> dict[str, str]:
    """Return the provenance of a process from its versions, its node, and further facts."""
    return {**versions, "cpu": node.cpu, "platform": node.platform, **more}


def changed_facts(before: Provenance, now: Provenance) -> list[tuple[str, str | None, str | None]]:
    """Return each changed fact by name, with its value before and now; None for an absent one."""
    names = sorted((before.keys() | now.keys()) - _NOT_COMPARED)
    return [(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)]


def told_changes(before: Provenance, now: Provenance) -> tuple[str, ...]:
    """Return a line for each fact that was known before and has changed."""
    changed = changed_facts(before, now)
    return tuple(
        f"{name} was {old or 'absent'}, is now {new or 'absent'}" for name, old, new in changed if old is not None
    )


# The packages of this process, its checkout and its machine.

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
    """Return the versions of Python and of each installed package that can affect results, `more` included."""
    known = ((package, _version_of(package)) for package in (*_PACKAGES, *more))
    return {"python": platform.python_version()} | {name: version for name, version in known if version is not None}


# Cached, also for an absent package, because each look reads a long file.
@cache
def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_revision(directory: Path) -> str | None:
    """Return the commit of the checkout of `directory`, with `-dirty` after changes; None without checkout or git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--abbrev=40", "--dirty", "--match="]
    try:
        answer = subprocess.run(  # noqa: S603  a fixed command
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def node() -> Node:
    """Return the machine of this process."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        cpu = platform.processor() or platform.machine()
    else:
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu = models[0] if models else platform.machine()
    return Node(
        host=socket.gethostname(),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=platform.platform(),
    )
