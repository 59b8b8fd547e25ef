"""Files of a run: written whole or not at all, read within limits, and JSON in them."""

import dataclasses
import errno
import json
import math
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from isaaclab_arena.errors import ConfigError, DamagedFileError, DiskUnusableError, Problem, StorageError
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.storage.layout import RUN_PLAN_FILE

# Write files atomically, so that a crash leaves a file complete or not at all, and read those of a run.

# EFBIG: a limit on file size (RLIMIT_FSIZE), which the next file meets too.
_LARGEST_FILE_BYTES = 2**63 - 1
_LARGEST_READ_BYTES = 2**30
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_UNUSABLE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class FileThereError(StorageError):
    """The file exists and may not be replaced."""


def temporary_path(path: Path) -> Path:
    """Return this process's temporary path for ``path``: ``.<name>.<host>.<pid>.tmp`` beside it."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` with the operation and the path."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, path, error) from error


def check_plain(path: Path, *, max_bytes: int = _LARGEST_FILE_BYTES) -> None:
    """Check that a path is a plain file before an open: a pipe would block. DamagedFileError if not."""
    # A run may come from an untrusted source. None of its files may lead out of its directory, which holds
    # ``run.json``: a link to another file would put that file into a page that is shared. Limit: `max_bytes` [bytes].
    with storage_errors("read", path):
        try:
            found = path.stat()
        except OSError as error:
            # Links in a circle or to nothing are no plain files either.
            is_dead_link = error.errno == errno.ENOENT and path.is_symlink()
            if error.errno != errno.ELOOP and not is_dead_link:
                raise
            found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        raise DamagedFileError(f"cannot read {path}: {not_a_plain_file(path)}")
    if found.st_size > max_bytes:
        raise DamagedFileError(f"cannot read {path}: it has {found.st_size} bytes, at most {max_bytes} are read")
    if leads_out_of_its_run(path):
        raise DamagedFileError(f"cannot read {path}: it leads out of the run's directory, to {os.path.realpath(path)}")


def leads_out_of_its_run(path: Path) -> bool:
    """Whether links lead from a path below a directory with ``run.json`` out of that directory."""
    below, may_lead_out = path, ".." in path.parts
    for parent in path.parents:
        # Resolving both paths takes ten times as long, and is needed only if there is a link on the way.
        may_lead_out = may_lead_out or below.is_symlink()
        if (parent / RUN_PLAN_FILE).exists():
            return may_lead_out and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(parent))
        below = parent
    return False


def read_whole(path: Path, *, max_bytes: int = _LARGEST_READ_BYTES) -> bytes:
    """Return the content of a run's file; see `check_plain`."""
    check_plain(path, max_bytes=max_bytes)
    with storage_errors("read", path):
        return path.read_bytes()


def storage_error(doing: str, path: Path, error: OSError) -> StorageError:
    """Return the error for a failed operation on a file; DiskUnusableError if the whole disk is unusable."""
    kind = DiskUnusableError if error.errno in _UNUSABLE_DISK else StorageError
    mend = "; move it away" if error.errno == errno.EISDIR else ""
    return kind(f"cannot {doing} {path}: {error.strerror or error}{mend}")


