"""The watch: find checkpoints, wait until they are complete, evaluate each once, and promote those that pass."""

import hashlib
import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from isaaclab_arena.analysis.comparison import Question, compare_directories
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.checkpoints import Checkpoint, Readiness, find_checkpoints, look_at
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ArenaError, ConfigError, StorageError
from isaaclab_arena.evaluation.watching.curve import Score
from isaaclab_arena.models.rsl_rl_checkpoint import AGENT_FILE, find_agent_file
from isaaclab_arena.storage.atomic import storage_errors, temporary_path, write_text
from isaaclab_arena.storage.contents import content_hash
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.run_plan import RunLock

# Remember in files which checkpoints of a watch are evaluated, so that watchers can share them and go on.
#
# Below the directory of the watch, ``watch/step_<n>/`` has the record of a checkpoint and a lock, and ``step_<n>/``
# has its run. Whoever holds the lock evaluates; the system gives it back when its holder has died.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a watch knows of a checkpoint whose evaluation was begun.

    Attributes:
        step: Its step.
        path: The checkpoint, as it was found.
        fingerprint: Its files when they were found complete; see `Look`.
        content: Hash of what was evaluated, with what it takes to load it; None as long as that is not done, or where
            it was gone by then.
        is_done: Whether every job has all its episodes.
        tries: How often it was evaluated without becoming done.
        reason: Why the last try failed; None where none did.
        schema_version: Version of the format.
    """

    step: int
    path: str
    fingerprint: str
    content: str | None = None
    is_done: bool = False
    tries: int = 0
    reason: str | None = None
    schema_version: int = SCHEMA_VERSION


def step_name(step: int) -> str:
    """Return the name of the directory of a checkpoint's run, and of its lock."""
    return f"step_{step}"


def runner_directory(run_directory: Path) -> Path:
    """Return the directory whose lock the program that evaluates a checkpoint holds from its first moment on."""
    return run_directory.parent / "watch" / run_directory.name / "runner"


