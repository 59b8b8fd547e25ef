"""Build benchmark classes of vla-eval, ``vla_eval:<module>:<Class>``, in workers of an interpreter that has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isaaclab_arena.config.options import Count
from isaaclab_arena.environments.gym.builder import GymBuilder, GymConfig
from isaaclab_arena.errors import Problem, did_you_mean

INSTALLATION = "pip install vla-eval==0.8.0, and what the benchmark itself needs"

_MAX_TASKS_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class VlaEvalConfig(GymConfig):
    """Options of vla-eval's benchmark classes, which say themselves what is solved.

    Attributes:
        task: Name or index of the task; may be left out where the class has one.
        render: Where it draws, as vla-eval's option of this name; the CPU where ``MUJOCO_GL`` is ``osmesa``, else the
            GPU by default.
        new_each_episode: Whether every episode has a new object of the class, so that no episode depends on earlier
            ones; otherwise each env slot keeps one, as vla-eval does.
        action_dim: Numbers of an action, where the class does not declare it.
    """

    success_key: str | None = "success"
    instruction_key: str | None = "task_description"
    tell_episode: bool = True
    task: str | int | None = None
    render: Literal["gpu", "cpu"] | None = None
    new_each_episode: bool = True
    action_dim: Count | None = None

    def maker_arguments(self) -> dict[str, Any]:
        """Return what `vla_eval_benchmarks.make` takes."""
        own = ("task", "render", "new_each_episode", "action_dim")
        return {"arguments": self.make_kwargs, **{name: getattr(self, name) for name in own}}

    def problems_with(self, found: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield what the class does not take, and a task that it does not have."""
        if found["wrong_option"] is not None:
            key, message = found["wrong_option"]
            yield Problem(message, key=key)
            return
        tasks = found["tasks"]
        named = ", ".join(f"'{task}'" for task in tasks[:_MAX_TASKS_NAMED]) + (
            ", …" if tasks[_MAX_TASKS_NAMED:] else ""
        )
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
        """Return the task's name, or that of the class with its index; see `TaskBuilder`."""
        if config.task_description is not None or config.task is None:
            return super().task_name(config)
        return config.task if isinstance(config.task, str) else f"{super().task_name(config)}/{config.task}"


def vla_eval_environment(name: str) -> VlaEvalBuilder:
    """Return the builder of ``vla_eval:<name>``."""
    return VlaEvalBuilder(
        config_class=VlaEvalConfig,
        kind="vla_eval",
        name=name,
        install_hint=f"name an interpreter with python; there {INSTALLATION}",
        worker_install_hint=INSTALLATION,
    )
