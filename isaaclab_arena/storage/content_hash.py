"""Compute the SHA-256 of files and directories in pieces; only regular files are opened."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from isaaclab_arena.storage.atomic import storage_errors

_PIECE_BYTES = 1 << 20


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
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return "no regular file"
        piece = bytearray(_PIECE_BYTES)
        view = memoryview(piece)
        while size := stream.readinto(piece):
            digest.update(view[:size])
    return digest.hexdigest()


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
