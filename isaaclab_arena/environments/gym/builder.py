"""Environments made elsewhere, by their ids: of Gymnasium's registry, Meta-World, robosuite and vla-eval."""

import functools
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch

from isaaclab_arena import workers
from isaaclab_arena.config.expansion.suites import MAX_JOBS, SuiteTask
from isaaclab_arena.config.options import ContentSources, Count, NotNegative
from isaaclab_arena.distributed.devices import VARIABLE, choose_opengl, draw_on
from isaaclab_arena.environments.gym.env_slots import ANSWERS, EnvSlots, SlotReset, SlotSource, ThisProcess
from isaaclab_arena.environments.gym.environment import INDEX_CONDITION, GymConfig, GymEnvironment
from isaaclab_arena.environments.gym.model_variations import PICTURES_ONLY, model_variations
from isaaclab_arena.environments.gym.worker.answers import source_of
from isaaclab_arena.errors import (
    ArenaError,
    ConfigError,
    EnvironmentBuildError,
    Problem,
    did_you_mean,
    first_line,
    refuse,
)
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Variation
from isaaclab_arena.interfaces.episode import SEED_CONDITION, Conditions

STEPS_OF_A_SLOW_RESET = 8
"""The time of a reset in simulators with large scenes, in control steps with pictures: 1.0 to 1.3 s of 0.13 s each."""

ROBOSUITE_INSTALLATION = "pip install robosuite==1.5.2 mujoco==3.3.2 gymnasium"
VLA_EVAL_INSTALLATION = "pip install vla-eval==0.8.0, and what the benchmark itself needs"

_LOG = logging.getLogger(__name__)
_MAX_TASKS_NAMED = 12


_Config = TypeVar("_Config", bound=GymConfig)


@dataclass(frozen=True, kw_only=True)
class MetaWorldConfig(GymConfig):
    """Options of Meta-World's tasks, which state their success in ``info``, and declare their goals to be 0."""

    success_key: str | None = "success"
    out_of_range: Literal["error", "keep"] = "keep"