class Ledger:
    """The records of one watch.

    Args:
        directory: Directory of the watch.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run_directory(self, step: int) -> Path:
        """Return the directory of a checkpoint's run."""
        return self.directory / step_name(step)

    def read(self, step: int) -> Evaluated | None:
        """Return what is known of a checkpoint, None where its evaluation was never begun.

        Raises:
            ConfigError: If the record is damaged or of a newer version.
        """
        path = self._record(step)
        return read_versioned(path, Evaluated, SCHEMA_VERSION) if path.is_file() else None

    def all(self) -> list[Evaluated]:
        """Return everything that is known, in the order of the steps; checkpoints may be gone meanwhile."""
        names = (path.parent.name for path in self.directory.glob("watch/step_*/evaluated.json"))
        records = (self.read(int(name.removeprefix("step_"))) for name in names)
        return sorted((record for record in records if record is not None), key=lambda record: record.step)

    def write(self, evaluated: Evaluated) -> None:
        """Write what is known of a checkpoint; its lock must be held."""
        write_text(self._record(evaluated.step), json_text(evaluated), overwrite=True)

    def forget_run(self, step: int) -> None:
        """Remove the run of a checkpoint that has changed since; its lock must be held."""
        with storage_errors("remove", self.run_directory(step)):
            shutil.rmtree(self.run_directory(step), ignore_errors=True)

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Hold a lock in a ``with`` block; yields whether nobody else holds it.

        Args:
            name: What it is for. If it is the name of a run's directory, the lock is not to be had either as long as
                that run goes on, though the watcher that started it may be dead.
        """
        directory = self.directory / "watch" / name
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
        with RunLock(directory) as lock:
            yield _is_free(lock) and not self._is_at_work(self.directory / name)

    def _is_at_work(self, run_directory: Path) -> bool:
        # A program that has just been started has no directory yet, and holds only what its watcher gave it.
        return any(not _is_unlocked(each) for each in (run_directory, runner_directory(run_directory)))

    def _record(self, step: int) -> Path:
        return self.directory / "watch" / step_name(step) / "evaluated.json"


def _is_unlocked(directory: Path) -> bool:
    if not directory.is_dir():
        return True
    with RunLock(directory) as lock:
        return _is_free(lock)


def _is_free(lock: RunLock) -> bool:
    """Take a lock, and return whether nobody else had it."""
    try:
        lock.hold_alone()
    except ConfigError:
        return False
    return True


# Tell with which checkpoint a training ends, by what it says of itself and by how its checkpoints are called.

_OF_RSL_RL = re.compile(r"model_\d+\.pt")
_SETTINGS_OF_OURS = Path("params", "train.yaml")
_SETTINGS_OF_LEROBOT = "train_config.json"
_STATE_OF_TRANSFORMERS = "trainer_state.json"


def last_checkpoint(found: Sequence[Checkpoint], until: int | None = None) -> Checkpoint | None:
    """Return the checkpoint after which a training writes no more, None as long as nothing says that it is there.

    rsl_rl counts iterations from 0, so that after 1,000 of them its last checkpoint is ``model_999.pt``; this package
    calls its own ``model_1000.pt``.

    Args:
        found: The checkpoints of the training in the order of their steps.
        until: The step that is waited for, which rsl_rl's last checkpoint stands for where no file says how many
            iterations there are; None if none is.
    """
    if not found:
        return None
    newest = found[-1]
    if _OF_RSL_RL.fullmatch(newest.path.name):
        is_last = _ends_rsl_rl([each.step for each in found], newest.path.parent, until)
    else:
        is_last = _ends_lerobot(newest) or _ends_transformers(newest)
    return newest if is_last else None


def _ends_rsl_rl(steps: Sequence[int], directory: Path, until: int | None) -> bool:
    settings = _document(directory / AGENT_FILE)
    iterations, interval = _count(settings, "max_iterations"), _count(settings, "save_interval")
    if (directory / _SETTINGS_OF_OURS).is_file():
        return iterations is not None and steps[-1] >= iterations
    if interval is None or iterations is None:
        return until is not None and steps[-1] + 1 == until and _is_between(steps[-1], math.gcd(*steps[:-1]))
    # A run that goes on from another one ends later, and only its last checkpoint comes between two others.
    return (steps[0] == 0 and steps[-1] + 1 >= iterations) or _is_between(steps[-1], interval)


def _is_between(step: int, interval: int) -> bool:
    """Whether a step is none of those after which a training saves as it goes; 0 for an interval that nobody knows."""
    return interval == 0 or step % interval != 0


def _ends_lerobot(newest: Checkpoint) -> bool:
    steps = _count(_document(newest.path / _SETTINGS_OF_LEROBOT), "steps")
    return steps is not None and newest.step >= steps


def _ends_transformers(newest: Checkpoint) -> bool:
    steps = _count(_document(newest.path / _STATE_OF_TRANSFORMERS), "max_steps")
    return steps is not None and newest.step >= steps


def _document(path: Path) -> Mapping[str, Any]:
    """Return what a file of a training says, nothing where there is none or it cannot be read."""
    if not path.is_file():
        return {}
    try:
        document = read_document(path, python_tags=True)
    except ConfigError:
        return {}
    return document if isinstance(document, dict) else {}


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if type(value) is int and value > 0 else None


# Promote the checkpoints of a watch that reach a bar: as they were evaluated, with what it takes to load them.

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


# The watch: find checkpoints, wait until they are complete, evaluate each once, and say what came of it.

_LONGEST_WAIT_S = 3_600.0
_TRIES_AT_END = 3


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What is watched, and how.

    Attributes:
        training: Directory of the training.
        pattern: Glob of the checkpoints below it, None for the usual names.
        every: Only steps that are multiples of this are evaluated, and the last checkpoint of a training that is over.
        until: The step with which the watch ends, or the training if that is over before; None for no end.
        poll_s: How long to wait between two looks at the directory [s].
        quiet_s: How long a checkpoint whose writer leaves no sign must have stayed as it is [s].
        retry_s: How long to wait before a failed evaluation is tried again; twice as long each time [s].
    """

    training: Path
    pattern: str | None = None
    every: int = 1
    until: int | None = None
    poll_s: float = 10.0
    quiet_s: float = 30.0
    retry_s: float = 60.0


class Verdict(StrEnum):
    """What became of one evaluation."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one evaluation, and why it failed."""

    verdict: Verdict
    reason: str | None = None


class Evaluate(Protocol):
    """Evaluates a checkpoint in a directory, or goes on there with an evaluation that was interrupted."""

    def __call__(self, checkpoint: Checkpoint, directory: Path) -> Outcome:
        """Return what became of it."""
        ...


class Pass(StrEnum):
    """What one pass over a training's checkpoints led to."""

    EVALUATED = "evaluated"
    NOTHING_TO_DO = "nothing to do"
    REACHED_END = "reached end"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass
