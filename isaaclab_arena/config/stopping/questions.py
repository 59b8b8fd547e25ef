"""Define what a job file asks of its jobs, and when they may stop because the answer is in."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Question:
    """A comparison of two jobs, or a bar that one job has to reach. Its jobs stop as soon as all theirs are answered.

    Attributes:
        name: Unique among the questions of a file.
        jobs: The new job and the old one that it is compared with, or the one job that has to reach the bar.
        max_episodes: How many episodes of each job it looks at, at most.
        alpha: The chance of a wrong answer that it may have, if it is the only question of the file.
        margin: By how much of a success rate the new job may be worse, 0 to 1; None to ask which one is better.
        at_least: The success rate that the job has to reach, 0 to 1; None in a comparison.
    """

    name: str
    jobs: tuple[str, ...]
    max_episodes: int
    alpha: float = 0.05
    margin: float | None = None
    at_least: float | None = None


def compared_groups(questions: tuple[Question, ...]) -> tuple[frozenset[str], ...]:
    """Return the sets of jobs that comparisons connect, in order of the first comparison of each.

    Args:
        questions: Comparisons and bars; a bar connects nothing.
    """
    groups: list[frozenset[str]] = []
    for question in questions:
        if len(question.jobs) > 1:
            joined = frozenset(question.jobs)
            apart = []
            for group in groups:
                if group & joined:
                    joined |= group
                else:
                    apart.append(group)
            groups = [*apart, joined]
    names = [name for question in questions for name in question.jobs]
    return tuple(sorted(groups, key=lambda group: min(map(names.index, group))))
