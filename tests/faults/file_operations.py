"""Makes a chosen file operation of this process fail, or the process die at it."""

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from pathlib import Path
from typing import Any

import h5py

KILLED = 137
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Kind(Flag):
    """What an operation does to the disk."""

    READ = auto()  # opens a file for reading
    MAKE = auto()  # opens a file for writing, makes a directory or another name of a file
    WRITE = auto()
    RENAME = auto()
    REMOVE = auto()
    FLUSH = auto()


CHANGES = Kind.MAKE | Kind.WRITE | Kind.RENAME | Kind.REMOVE | Kind.FLUSH


class Effect(StrEnum):
    """What happens at the chosen operation."""

    DIES = "dies"  # before the operation
    DIES_WITHIN = "dies within"  # when half of a write is on the disk
    SHORT_WRITE = "short write"  # half of a write is on the disk, and the call says so; the next one goes well
    NO_SPACE_ONCE = "no space once"
    NO_SPACE = "no space"  # from then on; of the first write a half still fits
    IO_ERROR_ONCE = "I/O error once"
    IO_ERROR = "I/O error"
    NO_ACCESS_ONCE = "no access once"
    NO_ACCESS = "no access"


_MEETS = {
    Effect.DIES: CHANGES,
    Effect.DIES_WITHIN: Kind.WRITE,
    Effect.SHORT_WRITE: Kind.WRITE,
    Effect.NO_SPACE_ONCE: Kind.MAKE | Kind.WRITE | Kind.FLUSH,
    Effect.NO_SPACE: Kind.MAKE | Kind.WRITE | Kind.FLUSH,
    Effect.IO_ERROR_ONCE: CHANGES | Kind.READ,
    Effect.IO_ERROR: CHANGES | Kind.READ,
    Effect.NO_ACCESS_ONCE: Kind.MAKE | Kind.RENAME | Kind.REMOVE | Kind.READ,
    Effect.NO_ACCESS: Kind.MAKE | Kind.RENAME | Kind.REMOVE,
}
"""Which operations an effect can meet: a full disk refuses no removal, a directory without access no open file."""

_ERRORS = {
    Effect.NO_SPACE_ONCE: errno.ENOSPC,
    Effect.NO_SPACE: errno.ENOSPC,
    Effect.IO_ERROR_ONCE: errno.EIO,
    Effect.IO_ERROR: errno.EIO,
    Effect.NO_ACCESS_ONCE: errno.EACCES,
    Effect.NO_ACCESS: errno.EACCES,
}
_LASTING = {Effect.NO_SPACE, Effect.IO_ERROR, Effect.NO_ACCESS}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong at which operation that it can meet, from 1; ``only`` counts those that begin so alone."""

    effect: Effect
    at: int
    only: str = ""


class FaultyFiles:
    """Counts this process's file operations in a directory (an absolute path), and lets a fault happen at one."""

    def __init__(self, directory: str, fault: Fault | None, on_fault: Callable[[str], None] = lambda _: None) -> None:
        self._directory = directory
        self._fault = fault
        self._on_fault = on_fault
        self._met = 0
        self._lock = threading.Lock()
        self._os_open, self._os_write, self._io_open = os.open, os.write, io.open

    def install(self) -> None:
        """Replace the functions by which Python works on files, for the rest of this process's life."""
        for kind, names in {
            Kind.RENAME: ("replace", "rename"),
            Kind.REMOVE: ("unlink", "remove", "rmdir"),
            Kind.MAKE: ("mkdir", "link", "symlink"),
            Kind.FLUSH: ("fsync", "fdatasync"),
            Kind.WRITE: ("truncate", "ftruncate"),
        }.items():
            for name in names:
                setattr(os, name, self._watched(getattr(os, name), name, kind))
        os.open = self._open_descriptor
        os.write = self._write_descriptor
        io.open = builtins.open = self._open
        h5py.File = self._open_hdf5

    def meet(self, kind: Kind, name: str, path: Any) -> bool:
        """Let an operation fail if its turn has come; true for a write of which only a half is to reach the disk."""
        fault = self._fault
        if fault is None or not kind & _MEETS[fault.effect]:
            return False
        place = self._place(path)
        if place != self._directory and not place.startswith(f"{self._directory}{os.sep}"):
            return False
        operation = f"{name} {os.path.relpath(place, self._directory)}"
        if not operation.startswith(fault.only):
            return False
        with self._lock:
            self._met += 1
            met = self._met
        if met < fault.at or (met > fault.at and fault.effect not in _LASTING):
            return False
        if met == fault.at:
            self._on_fault(operation)
        return self._happen(fault, kind, place, is_first=met == fault.at)

    def _happen(self, fault: Fault, kind: Kind, place: str, *, is_first: bool) -> bool:
        if fault.effect is Effect.DIES:
            os._exit(KILLED)
        if fault.effect in (Effect.DIES_WITHIN, Effect.SHORT_WRITE):
            return True
        if fault.effect is Effect.NO_SPACE and kind is Kind.WRITE and is_first:
            return True
        number = _ERRORS[fault.effect]
        # As with the real ones, whoever wrote to an open file is not told its name.
        named = () if kind in Kind.WRITE | Kind.FLUSH else (place,)
        raise OSError(number, os.strerror(number), *named)

    def write(self, write: Callable[[bytes], int], content: Any, path: Any) -> int:
        """Write through ``write``, as much as the fault allows."""
        if not self.meet(Kind.WRITE, "write", path):
            return write(content)
        half = bytes(content)[: len(content) // 2]
        written = write(half) if half else 0
        if self._fault is not None and self._fault.effect is Effect.DIES_WITHIN:
            os._exit(KILLED)
        return written

    def _place(self, path: Any) -> str:
        if isinstance(path, int):
            try:
                return str(Path(f"/proc/self/fd/{path}").readlink())
            except OSError:
                return ""
        return str(Path(os.fsdecode(path)).absolute())

    def _watched(self, function: Callable[..., Any], name: str, kind: Kind) -> Callable[..., Any]:
        def watched(path: Any, *arguments: Any, **options: Any) -> Any:
            self.meet(kind, name, path)
            return function(path, *arguments, **options)

        return watched

    def _open_descriptor(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        self.meet(Kind.MAKE if flags & _WRITING_FLAGS else Kind.READ, "open", path)
        return self._os_open(path, flags, *arguments, **options)

    def _write_descriptor(self, descriptor: int, content: Any) -> int:
        return self.write(lambda part: self._os_write(descriptor, part), content, descriptor)

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int):
            return self._io_open(file, mode, buffering, *arguments, **options)
        if not set(mode) & set("wax+"):
            self.meet(Kind.READ, "open", file)
            return self._io_open(file, mode, buffering, *arguments, **options)
        self.meet(Kind.MAKE, "open", file)
        raw = _WatchedFile(file, mode.replace("b", "").replace("t", ""), self)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *arguments, **options)

    def _open_hdf5(self, name: Any, mode: str = "r", **options: Any) -> h5py.File:
        if options.get("driver") is None:
            self.meet(Kind.READ if mode == "r" else Kind.MAKE, "open", name)
        return _HDF5_FILE(name, mode, **options)


_HDF5_FILE = h5py.File


class _WatchedFile(io.FileIO):
    """A file that was opened for writing, each write of which may fail."""

    def __init__(self, path: Any, mode: str, watch: FaultyFiles) -> None:
        super().__init__(path, mode)
        self._watch = watch

    def write(self, content: Any) -> int:
        return self._watch.write(super().write, content, self.name)
