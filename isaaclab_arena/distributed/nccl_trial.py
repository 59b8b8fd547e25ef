"""Try NCCL on all ranks at once, so that all agree on whether it works.

NCCL may fail on one rank while another waits for ever or notices nothing. So each rank tries it in a thread and writes
the outcome into the store. NCCL is used only if all ranks report success.
"""

import json
import threading
import time
from collections.abc import Callable

from isaaclab_arena.distributed.ranks import Ranks

_TRIAL_LOOK_INTERVAL_S = 0.1
_TRIAL_PATIENCE_S = 3.0
"""How long a rank goes on after another one has failed [s], because its own failure may say more."""

_FAILED = "NCCL fails"
_CPP_TRACE = "Exception raised from"


def try_together(ranks: Ranks, speak: Callable[[], None], *, limit_s: float) -> str | None:
    """Use NCCL once on all ranks, and return the outcome, which is the same on every rank.

    Args:
        ranks: All of them.
        speak: Opens the process group and uses it; may raise or never return. It runs in a thread, which is abandoned
            if it does not return.
        limit_s: How long it may take [s].

    Returns:
        None if it worked on all ranks; otherwise which rank failed, with NCCL's own last line, the same on all of them.

    Raises:
        DistributedError: If a rank does not report its outcome.
        PeerStoppedError: If another rank has given up.
    """
    trial = _Trial(speak)
    is_own, failure = _outcome(trial, ranks, limit_s)
    if failure is not None:
        ranks.announce(_FAILED)
    said = [json.loads(text) for text in ranks.gather("NCCL", json.dumps([is_own, failure]))]
    failures = [(rank, own, words) for rank, (own, words) in enumerate(said) if words is not None]
    if not failures:
        return None
    # NCCL's own message says more than a rank's time-out.
    rank, _, words = min(failures, key=lambda each: (not each[1], each[0]))
    return f"rank {rank}: {words}"


def last_line(error: BaseException) -> str:
    """Return NCCL's own last line from torch's error message."""
    text = str(error).partition(_CPP_TRACE)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class _Trial(threading.Thread):
    def __init__(self, speak: Callable[[], None]) -> None:
        super().__init__(name="nccl-trial", daemon=True)
        self._speak = speak
        self.error: str | None = None
        self.start()

    def run(self) -> None:
        try:
            self._speak()
        except (RuntimeError, ValueError, OSError) as error:
            self.error = last_line(error)


def _outcome(trial: _Trial, ranks: Ranks, limit_s: float) -> tuple[bool, str | None]:
    """Return whether this rank itself failed, and its failure, None for none."""
    deadline = time.monotonic() + limit_s
    has_heard = False
    while trial.is_alive():
        if time.monotonic() >= deadline:
            return not has_heard, "waits for a rank that failed" if has_heard else f"no answer within {limit_s:g} s"
        if not has_heard and ranks.is_announced(_FAILED):
            has_heard, deadline = True, min(deadline, time.monotonic() + _TRIAL_PATIENCE_S)
        trial.join(_TRIAL_LOOK_INTERVAL_S)
    return True, trial.error
