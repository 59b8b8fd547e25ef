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

# Remember in files which checkpoints of a watch are evaluated, so that watchers can share and resume them.
#
# Below the directory of the watch, ``watch/step_<n>/`` has the record of a checkpoint and a lock, and ``step_<n>/`` has
# its run. The holder of the lock evaluates; the system releases the lock if its holder dies.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The record of a checkpoint whose evaluation has begun."""

    step: int
    path: str  # as the checkpoint was found
    fingerprint: str  # of its complete files; see `Look`
    # Hash of the evaluated files and of those needed to load them; None before the end, or if they were gone by then.
    content: str | None = None
    is_done: bool = False  # whether every job has all its episodes
    tries: int = 0  # failed evaluations
    reason: str | None = None  # of the last failure
    schema_version: int = SCHEMA_VERSION


def step_name(step: int) -> str:
    """Return the name of the directory of a checkpoint's run, and of its lock."""
    return f"step_{step}"


def runner_directory(run_directory: Path) -> Path:
    """Return the directory whose lock the evaluating program holds from its start on."""
    return run_directory.parent / "watch" / run_directory.name / "runner"


class Ledger:
    """The records of one watch, below its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run_directory(self, step: int) -> Path:
        """Return the directory of a checkpoint's run."""
        return self.directory / step_name(step)

    def read(self, step: int) -> Evaluated | None:
        """Return the record of a checkpoint, None if its evaluation never began; `ConfigError` if it is damaged."""
        path = self._record(step)
        return read_versioned(path, Evaluated, SCHEMA_VERSION) if path.is_file() else None

    def all(self) -> list[Evaluated]:
        """Return all records in the order of their steps; their checkpoints may be gone."""
        names = (path.parent.name for path in self.directory.glob("watch/step_*/evaluated.json"))
        records = (self.read(int(name.removeprefix("step_"))) for name in names)
        return sorted((record for record in records if record is not None), key=lambda record: record.step)

    def write(self, evaluated: Evaluated) -> None:
        """Write the record of a checkpoint; its lock must be held."""
        write_text(self._record(evaluated.step), json_text(evaluated), overwrite=True)

    def forget_run(self, step: int) -> None:
        """Remove the run of a checkpoint that has changed since; its lock must be held."""
        with storage_errors("remove", self.run_directory(step)):
            shutil.rmtree(self.run_directory(step), ignore_errors=True)

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Hold a lock in a `with` block; yields False if another watcher or its run holds it."""
        # A run's name stays locked while that run goes on, even if the watcher that started it is dead.
        directory = self.directory / "watch" / name
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
        run = self.directory / name
        with RunLock(directory) as lock:
            # A program that has just started has no run directory yet: it holds only the lock of `runner_directory`.
            yield _is_free(lock) and all(_is_unlocked(each) for each in (run, runner_directory(run)))

    def _record(self, step: int) -> Path:
        return self.directory / "watch" / step_name(step) / "evaluated.json"


def _is_unlocked(directory: Path) -> bool:
    if not directory.is_dir():
        return True
    with RunLock(directory) as lock:
        return _is_free(lock)


def _is_free(lock: RunLock) -> bool:
    """Take a lock. True if no other process held it."""
    try:
        lock.hold_alone()
    except ConfigError:
        return False
    return True


# Find the last checkpoint of a training, by the training's own files and the names of its checkpoints.


def last_checkpoint(found: Sequence[Checkpoint], until: int | None = None) -> Checkpoint | None:
    """Return the final checkpoint of a training, None as long as no file shows that it is there."""
    # `until` is the step to wait for, None for none; it replaces rsl_rl's unknown number of iterations.
    if not found:
        return None
    newest = found[-1]
    if re.fullmatch(r"model_\d+\.pt", newest.path.name) is None:
        # LeRobot and transformers write the number of steps beside each checkpoint.
        counts = (("train_config.json", "steps"), ("trainer_state.json", "max_steps"))
        ends = (_count(_document(newest.path / name), key) for name, key in counts)
        return newest if any(end is not None and newest.step >= end for end in ends) else None

    # rsl_rl counts iterations from 0: after 1,000 of them its last checkpoint is `model_999.pt`. This package writes
    # `model_1000.pt`.
    directory, steps = newest.path.parent, [each.step for each in found]
    settings = _document(directory / AGENT_FILE)
    iterations, interval = _count(settings, "max_iterations"), _count(settings, "save_interval")
    if (directory / "params" / "train.yaml").is_file():
        is_last = iterations is not None and steps[-1] >= iterations
    elif interval is None or iterations is None:
        is_last = until is not None and steps[-1] + 1 == until and _is_between(steps[-1], math.gcd(*steps[:-1]))
    else:
        # A resumed run ends later, and only its last checkpoint is not a multiple of the save interval.
        is_last = (steps[0] == 0 and steps[-1] + 1 >= iterations) or _is_between(steps[-1], interval)
    return newest if is_last else None


def _is_between(step: int, interval: int) -> bool:
    """Whether `step` is a final checkpoint, not a multiple of the save interval. `interval` is 0 if unknown."""
    return interval == 0 or step % interval != 0


def _document(path: Path) -> Mapping[str, Any]:
    """Return the content of a training's file, empty if it is missing or unreadable."""
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


