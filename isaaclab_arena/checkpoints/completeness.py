"""Tell whether a checkpoint is complete, from what its files show: a training may still be writing it."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.checkpoints.safetensors_files import wrong_with_weights
from isaaclab_arena.checkpoints.torch_files import is_torch_archive, wrong_with_torch_archive
from isaaclab_arena.plain_files import not_a_plain_file

_LEROBOT_WEIGHTS = "pretrained_model"
_WRITTEN_AFTER_LEROBOT_WEIGHTS = "training_state"
_WRITTEN_LAST_BY_TRAINER = "trainer_state.json"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a checkpoint's files show at one moment.

    Attributes:
        missing: What shows that it is not complete, for people; None where nothing does.
        is_finished: Whether something shows that its writer is done: the list at the end of an archive, or a file
            that is written after all others. Otherwise only time can show it.
        fingerprint: Hash of the name, size, time of change and inode of each file, empty where there is none; whoever
            reads the checkpoint between two looks with the same fingerprint has read one checkpoint.
    """

    missing: str | None
    is_finished: bool
    fingerprint: str


def look_at(path: Path) -> Look:
    """Return what the files of a checkpoint show. Weights are not read.

    Args:
        path: The file or directory that a policy loads. It may vanish or change meanwhile.
    """
    before = _fingerprint(path)
    missing, is_finished = _judged(path) if before else ("there is no such file", False)
    if missing is None and _fingerprint(path) != before:
        missing = "it is being written"
    return Look(missing=missing, is_finished=is_finished and missing is None, fingerprint=before)


def _judged(path: Path) -> tuple[str | None, bool]:
    try:
        return _judged_directory(path) if path.is_dir() else _judged_file(path)
    except OSError as error:
        return f"it cannot be read: {error.strerror}", False


def _judged_file(path: Path) -> tuple[str | None, bool]:
    wrong = not_a_plain_file(path)
    if wrong is not None:
        return wrong, False
    if is_torch_archive(path):
        return wrong_with_torch_archive(path), True
    # Other formats do not show their end.
    return (None if path.stat().st_size else "it is empty"), False


def _judged_directory(directory: Path) -> tuple[str | None, bool]:
    wrong = wrong_with_weights(directory)
    if wrong is not None:
        return wrong, False
    for document in sorted(directory.glob("*.json")):
        try:
            json.loads(document.read_bytes())
        except ValueError:
            return f"{document.name} is no JSON yet", False
    archives = [path for path in sorted(directory.glob("*.pt")) if is_torch_archive(path)]
    for archive in archives:
        wrong = wrong_with_torch_archive(archive)
        if wrong is not None:
            return f"{archive.name} {wrong}", False
    if not archives and not any(directory.glob("*.safetensors")):
        return "it holds no weights", False
    return None, _has_last_file(directory)


def _has_last_file(directory: Path) -> bool:
    if directory.name == _LEROBOT_WEIGHTS:
        return (directory.parent / _WRITTEN_AFTER_LEROBOT_WEIGHTS).is_dir()
    return (directory / _WRITTEN_LAST_BY_TRAINER).is_file()


def _fingerprint(path: Path) -> str:
    stats = sorted(_stats(path))
    return hashlib.sha256(repr(stats).encode()).hexdigest() if stats else ""


def _stats(path: Path) -> Iterator[tuple[str, int, int, int]]:
    for each in _entries(path):
        try:
            found = each.stat()
        except OSError:
            continue
        yield each.relative_to(path).as_posix(), found.st_size, found.st_mtime_ns, found.st_ino


def _entries(path: Path) -> Iterator[Path]:
    """Yield a path and everything below it; what is removed meanwhile is left out."""
    yield path
    for directory, below, files in os.walk(path):
        yield from (Path(directory, name) for name in (*below, *files))