@contextmanager
def written_in_place(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` at the end of the block, and is removed if the block fails."""
    temporary = temporary_path(path)
    with storage_errors("write", path):
        _refuse_existing(path, overwrite=overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only this process uses this name, so an existing file is left over from an earlier process of the same id.
        temporary.unlink(missing_ok=True)
        try:
            yield temporary
            _refuse_existing(path, overwrite=overwrite)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes | bytearray, *, overwrite: bool = False) -> None:
    """Write a whole file atomically; see `written_in_place`."""
    # The same as `written_in_place` with half of its system calls, because thousands of small files are written.
    temporary = temporary_path(path)
    with storage_errors("write", path):
        try:
            try:
                descriptor = os.open(temporary, _NEW, 0o666)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(temporary, _NEW, 0o666)
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(descriptor, left) :]
            finally:
                os.close(descriptor)
            _refuse_existing(path, overwrite=overwrite)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, content: str, *, overwrite: bool = False) -> None:
    """Write a whole text file in UTF-8 atomically; see `written_in_place`."""
    write_bytes(path, content.encode("utf-8"), overwrite=overwrite)


def write_at(path: Path, offset: int, content: bytes) -> None:
    """Write a part of a file that arrives in parts, at `offset` [bytes]; the same part may arrive twice."""
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.pwrite(descriptor, content, offset)
        finally:
            os.close(descriptor)
    if written != len(content):
        message = f"cannot write {path}: only {written} of {len(content)} bytes fitted; the disk is full"
        raise DiskUnusableError(message)


def flush_to_disk(path: Path) -> None:
    """Flush a file's content from the system's memory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(descriptor: int, line: str, path: Path) -> None:
    """Append one line with one unbuffered write, so that a kill can tear only the last line."""
    content = f"{line}\n".encode()
    with storage_errors("append to", path):
        written = os.write(descriptor, content)
    if written != len(content):
        message = f"cannot append to {path}: only {written} of {len(content)} bytes fitted; the disk is full"
        raise DiskUnusableError(message)


def _refuse_existing(path: Path, *, overwrite: bool) -> None:
    if not overwrite and path.exists():
        raise FileThereError(f"{path} exists already and is not overwritten")


# Set files aside: they move to a directory such as ``set_aside/`` of a job.


def move_aside(path: Path, directory: Path) -> Path:
    """Move a file into a directory, under a new name if its name is taken, and return its new path."""
    with storage_errors("set aside", path):
        directory.mkdir(parents=True, exist_ok=True)
        target = free_name(directory, path.name)
        path.rename(target)
    return target


def keep_aside(path: Path, directory: Path) -> None:
    """Keep a copy of a file in a directory before the file is replaced."""
    with storage_errors("set aside", path):
        directory.mkdir(parents=True, exist_ok=True)
        if any(kept.samefile(path) for kept in takewhile(Path.exists, names_aside(directory, path.name))):
            return
        target = free_name(directory, path.name)
        try:
            os.link(path, target)
        except OSError:
            # Some file systems lack hard links. If the disk is at fault, the copy fails too.
            with written_in_place(target) as temporary:
                shutil.copyfile(path, temporary)


def names_aside(directory: Path, name: str) -> Iterator[Path]:
    """Yield candidate names for a file in a directory: its own, then ``e000001.1.h5`` and so on."""
    yield directory / name
    for number in count(1):
        yield (directory / name).with_suffix(f".{number}{Path(name).suffix}")


def free_name(directory: Path, name: str) -> Path:
    """Return the first free one of `names_aside`."""
    return next(path for path in names_aside(directory, name) if not os.path.lexists(path))


def remove_if_empty(directory: Path) -> None:
    """Remove a directory if it exists and is empty."""
    with storage_errors("remove", directory):
        try:
            directory.rmdir()
        except OSError as error:
            # Another rank may have removed it, or written into it, since the check.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise


# Convert between frozen dataclasses and the JSON files of a run: plain values, no bare NaN.

Value = TypeVar("Value")


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict of its fields, for the JSON encoder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in _fields(type(value))}
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


_fields: Callable[[Any], tuple[dataclasses.Field[Any], ...]] = cache(dataclasses.fields)
_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_as_dict)
_TEXT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=2)
# JSON itself escapes only control characters below a space. These also affect a terminal, or end a line.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def plain(value: Any) -> Any:
    """Return a value in JSON's types: mappings as dicts, sequences as lists, NaN and infinity as None."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _as_dict(value)
    elif isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else str(value)


def json_line(value: Any) -> str:
    """Return a value as one line of strict JSON."""
    try:
        # Most values are plain already, and the encoder detects that faster than `plain`.
        line = _LINE.encode(value)
    except (TypeError, ValueError):
        line = _LINE.encode(plain(value))
    return _harmless(line)


def json_text(value: Any) -> str:
    """Return a value as indented strict JSON."""
    return _harmless(_TEXT.encode(plain(value))) + "\n"


def _harmless(text: str) -> str:
    """Return equal JSON without terminal control characters and lone surrogates, which UTF-8 cannot encode."""
    if text.isascii() and "\x7f" not in text:
        return text
    escaped = _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", escaped)


_cached_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def adapter(value_type: type[Value]) -> TypeAdapter[Value]:
    """Return the validator of a dataclass for JSON, cached per type."""
    return _cached_adapter(value_type)


def read_json(path: Path) -> Any:
    """Return the value in a run's JSON file; see `read_whole`. DamagedFileError if it is not valid JSON."""
    content = read_whole(path)
    if not content:
        raise DamagedFileError(f"cannot read {path}: is empty")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"cannot read {path}: is not valid JSON: {error}") from error


def read_versioned(path: Path, value_type: type[Value], schema_version: int) -> Value:
    """Read a dataclass with a ``schema_version`` from a JSON file. ConfigError if damaged or of another version."""
    try:
        document = read_json(path)
    except DamagedFileError as error:
        raise ConfigError(Problem(str(error).removeprefix(f"cannot read {path}: "), file=str(path))) from error
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found is None:
        raise ConfigError(Problem("was not written by this program: it has no schema_version", file=str(path)))
    if found != schema_version:
        message = f"has schema version {found}; this program reads version {schema_version}"
        raise ConfigError(Problem(message, file=str(path)))
    try:
        return adapter(value_type).validate_python(document)
    except ValidationError as error:
        problems = [
            Problem(details["msg"], file=str(path), key=".".join(str(part) for part in details["loc"]))
            for details in error.errors()
        ]
        raise ConfigError(problems) from error
