"""The exceptions of this package, by who can correct the cause."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

MAX_PROBLEMS_SHOWN = 20
MAX_NAME_CHARACTERS = 160
MAX_MESSAGE_CHARACTERS = 2_000
_MAX_CHOICES_SHOWN = 100
_MAX_NEAR = 3


class ArenaError(Exception):
    """An error that this package raises on purpose."""


class PolicyError(ArenaError):
    """A policy broke its contract: wrong action shape, NaN, or no action. Its author can correct it."""


class UnannouncedPictureError(ArenaError):
    """A policy or an observer looked at a picture that it had not announced."""


class PolicyLostError(ArenaError):
    """A policy that worked no longer answers, because its server or machine is gone.

    It says nothing about the episodes under way, so they end as errors. The user of the program can correct it.
    """


class EnvironmentBuildError(ArenaError):
    """An environment could not be built although its configuration was valid."""


class JobTimeoutError(ArenaError):
    """A job took longer than its ``timeout_s`` allows."""


class StorageError(ArenaError):
    """A file could not be written or read: disk full, no permission, damaged. The user can correct it."""


class DamagedFileError(StorageError):
    """A file was read, and its content is wrong. Other `StorageError`s are system trouble, which may pass."""


class DiskUnusableError(StorageError):
    """The disk, a quota or a file limit is full, or the disk is read-only. Stops a run: the next job would meet it."""


@dataclass(frozen=True)
class Problem:
    """One mistake in the user's input.

    Attributes:
        message: The mistake and the remedy, without a full stop.
        file: The file that holds the mistake.
        job: Name of the job, or its position such as ``jobs[2]`` if it has no name.
        key: Dotted path of the key inside the job or the file, or the command-line option.
    """

    message: str
    file: str | None = None
    job: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        job = f"job '{shortened(self.job)}'" if self.job else None
        key = None if self.key is None else shortened(self.key)
        where = [part for part in (self.file, job, key) if part is not None]
        return ": ".join([*where, shortened(self.message, MAX_MESSAGE_CHARACTERS)])


class ConfigError(ArenaError):
    """The user's input is wrong, and the user can correct it. Its text shows the first 20 problems and a count.

    Attributes:
        problems: Every problem, in the order of the file.
    """

    def __init__(
        self,
        problems: Sequence[Problem] | Problem | str,
        *,
        file: str | None = None,
        job: str | None = None,
        key: str | None = None,
    ) -> None:
        # A text is the message of the only problem, at ``file``, ``job`` and ``key``.
        if isinstance(problems, str):
            problems = Problem(problems, file=file, job=job, key=key)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        lines = [str(problem) for problem in self.problems[:MAX_PROBLEMS_SHOWN]]
        hidden = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, f"... and {hidden} more problems"] if hidden else lines))


def refuse(problems: Sequence[Problem]) -> None:
    """Raise `ConfigError` with all problems, if there is any."""
    if problems:
        raise ConfigError(problems)


@contextmanager
def problems_at(*, below: str | None = None, **place: str) -> Iterator[None]:
    """Place the problems of a ``with`` block: at another ``file``, ``job`` or ``key``, or with keys `below` a key."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(placed(error.problems, below=below, **place)) from error


@contextmanager
def problems_into(problems: list[Problem], *, below: str | None = None, **place: str) -> Iterator[None]:
    """Add the problems of a ``with`` block to others, placed as by `problems_at`, and go on after the block."""
    try:
        yield
    except ConfigError as error:
        problems += placed(error.problems, below=below, **place)


def placed(problems: Iterable[Problem], *, below: str | None = None, **place: str) -> list[Problem]:
    """Return problems at another place; see `problems_at`."""
    found = [replace(problem, **place) for problem in problems]
    if below is None:
        return found
    return [replace(problem, key=f"{below}.{problem.key}" if problem.key else below) for problem in found]


def shortened(text: str, most: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text for a message: unchanged, or its beginning and its length."""
    return text if len(text) <= most else f"{text[: most - 30]}... ({len(text)} characters)"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, its class name if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_SAME: tuple[tuple[str, ...], ...] = tuple(
    tuple(names.split())
    for names in (
        "num_episodes n n_episodes episodes num_trials n_trials trials num_rollouts n_rollouts rollouts",
        "nproc_per_node n np nproc num_procs num_processes num_ranks ranks num_workers workers",
        "gpu_ids gpu gpus gpu_id devices",
        "num_envs n_envs envs env_slots batch_size parallel_envs",
        "num_steps steps n_steps max_steps horizon",
        "output_dir output o out out_dir outdir save_dir log_dir results_dir",
        "checkpoint_path model_path pretrained checkpoint ckpt ckpt_path weights model policy_path load_checkpoint",
        "policy_type policy policy_name policy_class",
        "policy_config_dict policy_config policy_kwargs policy_options policy_args",
        "arena_env_args env_args env_kwargs environment_args",
        "environment env env_name env_id",
        "embodiment robot",
        "max_iterations iterations num_iterations epochs",
        "learning_rate lr",
    )
)
"""Names that other programs give to the same option or key, those of this one first."""


def nearest_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return the choices that a mistyped name may mean, at most three: by meaning, else by spelling, else by a part."""
    # A text longer than any name is near to none, and comparing it takes long.
    known = sorted(choices)
    if len(name) > MAX_NAME_CHARACTERS:
        return []
    groups = (next((each for each in group if each in known), None) for group in _SAME if name in group)
    close = [each for each in dict.fromkeys(groups) if each is not None] or difflib.get_close_matches(name, known, n=1)
    begun = [each for each in known if len(name) > 2 and each.startswith(name)]
    parts = begun or [each for each in known if len(name) > 2 and name in each]
    return close or (parts if len(parts) <= _MAX_NEAR else [])


def nearest_option(name: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean '--x'?"`` for the nearest options (no dashes), or a hint at --help."""
    near = " or ".join(f"'--{option}'" for option in nearest_names(name, options))
    return f"; did you mean {near}?" if near else "; --help lists all"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choices, or all choices if none is near."""
    return _nearest(name, frozenset(choices))


@lru_cache(maxsize=1_000)
def _nearest(name: str, choices: frozenset[str]) -> str:
    known = sorted(choices)
    if near := nearest_names(name, known):
        named = " or ".join(f"'{shortened(each)}'" for each in near)
        return f"; did you mean {named}?"
    shown = [shortened(choice) for choice in known[:_MAX_CHOICES_SHOWN]]
    more = [f"and {len(known) - len(shown)} more"] if len(known) > len(shown) else []
    return f"; known are: {', '.join([*shown, *more])}" if known else ""
