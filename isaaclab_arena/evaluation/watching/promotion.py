"""Promote the checkpoints of a watch that reach a bar: as they were evaluated, with what it takes to load them."""

import hashlib
import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.analysis.comparison import Question, compare_directories
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.checkpoints import look_at
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.watching.best import Score
from isaaclab_arena.evaluation.watching.ledger import Evaluated, Ledger
from isaaclab_arena.models.agent_settings import AGENT_FILE, find_agent_file
from isaaclab_arena.storage.atomic import storage_errors, temporary_path, write_text
from isaaclab_arena.storage.content_hash import content_hash
from isaaclab_arena.storage.json_values import json_text, read_versioned

_LOG = logging.getLogger(__name__)
_PROMOTED = "promoted.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """The checkpoint that was promoted last.

    Attributes:
        step: Its step.
        source: Where it was found.
        name: Where a policy finds it in the directory of promoted checkpoints.
        success_rate: Mean of the jobs' rates.
        success_low: Lower end of the interval of all episodes together.
        success_high: Upper end.
        episodes: Episodes whose success was measured.
        distinct_conditions: How many different conditions these started from.
        compared_with: Step of the one that was promoted before, None for the first.
        verdict: What the comparison with that one says; None for the first, and where they cannot be compared.
        schema_version: Version of the format.
    """

    step: int
    source: str
    name: str
    success_rate: float
    success_low: float
    success_high: float
    episodes: int | None = None
    distinct_conditions: int | None = None
    compared_with: int | None = None
    verdict: str | None = None
    schema_version: int = _SCHEMA_VERSION


def content_of(checkpoint: Path) -> str:
    """Return a hash of a checkpoint and of what it takes to load it.

    Args:
        checkpoint: The file or directory that a policy loads.

    Raises:
        StorageError: If it cannot be read.
    """
    hashes = {"checkpoint": content_hash(checkpoint)}
    if checkpoint.is_file():
        hashes |= {str(name): content_hash(path) for name, path in _beside(checkpoint).items()}
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()


def promote(directory: Path, score: Score, record: Evaluated, ledger: Ledger, *, jobs: Iterable[str]) -> Path | None:
    """Copy a checkpoint that reached the bar, if it is better than the one promoted before; return where it lies.

    Each has a directory ``step_<n>``, which is there whole or not at all, with ``params/agent.yaml`` if there is one.
    Beside them lie ``promoted.json``, about the last of them, and ``comparison_<step>/`` with the paired comparison of
    each with the one before. A checkpoint whose content is not what was evaluated is not promoted, and a warning says
    so.

    Args:
        directory: Directory of the promoted checkpoints.
        score: Its score.
        record: What the watch knows of it.
        ledger: Where the runs of both lie.
        jobs: The jobs of the watch that have checkpoints, as its job file calls them.

    Raises:
        StorageError: If it cannot be copied.
    """
    with storage_errors("make", directory):
        directory.mkdir(parents=True, exist_ok=True)
    told = directory / _PROMOTED
    before = read_versioned(told, Promoted, _SCHEMA_VERSION) if told.is_file() else None
    if before is not None and (before.step == score.step or before.success_rate >= score.success_rate):
        return None
    target = _copied(record, directory / f"step_{score.step}")
    if target is None:
        _LOG.warning("step %d is not promoted: %s is not what was evaluated any more", score.step, record.path)
        return None
    promoted = _promoted(score, record, target.relative_to(directory))
    if before is not None:
        verdict = _compared(directory, ledger, before.step, score.step, jobs)
        promoted = replace(promoted, compared_with=before.step, verdict=verdict)
    write_text(told, json_text(promoted), overwrite=True)
    return target


def _promoted(score: Score, record: Evaluated, name: Path) -> Promoted:
    return Promoted(
        step=score.step,
        source=record.path,
        name=name.as_posix(),
        success_rate=score.success_rate,
        success_low=score.interval.low,
        success_high=score.interval.high,
        episodes=score.scored,
        distinct_conditions=score.distinct,
    )


def _copied(record: Evaluated, target: Path) -> Path | None:
    """Copy what was evaluated; return what a policy loads of the copy, None where it is not the same any more."""
    source, temporary = Path(record.path), temporary_path(target)
    name = source.name if source.is_file() else ""
    try:
        with storage_errors("copy", target):
            shutil.rmtree(temporary, ignore_errors=True)
            with suppress(FileNotFoundError):
                _copy(source, temporary)
            if not _is_as_evaluated(record, temporary / name):
                return None
            shutil.rmtree(target, ignore_errors=True)
            temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target / name


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    for name, path in {Path(source.name): source, **_beside(source)}.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / name)


def _is_as_evaluated(record: Evaluated, copy: Path) -> bool:
    if not copy.exists():
        return False
    if record.content is not None:
        return content_of(copy) == record.content
    # A watch of an earlier version knows only how the files looked.
    return look_at(Path(record.path)).fingerprint == record.fingerprint


def _beside(file: Path) -> dict[Path, Path]:
    """Return what is needed beside a file, by its place below the file's directory."""
    agent, tensors = find_agent_file(file), file.with_name(f"{file.name}.data")
    found = {} if agent is None else {AGENT_FILE: agent}
    # An ONNX file may keep its tensors in a file beside it.
    return found | ({Path(tensors.name): tensors} if tensors.is_file() else {})


def _compared(directory: Path, ledger: Ledger, before: int, now: int, jobs: Iterable[str]) -> str | None:
    names = {f"{job}-{before}": f"{job}-{now}" for job in jobs}
    runs = [ledger.run_directory(before), ledger.run_directory(now)]
    try:
        report = compare_directories(runs, Question(alpha=0.05, margin=None), baseline=None, names=names, partial=False)
        write_comparison(directory / f"comparison_{now}", report)
    except ArenaError as error:
        _LOG.warning("steps %d and %d cannot be compared: %s", before, now, error)
        return None
    return str(report.verdict)
