"""One job with a ``suite`` becomes one job per task of that suite."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from isaaclab_arena.config.expansion.sweeps import MAX_JOBS
from isaaclab_arena.config.options import shown
from isaaclab_arena.config.schema import SuiteMember, name_problem
from isaaclab_arena.errors import ConfigError, Problem, problems_at
from isaaclab_arena.registry import Registry


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """A task of a suite.

    Attributes:
        label: The suffix of its job's name: short, and unique in the suite.
        environment: Name of its environment, as ``arena_env_args.environment`` gives it.
        options: The task's own keys of ``arena_env_args``.
    """

    label: str
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Suite(Protocol):
    """A registered suite, which lists the tasks of a benchmark."""

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks in order: at least one, and the same for the same options.

        It simulates nothing and starts no other interpreter, because every rank calls it.

        Args:
            options: ``arena_env_args`` of the job, not checked yet, such as the path of a checkout that has the list.

        Raises:
            ConfigError: With ``key`` set to the option at fault, or to ``suite``.
        """
        ...


def expand_suite(
    job: Mapping[str, Any], suites: Registry, *, room: int
) -> Iterator[tuple[dict[str, Any], SuiteMember | None]]:
    """Yield one job per task, with its part in the suite; the job itself if it has none. ConfigError."""
    # A task's job is named ``<name>-<label>`` and shares all else with the other jobs of its suite. ``room`` limits the
    # number of jobs.
    plain = {key: value for key, value in job.items() if key != "suite"}
    if job.get("suite") is None:
        yield plain, None
        return
    options = plain.get("arena_env_args") or {}
    if not isinstance(options, dict):
        raise ConfigError(f"{shown(options)} is not a mapping", key="arena_env_args")
    tasks = _tasks(job["suite"], options, suites)
    if len(tasks) > room:
        raise ConfigError(f"makes {len(tasks)} jobs, and a file may have {MAX_JOBS} in all", key="suite")
    name = job.get("name")
    names = [f"{name}-{task.label}" if isinstance(name, str) else name for task in tasks]
    wrong = next((problem for each in names if isinstance(each, str) and (problem := name_problem(each))), None)
    if wrong is not None:
        raise ConfigError(f"with a task behind it, {wrong}", key="name")
    for own_name, task in zip(names, tasks, strict=True):
        environment = {**deepcopy(options), **task.options, "environment": task.environment}
        member = SuiteMember(name=str(name), suite=job["suite"], task=task.label)
        yield {**deepcopy(plain), "name": own_name, "arena_env_args": environment}, member


def _tasks(name: Any, options: Mapping[str, Any], suites: Registry) -> Sequence[SuiteTask]:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{shown(name)} is not the name of a suite", key="suite")
    if options.get("environment") is not None:
        message = "gives every job its environment; leave out either this or arena_env_args.environment"
        raise ConfigError(message, key="suite")
    with problems_at(key="suite"):
        suite = suites.get(name)
    if not isinstance(suite, Suite):
        raise ConfigError(f"'{name}' is registered as a {type(suite).__name__}, which lists no tasks", key="suite")
    try:
        tasks = suite.tasks(options)
    except ConfigError as error:
        problems = []
        for each in error.problems:
            key = "arena_env_args" if each.key is None else f"arena_env_args.{each.key}"
            problems.append(Problem(each.message, key="suite" if each.key == "suite" else key))
        raise ConfigError(problems) from error
    # Labels become parts of job names, so they must be unique.
    labels = [task.label for task in tasks]
    if not tasks or len(set(labels)) < len(labels):
        raise ConfigError(f"'{name}' lists {'a task twice' if tasks else 'no task'}", key="suite")
    return tasks
