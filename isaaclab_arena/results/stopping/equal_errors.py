"""Jobs that fail by their errors: every episode is one, or many in a row are the same. Pure functions."""

import re
from collections import Counter
from collections.abc import Iterable

from isaaclab_arena.interfaces.episode import POLICY_LOST, Outcome
from isaaclab_arena.storage.run.commits import CommitLine


def error_streak(lines: Iterable[CommitLine], most: int) -> str | None:
    """Return why a job ends early: a number of episodes in a row, by index, ended in the same error.

    Which ranks played them, and in which order they ended, makes no difference.

    Args:
        lines: The finished episodes of the job, by index.
        most: How many episodes in a row; 0 for no such end.

    Returns:
        The reason with the error, None if there is no such row.
    """
    length, last = 0, (-2, "")
    for line in lines if most > 0 else ():
        # One that lost its policy did not do so by itself: all env slots did, and the job has failed for that.
        if line.outcome is not Outcome.ERROR or line.termination == POLICY_LOST:
            length = 0
            continue
        kind = _kind(line)
        goes_on = length > 0 and last == (line.episode_index - 1, kind)
        length, last = length + 1 if goes_on else 1, (line.episode_index, kind)
        if length == most:
            return f"{most} episodes in a row ended in the same error: {line.error or line.termination}"
    return None


def nothing_but_errors(lines: Iterable[CommitLine]) -> str | None:
    """Return why a job fails of which every episode is an error, with the commonest one; None if one is not."""
    errors = list(lines)
    if not errors or any(line.outcome is not Outcome.ERROR for line in errors):
        return None
    kinds = Counter(map(_kind, errors))
    kind, number = kinds.most_common(1)[0]
    first = next(line for line in errors if _kind(line) == kind)
    every = "its only episode" if len(errors) == 1 else f"all {len(errors)} episodes"
    most = "" if len(kinds) == 1 else f", {number} of them in this one"
    return f"{every} ended in an error{most}: {first.error or first.termination}"


def _kind(line: CommitLine) -> str:
    """Return an error without numbers: times, addresses and indices differ where the cause is the same."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", line.error or line.termination)
