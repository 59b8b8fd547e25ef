"""Compute the SHA-256 of files and directories in pieces; only regular files are opened."""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from isaaclab_arena.storage.atomic import storage_errors

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
