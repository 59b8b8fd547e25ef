"""Build benchmark classes of vla-eval, ``vla_eval:<module>:<Class>``, in workers of an interpreter that has them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from isaaclab_arena.config.expansion.suites import MAX_JOBS, SuiteTask
from isaaclab_arena.config.options import Count, NotNegative
from isaaclab_arena.environments.gym.builder import STEPS_OF_A_SLOW_RESET, GymBuilder, GymConfig
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean

VLA_EVAL_INSTALLATION = "pip install vla-eval==0.8.0, and what the benchmark itself needs"

_MAX_TASKS_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class VlaEvalConfig(GymConfig):
    """Options of vla-eval's benchmark classes, which say themselves what is solved.

    Attributes:
        task: Name or index of the task; may be left out where the class has one.
        tasks: How many tasks the class has, where a suite plays all of them.
        render: Where it draws, as vla-eval's option of this name; the CPU where ``MUJOCO_GL`` is ``osmesa``, else the
            GPU by default.
        new_each_episode: Whether every episode has a new object of the class, so that no episode depends on earlier
            ones; otherwise each env slot keeps one, as vla-eval does.
        action_dim: Numbers of an action, where the class does not declare it.
    """

    success_key: str | None = "success"
    steps_while_starting: NotNegative = STEPS_OF_A_SLOW_RESET
    instruction_key: str | None = "task_description"
    tell_episode: bool = True
    task: str | int | None = None
    tasks: Count | None = None
    render: Literal["gpu", "cpu"] | None = None
    new_each_episode: bool = True
    action_dim: Count | None = None

    def maker_arguments(self) -> dict[str, Any]:
        """Return the arguments of `vla_eval_benchmarks.make`."""
        own = ("task", "render", "new_each_episode", "action_dim")
        return {"arguments": self.make_kwargs, **{name: getattr(self, name) for name in own}}

    def problems_with(self, found: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the options that the class does not accept, and a task that it does not have."""
        if found["wrong_option"] is not None:
            key, message = found["wrong_option"]
            yield Problem(message, key=key)
            return
        # A class that rejects its arguments has no known tasks, so nothing else can be checked.
        tasks = found["tasks"]
        named = ", ".join(f"'{task}'" for task in tasks[:_MAX_TASKS_NAMED]) + (
            ", …" if tasks[_MAX_TASKS_NAMED:] else ""
        )
        if self.tasks is not None and self.tasks != len(tasks):
            yield Problem(f"is {self.tasks}, and the class has {len(tasks)} tasks: {named}", key="tasks")
        if self.task is None and len(tasks) != 1:
            yield Problem(f"is missing: there are {len(tasks)} tasks: {named}", key="task")
        elif isinstance(self.task, str) and self.task not in tasks:
            yield Problem(
                f"there is no task '{self.task}'{did_you_mean(self.task, tasks) or f'; there are {named}'}", key="task"
            )
        elif isinstance(self.task, int) and not 0 <= self.task < len(tasks):
            yield Problem(f"there is no task {self.task}; there are {len(tasks)}, counted from 0", key="task")


@dataclass(frozen=True, kw_only=True)
class VlaEvalBuilder(GymBuilder[VlaEvalConfig]):
    """Builds one task of a benchmark class."""

    def task_name(self, config: VlaEvalConfig) -> str:
        """Return the task's name, or that of the class with its index."""
        if config.task_description is not None or config.task is None:
            return super().task_name(config)
        return config.task if isinstance(config.task, str) else f"{super().task_name(config)}/{config.task}"

    def num_episodes(self, config: VlaEvalConfig) -> int | None:
        """Return the class's own number of episodes per task."""
        return self._find(config)["num_episodes"]


@dataclass(frozen=True, kw_only=True)
class VlaEvalSuite:
    """All tasks of a class ``module:Class``, called by index: their names are too long for job names."""

    name: str

    @property
    def words(self) -> str:
        """Description for the list of suites."""
        return f"The tasks of {self.name}, as many as the option tasks says."

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        # Only the class knows its tasks, and reading a job file must not run the program that it names. So the job
        # states the number, and its check verifies it.
        count = options.get("tasks")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_JOBS:
            message = f"says how many tasks the class has, 1 to {MAX_JOBS}; each of them becomes a job"
            raise ConfigError(Problem(message, key="tasks"))
        if options.get("task") is not None:
            raise ConfigError(Problem("names one task, and a suite plays all; leave it out", key="task"))
        environment = f"vla_eval:{self.name}"
        return [SuiteTask(label=str(each), environment=environment, options={"task": each}) for each in range(count)]


def vla_eval_suite(name: str) -> VlaEvalSuite:
    """Return the suite of ``vla_eval:<name>``."""
    return VlaEvalSuite(name=name)


def vla_eval_environment(name: str) -> VlaEvalBuilder:
    """Return the builder of ``vla_eval:<name>``."""
    return VlaEvalBuilder(
        config_class=VlaEvalConfig,
        kind="vla_eval",
        name=name,
        install_hint=f"name an interpreter with python; there {VLA_EVAL_INSTALLATION}",
        worker_install_hint=VLA_EVAL_INSTALLATION,
    )