# Promote the checkpoints of a watch that reach a bar: copy what was evaluated, with the files needed to load it.

_LOG = logging.getLogger(__name__)
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """The checkpoint that was promoted last."""

    step: int
    source: str  # path where it was found
    name: str  # path for a policy, below the directory of promoted checkpoints
    success_rate: float  # mean of the jobs' rates
    success_low: float  # lower end of the interval of all episodes together
    success_high: float  # upper end
    episodes: int | None = None  # with measured success
    distinct_conditions: int | None = None  # of these episodes
    compared_with: int | None = None  # step of the previous one, None for the first
    verdict: str | None = None  # of that comparison; None if there is none
    schema_version: int = _SCHEMA_VERSION


def content_of(checkpoint: Path) -> str:
    """Return a hash of a checkpoint file or directory and of the files needed to load it."""
    hashes = {"checkpoint": content_hash(checkpoint)}
    if checkpoint.is_file():
        hashes |= {str(name): content_hash(path) for name, path in _beside(checkpoint).items()}
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()


def promote(directory: Path, score: Score, record: Evaluated, ledger: Ledger, *, jobs: Iterable[str]) -> Path | None:
    """Copy a checkpoint that reached the bar, if it beats the one before. Return the path of the copy, else None."""
    # A copy `step_<n>` is complete or absent, with `params/agent.yaml` if there is one. Beside it lie `promoted.json`
    # about the last promotion, and `comparison_<step>/` with the paired comparison with the one before.
    with storage_errors("make", directory):
        directory.mkdir(parents=True, exist_ok=True)
    told = directory / "promoted.json"
    before = read_versioned(told, Promoted, _SCHEMA_VERSION) if told.is_file() else None
    if before is not None and (before.step == score.step or before.success_rate >= score.success_rate):
        return None
    target = _copied(record, directory / f"step_{score.step}")
    if target is None:
        _LOG.warning("step %d is not promoted: %s is not what was evaluated any more", score.step, record.path)
        return None
    promoted = Promoted(
        step=score.step,
        source=record.path,
        name=target.relative_to(directory).as_posix(),
        success_rate=score.success_rate,
        success_low=score.interval.low,
        success_high=score.interval.high,
        episodes=score.scored,
        distinct_conditions=score.distinct,
    )

    # Compare with the checkpoint promoted before. A comparison that fails does not prevent the promotion.
    if before is not None:
        names = {f"{job}-{before.step}": f"{job}-{score.step}" for job in jobs}
        runs = [ledger.run_directory(before.step), ledger.run_directory(score.step)]
        question, verdict = Question(alpha=0.05, margin=None), None
        try:
            report = compare_directories(runs, question, baseline=None, names=names, partial=False)
            write_comparison(directory / f"comparison_{score.step}", report)
            verdict = str(report.verdict)
        except ArenaError as error:
            _LOG.warning("steps %d and %d cannot be compared: %s", before.step, score.step, error)
        promoted = replace(promoted, compared_with=before.step, verdict=verdict)
    write_text(told, json_text(promoted), overwrite=True)
    return target