class Watcher:
    """Evaluates the checkpoints of a training, each once, with other watchers in the same directory.

    Args:
        watched: What is watched.
        ledger: What is evaluated already; shared by all watchers of a directory.
        evaluate: Evaluates one checkpoint.
        now: The time [s].
    """

    watched: Watched
    ledger: Ledger
    evaluate: Evaluate
    now: Callable[[], float] = time.monotonic
    _readiness: Readiness = field(init=False)
    _not_before: dict[int, float] = field(init=False, default_factory=dict)
    _told: dict[int, str] = field(init=False, default_factory=dict)
    _last: Checkpoint | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._readiness = Readiness(self.watched.quiet_s, now=self.now)

    def one_pass(self) -> Pass:
        """Evaluate the first checkpoint that can be, and say what is next."""
        watched = self.watched
        found = find_checkpoints(watched.training, watched.pattern)
        self._last = last_checkpoint(found, watched.until)
        wanted = self._wanted(found)
        for checkpoint in wanted:
            if self._is_done(checkpoint):
                continue
            outcome = self._tried(checkpoint)
            if outcome is not None:
                return self._led_to(outcome.verdict)
        if self._nothing_follows(found) and all(self._is_over(checkpoint) for checkpoint in wanted):
            return Pass.REACHED_END
        return Pass.NOTHING_TO_DO

    def _led_to(self, verdict: Verdict) -> Pass:
        if verdict is Verdict.INTERRUPTED:
            return Pass.INTERRUPTED
        # One checkpoint may be damaged; where not even one was let in, the job file is wrong.
        return Pass.REFUSED if verdict is Verdict.REFUSED and not self.done() else Pass.EVALUATED

    def done(self) -> tuple[Evaluated, ...]:
        """Return the checkpoints that were evaluated, by this watcher or another, and are of what is watched."""
        return tuple(record for record in self._records() if record.is_done)

    def unfinished(self) -> tuple[Evaluated, ...]:
        """Return the checkpoints whose evaluation was begun and is not done."""
        return tuple(record for record in self._records() if not record.is_done)

    def _records(self) -> list[Evaluated]:
        return [record for record in self.ledger.all() if self._is_of_these(record.step)]

    def _is_of_these(self, step: int) -> bool:
        return step % self.watched.every == 0 or (self._last is not None and step == self._last.step)

    def _wanted(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        until = math.inf if self.watched.until is None else self.watched.until
        return [each for each in found if self._is_of_these(each.step) and each.step <= until]

    def _nothing_follows(self, found: Sequence[Checkpoint]) -> bool:
        """Whether the watch has an end, and nothing comes any more that it would wait for."""
        until = self.watched.until
        return until is not None and (self._last is not None or any(each.step >= until for each in found))

    def _is_done(self, checkpoint: Checkpoint) -> bool:
        record = self.ledger.read(checkpoint.step)
        return record is not None and record.is_done

    def _is_over(self, checkpoint: Checkpoint) -> bool:
        """Whether nothing more is expected of a checkpoint once the training has ended."""
        record = self.ledger.read(checkpoint.step)
        return record is not None and (record.is_done or record.tries >= _TRIES_AT_END)

    def _tried(self, checkpoint: Checkpoint) -> Outcome | None:
        """Evaluate a checkpoint, or return None: not complete, at work elsewhere, or not to be tried again yet."""
        step = checkpoint.step
        if self.now() < self._not_before.get(step, 0.0):
            return None
        why_not = self._readiness.why_not(checkpoint.path)
        if why_not is not None:
            self._tell(step, f"waiting for {checkpoint.path}: {why_not}")
            return None
        with self.ledger.held(step_name(step)) as is_mine:
            if not is_mine or self._is_done(checkpoint):
                return None
            return self._evaluated(checkpoint, self._readiness.fingerprint(checkpoint.path))

    def _evaluated(self, checkpoint: Checkpoint, fingerprint: str) -> Outcome:
        before = self.ledger.read(checkpoint.step)
        if before is not None and before.fingerprint != fingerprint:
            # What was evaluated of it so far belongs to other weights.
            self.ledger.forget_run(checkpoint.step)
        tries = before.tries if before is not None else 0
        record = Evaluated(step=checkpoint.step, path=str(checkpoint.path), fingerprint=fingerprint, tries=tries)
        self.ledger.write(record)
        outcome = self.evaluate(checkpoint, self.ledger.run_directory(checkpoint.step))
        if outcome.verdict is Verdict.INTERRUPTED:
            return outcome
        content, now = self._content_and_fingerprint(checkpoint.path)
        if now not in (fingerprint, ""):
            outcome = Outcome(verdict=Verdict.FAILED, reason="it changed while it was evaluated")
        if outcome.verdict is Verdict.DONE:
            self.ledger.write(replace(record, is_done=True, content=content))
            return outcome
        self.ledger.write(replace(record, tries=tries + 1, reason=outcome.reason))
        wait_s = min(self.watched.retry_s * 2**tries, _LONGEST_WAIT_S)
        self._not_before[checkpoint.step] = self.now() + wait_s
        _LOG.warning("%s failed: %s; it is tried again in %.0f s", checkpoint.path, outcome.reason, wait_s)
        return outcome

    def _content_and_fingerprint(self, path: Path) -> tuple[str | None, str]:
        """Return the content of a checkpoint, None where it is gone, and how it looked after it was read."""
        try:
            content = content_of(path)
        except StorageError:
            content = None
        self._readiness.why_not(path)
        fingerprint = self._readiness.fingerprint(path)
        return content if fingerprint else None, fingerprint

    def _tell(self, step: int, message: str) -> None:
        """Log what is waited for, once as long as it stays the same but for its numbers."""
        told = message.rpartition(":")[0]
        if self._told.get(step) != told:
            self._told[step] = told
            _LOG.info("%s", message)
