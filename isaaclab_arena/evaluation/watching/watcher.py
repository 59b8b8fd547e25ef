"""The watch: find checkpoints, wait until they are complete, evaluate each once, and say what came of it."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from isaaclab_arena.checkpoints import Checkpoint, Readiness, find_checkpoints
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.watching.ledger import Evaluated, Ledger, step_name
from isaaclab_arena.evaluation.watching.promotion import content_of
from isaaclab_arena.evaluation.watching.training_end import last_checkpoint

_LOG = logging.getLogger(__name__)
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
