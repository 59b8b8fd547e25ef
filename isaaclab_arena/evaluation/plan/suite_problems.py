"""Tells once what is wrong with many tasks of a suite, because it is one mistake."""

from collections.abc import Sequence
from dataclasses import replace

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import Problem


def told_once(found: Sequence[tuple[JobConfig, Problem]]) -> list[Problem]:
    """Return problems in their order; of those that tasks of a suite share the first, with how many others have it.

    Args:
        found: Each problem with its job. Messages are the same if they differ in the name of the task alone.
    """
    groups: dict[object, list[tuple[JobConfig, Problem]]] = {}
    for position, (job, problem) in enumerate(found):
        groups.setdefault(position if job.suite is None else _mistake(job, problem), []).append((job, problem))
    return [_told(group) for group in groups.values()]


def _mistake(job: JobConfig, problem: Problem) -> tuple[object, ...]:
    entry = None if job.suite is None else job.suite.name
    return entry, problem.key, problem.message.replace(job.environment.partition(":")[2] or job.environment, "")


def _told(group: Sequence[tuple[JobConfig, Problem]]) -> Problem:
    job, problem = group[0]
    others = len({each.name for each, _ in group}) - 1
    if not others or job.suite is None:
        return problem
    tasks = "another task" if others == 1 else f"{others} other tasks"
    return replace(problem, message=f"{problem.message} (and so for {tasks} of suite '{job.suite.suite}')")
