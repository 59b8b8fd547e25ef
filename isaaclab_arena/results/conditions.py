"""Define which episodes started from the same conditions. Every figure that counts them asks here. Loads nothing."""

from collections import Counter
from collections.abc import Hashable, Sequence

from isaaclab_arena.interfaces.episode import SEED_CONDITION
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.commits import CommitLine

_NO_CONDITIONS = "{}"
_NUMBER, _SEED = "seed ", f'{{"{SEED_CONDITION}":'


def condition_key(environment: str, asset: str | None, told: str, episode_seed: int, start: int | None = None) -> str:
    """Return what an episode started from, as text that is equal for equal conditions.

    Args:
        environment: Name of the environment. Equal positions in another one are other conditions.
        asset: The object in it that the job names, None where it names none.
        told: The conditions that were applied, as `json_line` writes them.
        episode_seed: What stands for them where an environment tells none.
        start: The start that the episode shares with others although their seeds differ, see `alike_starts`.
    """
    if start is not None:
        told = f"start {start}"
    elif told == _NO_CONDITIONS:
        told = f"{_NUMBER}{episode_seed}"
    return f"{environment} {asset or ''}\t{told}"


def draw_of(key: str) -> str:
    """Return what was drawn for an episode, by its `condition_key`: a seed is the same draw in every environment.

    Tasks of a suite that get the same seeds may succeed and fail together, because all that is random in them, and in
    the policy, begins with equal numbers.
    """
    told = key.partition("\t")[2]
    return told if told.startswith((_NUMBER, _SEED)) else key


def alike_starts(lines: Sequence[CommitLine]) -> list[int | None]:
    """Return the start that episodes of a job share although their seeds differ, None for all other episodes.

    A seed need not change anything. Episodes with equal first observations are one episode if all of them also went
    alike. If any went otherwise, something random came after the start, and each counts.
    """
    count = Counter(line.start for line in lines if line.start is not None)
    went: dict[int, set[Hashable]] = {start: set() for start, number in count.items() if number > 1}
    for line in lines:
        if line.start in went:
            went[line.start].add(how_it_went(line))
    shared = {start for start, found in went.items() if len(found) == 1}
    return [line.start if line.start in shared else None for line in lines]


def how_it_went(line: CommitLine) -> Hashable:
    """Return what is equal for episodes that went alike, as far as their lines tell."""
    result = (line.outcome, line.success, line.episode_length, line.episode_return, line.termination, line.checksum)
    return *result, line.language_instruction, json_line(line.metrics)