@dataclass(frozen=True, kw_only=True)
class GymBuilder(EnvironmentBuilder, Generic[_Config]):
    """Builds one environment from another package, by its id."""

    name: str = field(kw_only=False)  # the environment's name in its source
    config_class: type[_Config]
    environment_class: type[GymEnvironment] = GymEnvironment
    kind: str  # key of `worker.answers.SOURCES`
    words: str | None = None  # description in the list of environments
    install_hint: str  # advice if its package is missing
    worker_install_hint: str | None = None  # the same for another interpreter; None: install_hint
    # True if its closed environments leave nothing in a process that would change the behaviour of the next ones.
    leaves_nothing: bool = False
    variations_take_time: bool = True
    draw_on: Callable[[torch.device], None] = draw_on  # lets workers draw on a device's GPU

    def paying_num_envs(self, config: _Config, *, num_threads: int) -> int:
        """Return as many as keep all cores busy: each worker process makes its steps on one."""
        if config.python is None:
            return 1
        paying = num_threads * config.envs_per_worker
        reason = f"{config.envs_per_worker} for each core of a rank, because a worker makes its steps on one"
        _say_once(f"num_envs auto: up to {paying}, {reason}")
        return paying

    def check(self, config: _Config) -> None:
        """Raise ConfigError, with every problem, for an unknown environment or contradictory options."""
        refuse(list(_contradictions(config)))
        hint = self.install_hint
        if config.python is not None:
            hint = f"for {config.python}: {self.worker_install_hint or hint}"
        try:
            found = self._find(config)
        except LookupError as error:
            raise ConfigError(str(error), key="environment") from error
        except (ImportError, workers.WorkerError) as error:
            # The way out is the library that OpenGL lacks, else the packages.
            if isinstance(error, workers.WorkerError):
                hint = f"name a Python that has the packages of '{self.kind}:'"
            if choose_opengl(torch.device("cpu"), config.environment_variables).lacks_library:
                hint = f"{VARIABLE}=osmesa needs the library OSMesa: install libosmesa6, or set {VARIABLE} to egl"
            if isinstance(error, workers.WorkerError):
                raise ConfigError(f"'{config.python}' cannot be used: {error}\n{hint}", key="python") from error
            message = f"'{self.name}' cannot be imported: {error}; {hint}"
            raise ConfigError(message, key="environment") from error
        if found["max_episode_length"] is None and config.max_episode_length is None:
            raise ConfigError(f"is missing: '{self.name}' has no limit of its own", key="max_episode_length")
        refuse(list(config.problems_with(found)))

    def foreign_code(self, config: _Config) -> list[Problem]:
        """Return a problem for each option that loads code which no installed package has announced."""
        problems = []
        module, colon, _ = self.name.rpartition(":")
        if colon:
            problems.append(Problem(f"'{self.kind}:{self.name}' imports the module '{module}'", key="environment"))
        if config.python is not None:
            problems.append(Problem(f"'{config.python}' is a program that would be run", key="python"))
        return problems

    def content_sources(self, config: _Config) -> ContentSources:
        """Return the packages and files that determine the environment's behaviour."""
        found = self._find(config)
        if config.python is None:
            return ContentSources(modules=found["modules"])
        # Another interpreter's packages are known by their versions, and the user's own module by its file.
        files: dict[str, Path] = {}
        stated: dict[str, str] = {}
        for name, origin in found["origins"].items():
            if origin["versions"] is not None:
                stated[f"package {name.partition('.')[0]} of {config.python}"] = origin["versions"]
            elif origin["file"] is not None:
                files[f"module {name}"] = Path(origin["file"])
        return ContentSources(files=files, stated=stated)

    def task_name(self, config: _Config) -> str:
        """Return the instruction for policies."""
        return config.task_description or self.name.rpartition(":")[2].rpartition("/")[2]

    def variations(self, config: _Config) -> tuple[Variation, ...]:
        """Return the variations of its MuJoCo model, if it has one; ConfigError if no environment can be made."""
        # Its facts are those of a model, so one is made, without pictures. Robustness asks again for each axis.
        question = self._source(replace(config, enable_cameras=False)).request("variations")
        asked = config.python, *sorted(config.environment_variables.items()), json.dumps(question, sort_keys=True)
        if asked not in workers.REMEMBERED:
            try:
                found = self._answer(config, question)
            except Exception as error:  # in this process an environment may raise anything
                message = f"'{self.name}' cannot be made, so nothing in it can vary: {first_line(error)}"
                raise ConfigError(message, key="variations") from error
            workers.REMEMBERED[asked] = tuple(model_variations(found["variations"]))
        return workers.REMEMBERED[asked]

    def build(
        self,
        config: _Config,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: tuple[Variation, ...] = (),
    ) -> GymEnvironment:
        """Build the environment, EnvironmentBuildError if it cannot be made or used; see `EnvironmentBuilder`."""
        del num_threads
        if config.steps_per_message != 1:
            _say_once(f"steps_per_message {config.steps_per_message} has no effect; leave it out of new job files")
        device = torch.device(device)
        # Before any import of a renderer: workers read these variables at their start, as does this process.
        self.draw_on(device)
        opengl = choose_opengl(device, config.environment_variables)
        # Workers use the chosen renderer, unless the job sets it.
        variables = {**opengl.variables, **config.environment_variables}
        options = replace(config, environment_variables=variables)
        try:
            slots = EnvSlots(self._source(options), num_envs, None if config.python is None else options)
        except Exception as error:
            if config.python is not None:
                raise
            # In this process an environment may raise anything.
            message = f"'{self.name}' cannot be made: {type(error).__name__}: {error}"
            raise EnvironmentBuildError(message) from error

        try:
            described = slots.description
            control_dt = config.control_dt or self._control_dt(described["rates"])
            task_name, facts = self._known_as(config)
            has_pictures = described["renders"] or any(term["image"] for term in described["observation"].values())
            if config.python is not None and has_pictures and "mujoco" in described["versions"].get("engine", ""):
                drawn_with = described.get("opengl") or opengl.name
                reason = opengl.reason if drawn_with == opengl.name else "the environment has set it"
                _say_once(f"workers draw with {VARIABLE}={drawn_with}: {reason}")
                drawing = {"MUJOCO_GL": drawn_with, "renderer": described.get("renderer")}
                facts = {**{name: value for name, value in drawing.items() if value is not None}, **facts}
            environment = self.environment_class(
                slots,
                config,
                device,
                control_dt=control_dt,
                task_name=task_name,
                task_description=self.task_name(config),
                facts={"environment": f"{self.kind}:{self.name}", **described["versions"], **facts},
                variations=variations,
            )

            # The environment has to repeat its episodes with these options.
            reset = environment.slot_reset(self._seeding_trial(config))
            shown = _shown(slots, reset, num_steps=0) if config.seeded else []
            if config.seeded and not _same(shown, _shown(slots, reset, num_steps=0)):
                raise EnvironmentBuildError(
                    f"'{self.name}' starts differently from the same seed, so its episodes cannot be repeated; "
                    "set seeded to false to run it all the same"
                )
            # A changed model is shown by the environment's own observation of a state. That has to be its reset's.
            if variations and config.seeded and not _same(shown, _shown(slots, {**reset, "changes": {}}, num_steps=0)):
                message = "observes its start otherwise than in its reset, so no change of its model can be shown"
                raise EnvironmentBuildError(f"'{self.name}' {message}; leave out '{variations[0].key}'")
            unseen = [each.key for each in variations if each.name in PICTURES_ONLY and not environment.filmable]
            if unseen:
                raise EnvironmentBuildError(f"variation '{unseen[0]}' changes pictures, and '{self.name}' shows none")
            if config.envs_per_worker > 1 and slots.num_envs > 1:
                # An environment may behave differently beside another in its process. It may also do so in its first
                # steps alone, which may import what it draws from; so a difference counts if it comes again.
                def is_moved_by_another() -> bool:
                    alone = _shown(slots, reset, num_steps=4)
                    slots.reset({1: {**reset, "seed": reset["seed"] // 2}}, seen=[])
                    return not _same(alone, _shown(slots, reset, num_steps=4, beside=1))

                if is_moved_by_another() and is_moved_by_another():
                    message = "moves differently beside another environment in its process; set envs_per_worker to 1"
                    raise EnvironmentBuildError(f"'{self.name}' {message}")
        except ArenaError:
            slots.close()
            raise
        return environment

    def _known_as(self, config: _Config) -> tuple[str, Mapping[str, str]]:
        """Return the task's own name, and more of the environment's identity than its packages."""
        del config
        return self.name.rpartition(":")[2].rpartition("/")[2], {}

    def _seeding_trial(self, config: _Config) -> Conditions:
        """Return the conditions of an episode that has to start identically twice."""
        return {SEED_CONDITION: 2**config.seed_bits - 1, INDEX_CONDITION: 0}

    def _find(self, config: _Config) -> Mapping[str, Any]:
        """Return the source's facts of the environment; a worker's errors become those of a local call."""
        if config.python is None:
            return source_of(self.kind).find(self.name, dict(self._source(config).make_kwargs))
        try:
            return self._answer(config, self._source(config).request("find"))
        except workers.RequestError as error:
            raise error.as_here or workers.WorkerError(str(error)) from error

    def _answer(self, config: _Config, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer of this process, or of a kept worker."""
        if config.python is None:
            with closing(ThisProcess()) as here:
                here.send(question)
                return here.receive(config.start_timeout_s)[0]
        # The variables are those of a rank on the CPU, whose first worker this one can become.
        opengl = choose_opengl(torch.device("cpu"), config.environment_variables)
        variables = {**opengl.variables, **config.environment_variables}
        return workers.ask_kept_worker(ANSWERS, config.interpreter, variables, question, config.start_timeout_s)[0]

    def _source(self, config: _Config) -> SlotSource:
        success_keys = () if config.success_key is None else (config.success_key,)
        return SlotSource(
            kind=self.kind,
            name=self.name,
            make_kwargs=config.maker_arguments(),
            max_episode_length=config.max_episode_length,
            info_keys=(*success_keys, *config.metric_keys),
            instruction_key=config.instruction_key,
            checks_ranges=config.out_of_range == "error",
            code=self.kind if self.leaves_nothing else None,
        )

    def _control_dt(self, rates: Mapping[str, float]) -> float:
        """Return the time between two control steps [s]; EnvironmentBuildError for two different statements."""
        # ``dt`` is a control step in some packages and a simulator step in others. So it counts only without another
        # statement, or as the exact form of the whole number ``render_fps``.
        seconds = {name: each if name in ("control_timestep", "dt") else 1.0 / each for name, each in rates.items()}
        if seconds.keys() - {"dt", "render_fps"}:
            seconds.pop("dt", None)
        for one, other in itertools.combinations(seconds, 2):
            rates_hz = 1.0 / seconds[one], 1.0 / seconds[other]
            most_apart_hz = max(0.01 * max(rates_hz), 0.5 if "render_fps" in (one, other) else 0.0)
            if abs(rates_hz[0] - rates_hz[1]) > most_apart_hz:
                where = ["metadata['render_fps']" if name == "render_fps" else name for name in (one, other)]
                raise EnvironmentBuildError(
                    f"'{self.name}' says {rates_hz[0]:g} control steps per second with {where[0]}, and "
                    f"{rates_hz[1]:g} with {where[1]}; give control_dt, the seconds between two of them"
                )
        if not seconds:
            _say_once(
                f"'{self.name}' does not say how long a control step takes: 1 s is taken; control_dt gives another",
                logging.WARNING,
            )
        elif [*seconds] == ["dt"]:
            _say_once(
                f"'{self.name}' says dt = {rates['dt']:g} s alone: that is taken for a control step, but may be a "
                "step of its simulator; control_dt gives another",
                logging.WARNING,
            )
        exact_first = ("control_timestep", "control_hz", "control_freq", "dt", "render_fps")
        return next((seconds[name] for name in exact_first if name in seconds), 1.0)


@dataclass(frozen=True, kw_only=True)
class RobosuiteConfig(GymConfig):
    """Options of robosuite's tasks, which state their success.

    Attributes:
        robots: Names of the robots; a Panda by default, and two in tasks for two arms.
        cameras: What is observed as pictures where ``enable_cameras`` is true.
        camera_size: Height and width of these pictures [pixels].
    """

    success_key: str | None = "success"
    steps_while_starting: NotNegative = STEPS_OF_A_SLOW_RESET
    robots: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")
    camera_size: Count = 84

    def maker_arguments(self) -> dict[str, Any]:
        """Return the arguments of `gymnasium_tasks.Robosuite.make`; no cameras without ``enable_cameras``."""
        cameras = list(self.cameras) if self.enable_cameras else []
        return {**self.make_kwargs, "robots": list(self.robots), "cameras": cameras, "camera_size": self.camera_size}

    def problems_with(self, found: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the robots that robosuite does not have."""
        for robot in self.robots:
            if robot not in found["robots"]:
                hint = did_you_mean(robot, found["robots"])
                yield Problem(f"robosuite has no robot '{robot}'{hint}", key="robots")


@dataclass(frozen=True, kw_only=True)
class VlaEvalConfig(GymConfig):
    """Options of vla-eval's benchmark classes, which state their success.

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
    """Builds one task of a benchmark class, which has no way to observe a changed model."""

    variations_take_time: bool = False

    def variations(self, config: VlaEvalConfig) -> tuple[Variation, ...]:
        """Return nothing."""
        del config
        return ()

    def task_name(self, config: VlaEvalConfig) -> str:
        """Return the task's name, or that of the class with its index."""
        if config.task_description is not None or config.task is None:
            return super().task_name(config)
        return config.task if isinstance(config.task, str) else f"{super().task_name(config)}/{config.task}"

    def num_episodes(self, config: VlaEvalConfig) -> int | None:
        """Return the class's own number of episodes per task."""
        return self._find(config)["num_episodes"]


@dataclass(frozen=True)
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
            raise ConfigError(message, key="tasks")
        if options.get("task") is not None:
            raise ConfigError("names one task, and a suite plays all; leave it out", key="task")
        environment = f"vla_eval:{self.name}"
        return [SuiteTask(label=str(each), environment=environment, options={"task": each}) for each in range(count)]


_BY_ID = "Environments made elsewhere: ``gym:<id>`` of Gymnasium's registry and ``metaworld:<task>``, by their ids."

gymnasium_environment = functools.partial(
    GymBuilder,
    config_class=GymConfig,
    kind="gym",
    words=_BY_ID,
    install_hint="install the package that has it (gymnasium[mujoco] for Gymnasium's own MuJoCo environments)",
)
"""Builder of ``gym:<name>``."""

# Meta-World needs packaging without declaring it. Its own MuJoCo differs from this process's.
meta_world_environment = functools.partial(
    GymBuilder,
    config_class=MetaWorldConfig,
    kind="metaworld",
    words=_BY_ID,
    install_hint="pip install imageio packaging && pip install --no-deps metaworld==3.1.1",
    worker_install_hint="pip install metaworld==3.1.1 packaging",
    leaves_nothing=True,
)
"""Builder of ``metaworld:<name>``."""

robosuite_environment = functools.partial(
    GymBuilder,
    config_class=RobosuiteConfig,
    kind="robosuite",
    words="Build the tasks of robosuite, ``robosuite:<task>``, in workers of an interpreter that has it.",
    install_hint=f"robosuite needs an older MuJoCo, so name an interpreter with python; there {ROBOSUITE_INSTALLATION}",
    worker_install_hint=ROBOSUITE_INSTALLATION,
    leaves_nothing=True,
)
"""Builder of ``robosuite:<name>``."""

vla_eval_environment = functools.partial(
    VlaEvalBuilder,
    config_class=VlaEvalConfig,
    kind="vla_eval",
    words="Build benchmark classes of vla-eval, ``vla_eval:<module>:<Class>``, in workers of an interpreter "
    "that has them.",
    install_hint=f"name an interpreter with python; there {VLA_EVAL_INSTALLATION}",
    worker_install_hint=VLA_EVAL_INSTALLATION,
)
"""Builder of ``vla_eval:<name>``."""


def _shown(slots: EnvSlots, reset: SlotReset, *, num_steps: int, beside: int | None = None) -> list[dict[str, Any]]:
    """Return env slot 0's observations of the first steps, while env slot ``beside`` (None: none) steps too."""
    slots.reset({0: reset}, seen=[0])
    low, high = (
        np.nan_to_num(slots.description[f"action_{side}"], posinf=1.0, neginf=-1.0) for side in ("low", "high")
    )
    # An action off the middle of its range, so that the environment moves.
    action = (0.25 * np.asarray(low) + 0.75 * np.asarray(high)).astype(np.float32)
    moving = [0] if beside is None else [0, beside]
    shown = []
    for number in range(num_steps + 1):
        if number > 0:
            steps = slots.step(np.tile(action, (slots.num_envs, 1)), moving, seen=[0])
            over = steps.terminated | steps.truncated
            moving = [index for index in moving if index not in steps.failures and not over[index]]
            if 0 not in moving:
                break
        numbers = {name: values[0] for name, values in slots.numbers.items()}
        shown.append({name: value.copy() for name, value in {**numbers, **slots.pictures(0)}.items()})
    return shown


def _same(shown: Sequence[Mapping[str, np.ndarray]], again: Sequence[Mapping[str, np.ndarray]]) -> bool:
    return len(shown) == len(again) and all(
        np.array_equal(first[name], other[name], equal_nan=True)
        for first, other in zip(shown, again, strict=True)
        for name in first
    )


@functools.cache
def _say_once(line: str, level: int = logging.INFO) -> None:
    _LOG.log(level, "%s", line)


def _contradictions(config: GymConfig) -> Iterator[Problem]:
    if config.success_key is not None and config.success_reward_threshold is not None:
        yield Problem("give either this or success_key", key="success_reward_threshold")
    if config.python is not None and shutil.which(config.interpreter) is None:
        yield Problem(f"'{config.python}' is no program that can be run; name an interpreter", key="python")
    if config.envs_per_worker > 1 and config.python is None:
        yield Problem("needs python: in this process there are no workers", key="envs_per_worker")
    if config.envs_per_worker > 1 and not config.seeded:
        yield Problem("above 1 needs seeded: episodes are played again when their worker dies", key="envs_per_worker")
    # A value that a class sets by default is ignored without workers; only an explicit one is refused.
    overlaps = config.steps_while_starting > 0 and config.steps_while_starting != type(config).steps_while_starting
    if overlaps and (config.python is None or config.envs_per_worker > 1):
        message = "above 0 needs python and envs_per_worker 1: a worker that starts an episode makes no steps"
        yield Problem(message, key="steps_while_starting")
    if config.environment_variables and config.python is None:
        yield Problem("needs python: they are given to workers, never set in this process", key="environment_variables")
