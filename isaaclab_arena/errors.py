"""The exceptions of this package, named after who can mend them."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class ArenaError(Exception):
    """Anything this package raises on purpose."""


class PolicyError(ArenaError):
    """A policy broke its contract: wrong action shape, NaN, or nothing to say. Its author can mend it."""


class PolicyLostError(ArenaError):
    """A policy that worked answers no more, because what it runs on is gone: a server, a machine.

    It says nothing of the episodes under way, so they end as errors. Who runs the program can mend it.
    """


class EnvironmentBuildError(ArenaError):
    """An environment could not be built although its configuration was valid."""


class JobTimeoutError(ArenaError):
    """A job took longer than its ``timeout_s`` allows."""


class StorageError(ArenaError):
    """A file could not be written or read: disk full, no permission, damaged. Who runs the program can mend it."""


class DiskUnusableError(StorageError):
    """Nothing more can be written: the disk or a quota is full, or the disk has become read-only.

    It stops a run, because the next job would meet it too.
    """


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what the user asked for.

    Attributes:
        message: What is wrong and the way out, without a full stop.
        file: The file that holds the mistake.
        job: Name of the job, or its position such as ``jobs[2]`` where it has no name.
        key: Dotted path of the key inside the job or the file, or the command-line option.
    """

    message: str
    file: str | None = None
    job: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        where = [part for part in (self.file, f"job '{self.job}'" if self.job else None, self.key) if part is not None]
        return ": ".join([*where, self.message])


class ConfigError(ArenaError):
    """What the user asked for cannot be done; the user can mend it.

    Attributes:
        problems: Every problem that was found, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or the choices where none is near.

    Args:
        name: What the user wrote.
        choices: What would have been accepted.
    """
    known = sorted(set(choices))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known are: {', '.join(known)}" if known else ""
