"""Runs on disk whose jobs are the arms of one, for tests."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.robustness import Drop, drops
from isaaclab_arena.interfaces.episode import ConditionValue
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


def write_changed_run(
    directory: Path,
    arms: Mapping[tuple[str, int], str],
    *,
    job: str = "lift",
    conditions: Mapping[str, Mapping[str, ConditionValue]] | None = None,
    turned_on: Mapping[str, Sequence[str]] | None = None,
    starts: int | None = None,
) -> Path:
    """Write a run of the arms of one job: axis and level to the outcomes of the episodes, see `commit_lines`.

    ``conditions`` and ``turned_on`` hold what episodes of an axis start from beside ``cube.x``, and the variations that
    are on in its arm; ``starts`` is how many starts each arm plays in turns, None where each episode has its own.
    """
    directory.mkdir(parents=True)
    names = {(axis, level): f"{job}-{axis}-{level}" for axis, level in arms}
    labels = {key: {"robustness": job, "axis": key[0], "level": str(key[1])} for key in arms}
    entries = [
        planned(
            names[key],
            index=index,
            num_episodes=len(outcomes),
            labels=labels[key],
            variations={f"{each}.enabled": True for each in (turned_on or {}).get(key[0], ())},
        )
        for index, (key, outcomes) in enumerate(arms.items())
    ]
    write_plan(directory, *entries)
    for key, outcomes in arms.items():
        own = (conditions or {}).get(key[0], {})
        lines = [
            dataclasses.replace(
                line, conditions={"cube.x": 0.5 + line.episode_index % (starts or len(outcomes)), **own}
            )
            for line in commit_lines(outcomes, job=names[key])
        ]
        write_lines(directory, lines)
        write_report(directory, report(names[key]))
    return directory


def drops_of(directory: Path) -> dict[tuple[str, int], Drop]:
    """Loss of success rate per axis and level of a run."""
    return {(each.axis, each.level): each for each in drops(read_run(directory).arms.values())}