def _copied(record: Evaluated, target: Path) -> Path | None:
    """Copy the evaluated files. Return the path that a policy loads, None if they have changed."""
    source, temporary = Path(record.path), temporary_path(target)
    name = source.name if source.is_file() else ""
    try:
        with storage_errors("copy", target):
            shutil.rmtree(temporary, ignore_errors=True)
            with suppress(FileNotFoundError):
                if source.is_dir():
                    shutil.copytree(source, temporary)
                else:
                    for place, path in {Path(source.name): source, **_beside(source)}.items():
                        (temporary / place).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(path, temporary / place)

            # Check the copy, not the source, which may change at any time. A record of an earlier version has the
            # fingerprint only.
            copy = temporary / name
            if record.content is not None:
                is_same = copy.exists() and content_of(copy) == record.content
            else:
                is_same = copy.exists() and look_at(source).fingerprint == record.fingerprint
            if not is_same:
                return None
            shutil.rmtree(target, ignore_errors=True)
            temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target / name


def _beside(file: Path) -> dict[Path, Path]:
    """Map the files needed beside a checkpoint file by their path below its directory."""
    agent, tensors = find_agent_file(file), file.with_name(f"{file.name}.data")
    found = {} if agent is None else {AGENT_FILE: agent}
    # An ONNX file may keep its tensors in a file beside it.
    return found | ({Path(tensors.name): tensors} if tensors.is_file() else {})


# The watch: find checkpoints, wait until they are complete, evaluate each once, and report the outcome.

_LONGEST_WAIT_S = 3_600.0
_TRIES_AT_END = 3


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The training to watch, and the intervals."""

    training: Path  # directory of the training
    pattern: str | None = None  # glob below it, None for the usual names
    # Evaluate only steps that are multiples of it, and the last checkpoint of a finished training.
    every: int = 1
    until: int | None = None  # step that ends the watch, unless the training ends before; None for no end
    poll_s: float = 10.0  # between two looks at the directory [s]
    quiet_s: float = 30.0  # without a change, until a checkpoint counts as complete [s]
    retry_s: float = 60.0  # before a failed evaluation is tried again; doubles each time [s]


class Verdict(StrEnum):
    """The result of one evaluation."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one evaluation, and the reason of a failure."""

    verdict: Verdict
    reason: str | None = None


class Evaluate(Protocol):
    """Evaluates a checkpoint in a directory, or resumes an evaluation there."""

    def __call__(self, checkpoint: Checkpoint, directory: Path) -> Outcome:
        """Evaluate the checkpoint and return the outcome."""
        ...


class Pass(StrEnum):
    """The result of one pass over a training's checkpoints."""

    EVALUATED = "evaluated"
    NOTHING_TO_DO = "nothing to do"
    REACHED_END = "reached end"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass
