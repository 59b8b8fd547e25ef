"""Score the best checkpoint of a watch again, in episodes by which it was not chosen, and remember both scores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.best import Score, scores_of
from isaaclab_arena.evaluation.watching.curve.learning_curve import points_of
from isaaclab_arena.evaluation.watching.ledger import Ledger
from isaaclab_arena.evaluation.watching.other_episodes import count_alike
from isaaclab_arena.evaluation.watching.watcher import Evaluate, Outcome, Verdict
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned

_BEST = "best.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best checkpoint of a watch, and how good it is.

    Attributes:
        chosen: Its score in the episodes that it was chosen by, in which the best of many looks too good.
        fresh: Its score in other episodes.
        alike: How many of these began from initial conditions by which it was chosen, because they come from a file or
            a benchmark's fixed list.
        schema_version: Version of the format.
    """

    chosen: Score
    fresh: Score
    alike: int = 0
    schema_version: int = _SCHEMA_VERSION

    @property
    def in_words(self) -> str:
        """In which episodes it was scored again."""
        if self.alike == 0:
            return "in other episodes"
        if self.alike >= self.fresh.scored:
            return "once more, from the same initial conditions"
        return f"in other episodes, {self.alike} of them from the same initial conditions"


def fresh_run(directory: Path, step: int) -> Path:
    """Return the directory of the run of the best checkpoint's other episodes, below that of the watch."""
    return directory / f"best_step_{step}"


def best_of_watch(directory: Path, chosen: Score) -> Best | None:
    """Return both scores of the best checkpoint, None as long as it has no other one than that by which it was chosen.

    Args:
        directory: Directory of the watch.
        chosen: The score of the checkpoint that is the best now; it may have been another one when one was scored.

    Raises:
        ConfigError: If ``best.json`` is damaged or of a newer version.
    """
    path = directory / _BEST
    found = read_versioned(path, Best, _SCHEMA_VERSION) if path.is_file() else None
    return found if found is not None and found.chosen == chosen else None


def score_again(
    ledger: Ledger, chosen: Score, checkpoint: Checkpoint, evaluate_again: Evaluate, *, wait: Callable[[], None]
) -> Outcome:
    """Score the best checkpoint again and write ``best.json``, unless that was done.

    Args:
        ledger: Where the watch lies.
        chosen: Its score so far.
        checkpoint: The checkpoint.
        evaluate_again: Evaluates it in episodes by which it was not chosen.
        wait: Waits a while, as long as another watcher scores it, or a run goes on whose watcher has died.
    """
    directory = fresh_run(ledger.directory, chosen.step)
    while best_of_watch(ledger.directory, chosen) is None:
        if not checkpoint.path.exists():
            return Outcome(verdict=Verdict.FAILED, reason=f"{checkpoint.path} is gone")
        with ledger.held(directory.name) as is_mine:
            if is_mine:
                return _scored(ledger, chosen, checkpoint, directory, evaluate_again)
        wait()
    return Outcome(verdict=Verdict.DONE)


def _scored(
    ledger: Ledger, chosen: Score, checkpoint: Checkpoint, directory: Path, evaluate_again: Evaluate
) -> Outcome:
    outcome = evaluate_again(checkpoint, directory)
    if outcome.verdict is not Verdict.DONE:
        return outcome
    fresh = scores_of(points_of(directory, chosen.step)).get(chosen.step)
    if fresh is None:
        return Outcome(verdict=Verdict.FAILED, reason="of no episode is known whether it succeeded")
    alike = count_alike(directory, ledger.run_directory(chosen.step))
    write_text(ledger.directory / _BEST, json_text(Best(chosen=chosen, fresh=fresh, alike=alike)), overwrite=True)
    return outcome
