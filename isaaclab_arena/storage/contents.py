"""What results depend on, by content: hashes of files, versions, processor, system, device."""

import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.storage.atomic import storage_errors

# Compute the SHA-256 of files and directories in pieces; only regular files are opened.

_PIECE_BYTES = 1 << 20
_SETTLED_NS = 2_000_000_000
"""A file that was changed less long before it is read may change again without another time, as clocks tick slowly."""

_KNOWN: dict[tuple[int, int], tuple[tuple[int, int, int], str]] = {}
"""Device and inode of files to their size and the times of their last changes, and to the hash that they had then."""


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, or of a directory's names and contents; links are followed.

    Of a directory all counts that does not begin with a dot, in order of its name, and byte code does not.

    Returns:
        64 hexadecimal digits; ``absent``, or ``no regular file`` for a pipe, a device or a socket.

    Raises:
        StorageError: If something cannot be read.
    """
    with storage_errors("read", path):
        return _hash_of_directory(path) if path.is_dir() else _hash_of_file(path)


def _hash_of_file(path: Path) -> str:
    if not path.exists():
        return "absent"
    # What waits for a writer, or never ends, must not be opened; nor may it take a file's place in between.
    if not stat.S_ISREG(path.stat().st_mode):
        return "no regular file"
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "no regular file"
        file, version = (status.st_dev, status.st_ino), _version(status)
        known = _KNOWN.get(file)
        if known is not None and known[0] == version:
            return known[1]
        digest, piece = hashlib.sha256(), bytearray(_PIECE_BYTES)
        view = memoryview(piece)
        while size := stream.readinto(piece):
            digest.update(view[:size])
        if _version(os.fstat(stream.fileno())) == version and time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
            _KNOWN[file] = version, digest.hexdigest()
    return digest.hexdigest()


def _version(status: os.stat_result) -> tuple[int, int, int]:
    # No program can set the time of the last change to the inode, as one can set that of the file.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _hash_of_directory(directory: Path) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(_files_below(directory)):
        # Lengths keep a name from running into what follows it.
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%s %s\n" % (len(encoded), encoded, _hash_of_file(path).encode()))
    return digest.hexdigest()


def _files_below(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a directory holds, by the name below it, with ``/`` between directories on every system."""
    seen: set[tuple[int, int]] = set()
    for root, directories, names in os.walk(directory, followlinks=True):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in seen:
            # A link that leads back up: what is there has been seen.
            directories.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name != "__pycache__")
        for name in names:
            if not name.startswith("."):
                path = Path(root, name)
                yield path.relative_to(directory).as_posix(), path


# Identify what a job evaluates by content: checkpoints by their hash, packages by their version.

SAVED_CONDITIONS = "saved conditions"
"""The name of a job's saved conditions among what decides what its environment does."""

_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What decides what comes out of a job beside its options and this package.

    Attributes:
        policy: What decides what the policy does, such as ``checkpoint_path model_300.pt``, to its SHA-256, its
            version, or `UNKNOWN`.
        environment: The same for the environment and its saved conditions.
        checkpoint: What tables name as the checkpoint, None for a policy without one.
    """

    policy: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None

    @property
    def policy_sha256(self) -> str | None:
        """One hash for everything that decides what the policy does, whatever its files are called.

        None for a policy that is nothing but this package and its options, `UNKNOWN` where a part is not known.
        """
        return _hash_of(self.policy.values())

    @property
    def environment_sha256(self) -> str | None:
        """The same for everything that decides what the environment does."""
        return _hash_of(self.environment.values())

    @property
    def is_known(self) -> bool:
        """Whether equal contents mean that the same was evaluated."""
        return UNKNOWN not in {*self.policy.values(), *self.environment.values()}


def _hash_of(contents: Collection[str]) -> str | None:
    if not contents or UNKNOWN in contents:
        return UNKNOWN if contents else None
    return hashlib.sha256("\n".join(sorted(contents)).encode()).hexdigest()


def differences_of_contents(before: Contents, now: Contents) -> Iterator[tuple[str, str]]:
    """Yield what is not what it was, and how: ``checkpoint_path model_300.pt``, ``was 1a2b…, is now 9f8e…``."""
    yield from changes(before.policy, now.policy)
    yield from changes(before.environment, now.environment)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name whose content differs, and how; what is not known on either side differs from nothing."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "not there"), now.get(name, "not there")
        if old != new and UNKNOWN not in {old, new}:
            yield name, f"was {shown(old)}, is now {shown(new)}"


def shown(content: str) -> str:
    """Return a hash with as many digits as tell it from others, anything else as it is."""
    return content[:_SHOWN_DIGITS] if _HASH.fullmatch(content) else content


# Describe what results depend on besides the plan, and compare it: versions, processor, system, device.

SERVED_MODEL = "served_model"
"""What a policy server stated of its model; a replay, which asks none, does not compare it."""

_NOT_COMPARED = frozenset({"config_hash", "policy_type"})


@dataclass(frozen=True, kw_only=True)
class Node:
    """The computer that a process runs on.

    Attributes:
        host: Its name.
        cpu: Model of the processor.
        cores: Cores that the process may use.
        platform: Operating system, release and architecture.
    """

    host: str
    cpu: str
    cores: int
    platform: str


@dataclass(frozen=True, kw_only=True)
class ProvenanceChange:
    """One thing that is not what it was; None where it was absent or is absent now."""

    name: str
    before: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.name} was {self.before or 'absent'}, is now {self.now or 'absent'}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What results depend on beside what was asked for.

    Attributes:
        facts: A name such as ``torch``, ``cpu`` or ``device``, to its version or kind.
    """

    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, versions: Mapping[str, str], node: Node, **more: str) -> "Provenance":
        """Return what is known of a process from its versions, its node, and whatever else."""
        return cls(facts={**versions, "cpu": node.cpu, "platform": node.platform, **more})

    def differences(self, other: "Provenance") -> tuple[ProvenanceChange, ...]:
        """Return what changed from this to another provenance, by name."""
        names = sorted((self.facts.keys() | other.facts.keys()) - _NOT_COMPARED)
        changes = (
            ProvenanceChange(name=name, before=self.facts.get(name), now=other.facts.get(name)) for name in names
        )
        return tuple(change for change in changes if change.before != change.now)

    def told_differences(self, other: "Provenance") -> tuple[str, ...]:
        """Return a line for each fact that is known here and is not so in another provenance."""
        return tuple(str(change) for change in self.differences(other) if change.before is not None)