class Watcher:
    """Evaluates each checkpoint of a training once, together with other watchers of the same directory."""

    watched: Watched
    ledger: Ledger
    evaluate: Evaluate
    now: Callable[[], float] = time.monotonic  # [s]
    _readiness: Readiness = field(init=False)
    _not_before: dict[int, float] = field(init=False, default_factory=dict)  # by step: time of the next try [s]
    _told: dict[int, str] = field(init=False, default_factory=dict)
    _last: Checkpoint | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._readiness = Readiness(self.watched.quiet_s, now=self.now)

    def one_pass(self) -> Pass:
        """Evaluate the first checkpoint that is ready, and return the result of the pass."""
        found = find_checkpoints(self.watched.training, self.watched.pattern)
        self._last = last_checkpoint(found, self.watched.until)
        until = self.watched.until
        wanted = [each for each in found if self._is_of_these(each.step) and (until is None or each.step <= until)]
        for checkpoint in wanted:
            if self._is_done(checkpoint):
                continue
            # One evaluation takes long: return after it, to look for new checkpoints before the next one.
            outcome = self._tried(checkpoint)
            if outcome is None:
                continue
            if outcome.verdict is Verdict.INTERRUPTED:
                return Pass.INTERRUPTED
            # One checkpoint may be damaged; if none was ever accepted, the job file is wrong.
            return Pass.REFUSED if outcome.verdict is Verdict.REFUSED and not self.done() else Pass.EVALUATED

        # The watch ends if it has an end, the training has reached it, and no checkpoint is left to try.
        if until is None or (self._last is None and all(each.step < until for each in found)):
            return Pass.NOTHING_TO_DO
        records = (self.ledger.read(checkpoint.step) for checkpoint in wanted)
        are_over = all(each is not None and (each.is_done or each.tries >= _TRIES_AT_END) for each in records)
        return Pass.REACHED_END if are_over else Pass.NOTHING_TO_DO

    def done(self) -> tuple[Evaluated, ...]:
        """Return the records of evaluated checkpoints of this watch, whichever watcher evaluated them."""
        return tuple(record for record in self._records() if record.is_done)

    def unfinished(self) -> tuple[Evaluated, ...]:
        """Return the records of checkpoints whose evaluation has begun and is not done."""
        return tuple(record for record in self._records() if not record.is_done)

    def _records(self) -> list[Evaluated]:
        return [record for record in self.ledger.all() if self._is_of_these(record.step)]

    def _is_of_these(self, step: int) -> bool:
        return step % self.watched.every == 0 or (self._last is not None and step == self._last.step)

    def _is_done(self, checkpoint: Checkpoint) -> bool:
        record = self.ledger.read(checkpoint.step)
        return record is not None and record.is_done

    def _tried(self, checkpoint: Checkpoint) -> Outcome | None:
        """Evaluate a checkpoint. None if it is incomplete, held by another watcher, or not due for a retry."""
        step = checkpoint.step
        if self.now() < self._not_before.get(step, 0.0):
            return None
        why_not = self._readiness.why_not(checkpoint.path)
        if why_not is not None:
            # Log it once for reasons that differ in their numbers only.
            message = f"waiting for {checkpoint.path}: {why_not}"
            told = message.rpartition(":")[0]
            if self._told.get(step) != told:
                self._told[step] = told
                _LOG.info("%s", message)
            return None
        with self.ledger.held(step_name(step)) as is_mine:
            if not is_mine or self._is_done(checkpoint):
                return None
            return self._evaluated(checkpoint, self._readiness.fingerprint(checkpoint.path))

    def _evaluated(self, checkpoint: Checkpoint, fingerprint: str) -> Outcome:
        before = self.ledger.read(checkpoint.step)
        if before is not None and before.fingerprint != fingerprint:
            # The episodes so far belong to other weights.
            self.ledger.forget_run(checkpoint.step)
        tries = before.tries if before is not None else 0
        record = Evaluated(step=checkpoint.step, path=str(checkpoint.path), fingerprint=fingerprint, tries=tries)
        self.ledger.write(record)
        outcome = self.evaluate(checkpoint, self.ledger.run_directory(checkpoint.step))
        if outcome.verdict is Verdict.INTERRUPTED:
            return outcome

        # The weights may have changed during the evaluation: then its episodes do not count. The fingerprint is taken
        # after the hash, and is empty if the checkpoint is gone.
        try:
            content = content_of(checkpoint.path)
        except StorageError:
            content = None
        self._readiness.why_not(checkpoint.path)
        now = self._readiness.fingerprint(checkpoint.path)
        if not now:
            content = None
        elif now != fingerprint:
            outcome = Outcome(verdict=Verdict.FAILED, reason="it changed while it was evaluated")

        if outcome.verdict is Verdict.DONE:
            self.ledger.write(replace(record, is_done=True, content=content))
            return outcome
        self.ledger.write(replace(record, tries=tries + 1, reason=outcome.reason))
        wait_s = min(self.watched.retry_s * 2**tries, _LONGEST_WAIT_S)
        self._not_before[checkpoint.step] = self.now() + wait_s
        _LOG.warning("%s failed: %s; it is tried again in %.0f s", checkpoint.path, outcome.reason, wait_s)
        return outcome
