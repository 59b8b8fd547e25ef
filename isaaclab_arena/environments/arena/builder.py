"""Build a registered environment: check options, compose the scene, make the simulation."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.environments.arena.cameras import (
    CameraOptions,
    EnvironmentCameras,
    SimulationOptions,
    ViewportOptions,
    check_camera_options,
)
from isaaclab_arena.environments.arena.environment import FloorEnvironment, TableEnvironment
from isaaclab_arena.environments.catalog import EMBODIMENTS, OBJECTS
from isaaclab_arena.environments.mdp.spaces import ACTION_MODES, ActionModeName
from isaaclab_arena.environments.mdp.task import FloorTask, Task
from isaaclab_arena.environments.robots.embodiment import TABLE, Embodiment
from isaaclab_arena.environments.robots.lookup import find_embodiment
from isaaclab_arena.environments.variations.catalogue import Distractors, catalogue, surface_textures
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem, did_you_mean
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, EnvironmentSummary, Variation
from isaaclab_arena.interfaces.episode import point
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.backends import faster_backend, make_backend
from isaaclab_arena.sim.scene import CameraPose, ScenePart, compose_scene, part_files

_SAMPLES = 16  # drawn starts in which a robot has to reach all things
_POSITION = ".position"


@dataclass(frozen=True, kw_only=True)
class TableOptions(CameraOptions):
    """Options of a task on the table.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


@dataclass(frozen=True, kw_only=True)
class ObjectOptions(CameraOptions):
    """Options of a task on the table with an object of the user's choice.

    Attributes:
        embodiment: Registered name of the robot.
        object: Registered name of the object.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    object: str = "cube"
    action_mode: ActionModeName = "joint_position"


class _SceneBuilder(EnvironmentBuilder, ABC):
    """Answers from the task and the model of a job's scene."""

    make_backend: Callable[..., Backend]
    pays: ClassVar[int]  # env slots, from `benchmarks.runs.env_slots`: twice as many save less than a fifth of a step

    @abstractmethod
    def _scene(self, config: Any) -> tuple[Task, str, ScenePart, tuple[CameraPose, ...]]:
        """Return the task of the options, the scene's file, the robot in it, and cameras that it moves."""

    def task_name(self, config: Any) -> str:
        """Return the task's instruction."""
        task, *_ = self._scene(config)
        return task.spec.instruction

    def paying_num_envs(self, config: Any, *, num_threads: int) -> int:  # noqa: ARG002 - the same for every scene
        """Return the number of env slots beyond which more of them save little time on a CPU."""
        return self.pays

    def faster_backend(self, config: Any, *, variations: tuple[Variation, ...] = (), **options: Any) -> str:
        """Return the name of the faster backend on this machine; see `isaaclab_arena.sim.backends.faster_backend`."""
        _, _, model = self._compiled(config, variations)
        return faster_backend(model, **options)

    def content_sources(self, config: Any) -> ContentSources:
        """Return the files of the robot and the things from outside this package."""
        task, _, robot, _ = self._scene(config)
        files = part_files("robot", robot.asset)
        # A task on a floor may have an option of this name that means something else.
        name = getattr(config, "object", None)
        chosen = OBJECTS.get(name).asset if isinstance(name, str) and name in OBJECTS else None
        for part in task.spec.parts:
            files |= part_files("object" if part.asset == chosen else part.prefix, part.asset)
        return ContentSources(files=files)

    def sample(self, config: Any) -> Any:
        """Return a batch of one on the CPU."""
        on_cpu = replace(config, backend="mujoco") if isinstance(config, SimulationOptions) else config
        return self.build(on_cpu, num_envs=1, device=torch.device("cpu"), num_threads=1)

    def _worlds(self, model: mujoco.MjModel, config: Any, **options: Any) -> Backend:
        """Return the worlds of a model on the backend that the options name."""
        choice = config.backend if isinstance(config, SimulationOptions) else "mujoco"
        return self.make_backend(model, choice=choice, **options)

    def _compiled(
        self, config: Any, variations: tuple[Variation, ...] = ()
    ) -> tuple[Any, Distractors | None, mujoco.MjModel]:
        """Return task, distractors and model of a scene; EnvironmentBuildError if it does not compile."""
        task, scene, robot, cameras = self._scene(config)
        distractors = Distractors.ready(task, variations) if variations else None
        parts = (robot, *task.spec.parts, *(distractors.parts() if distractors else ()))
        textures = surface_textures(scene, variations) if variations else ()
        try:
            model = compose_scene(scene, parts, task.spec.contact_sensors, cameras=cameras, textures=textures)
        except ValueError as error:
            raise EnvironmentBuildError(f"the scene of '{task.spec.name}' does not compile: {error}") from error
        return task, distractors, model


@dataclass(frozen=True, kw_only=True)
class TableTask(_SceneBuilder):
    """Builds one kind of environment on the table.

    Attributes:
        config_class: `TableOptions`, `ObjectOptions`, or another frozen dataclass with ``embodiment``, ``action_mode``
            and perhaps ``object``; derived from `CameraOptions` if policies may see pictures.
        make_task: Makes the task from the options and the embodiment. It raises `ConfigError` for a combination
            that cannot work, and it simulates nothing.
        make_backend: Makes the worlds, with the arguments of `isaaclab_arena.sim.backends.make_backend`.
        words: Describes the task in lists, instead of the first line of the module of ``make_task``.
    """

    config_class: type = TableOptions
    make_task: Callable[[Any, Embodiment], Task]
    make_backend: Callable[..., Backend] = make_backend
    words: str | None = None
    pays: ClassVar[int] = 16

    def check(self, config: Any) -> None:
        """Raise ConfigError for all unknown names at once, else for a combination that cannot work."""
        problems: list[Problem] = []
        try:
            find_embodiment(config.embodiment)
        except ConfigError as error:
            problems += error.problems
        if hasattr(config, "object") and not (isinstance(config.object, str) and config.object in OBJECTS):
            hint = did_you_mean(str(config.object), OBJECTS.names())
            problems.append(Problem(f"no {OBJECTS.kind} called '{config.object}'{hint}", key="object"))
        if str(config.action_mode) not in ACTION_MODES:
            hint = did_you_mean(str(config.action_mode), ACTION_MODES)
            problems.append(Problem(f"no action mode called '{config.action_mode}'{hint}", key="action_mode"))
        if problems:
            raise ConfigError(problems)

        # With known names, the combination has to work.
        check_camera_options(_camera_options(config))
        embodiment = find_embodiment(config.embodiment)
        robot, workspace = embodiment.robot, embodiment.workspace
        if hasattr(config, "object"):
            thing = OBJECTS.get(config.object)
            if 2 * thing.half_height > workspace.tallest_m:
                limit = f"can bring its hand over things of at most {workspace.tallest_m:.2f} m"
                message = f"object '{thing.name}' is {2 * thing.half_height:.2f} m tall, but '{robot.name}' {limit}"
                raise ConfigError(Problem(message, key="object"))

        # The robot has to reach all things in each of some drawn starts.
        task, (base_x, base_y, _) = self.make_task(config, embodiment), embodiment.position
        starts = (task.draw_conditions(np.random.default_rng(seed)) for seed in range(_SAMPLES))
        for name, value in (each for start in starts for each in start.items() if each[0].endswith(_POSITION)):
            x, y, *_ = point(value)
            distance_m = math.hypot(x - base_x, y - base_y)
            if distance_m > workspace.reach_m:
                reaches = f"'{robot.name}', which reaches {workspace.reach_m:.2f} m"
                put = f"'{task.spec.name}' puts the {name.removesuffix(_POSITION)} {distance_m:.2f} m"
                raise ConfigError(Problem(f"{put} from the base of {reaches}", key="embodiment"))

    def robot_name(self, config: Any) -> str:
        """Return the name of a robot that a file describes, else the job's own name of the robot."""
        return (
            str(config.embodiment)
            if config.embodiment in EMBODIMENTS
            else find_embodiment(config.embodiment).robot.name
        )

    def content_sources(self, config: Any) -> ContentSources:
        """Return the files of the robot, its description and the things from outside this package."""
        name = config.embodiment
        description = {f"robot {Path(name).name}": Path(name)} if name.lower().endswith((".yaml", ".yml")) else {}
        return ContentSources(files={**description, **super().content_sources(config).files})

    def summary(self) -> EnvironmentSummary:
        """Return the environment's summary with its default options, and the robots and objects that it accepts."""
        default = self.config_class()
        task, *_ = self._scene(default)
        accepted: dict[str, list[str]] = {"embodiment": [], "object": []}
        objects = OBJECTS.names() if hasattr(default, "object") else ()
        for option, names in (("embodiment", EMBODIMENTS.names()), ("object", objects)):
            for name in names:
                with suppress(ConfigError):
                    self.check(self.config_class(**{option: name}))
                    accepted[option].append(name)
        return _summary(task, accepted["embodiment"], accepted["object"])

    def variations(self, config: Any) -> tuple[Variation, ...]:
        """Return the possible variations of the environment."""
        self.check(config)
        task, _, model = self._compiled(config)
        return catalogue(model, task, find_embodiment(config.embodiment).robot)

    def sample(self, config: Any) -> TableEnvironment:
        """Return a batch of one on the CPU."""
        is_seeing = isinstance(config, CameraOptions) and config.enable_cameras
        sample = super().sample(replace(config, enable_cameras=False) if is_seeing else config)
        # It declares the pictures that the options ask for, and never renders any.
        if is_seeing:
            pictures = EnvironmentCameras(sample.backend, config, sample.device).spec()
            sample.observation_spec = {**sample.observation_spec, CAMERAS: pictures}
        return sample

    def build(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: tuple[Variation, ...] = (),
    ) -> TableEnvironment:
        """Build the environment: ConfigError for wrong options, EnvironmentBuildError if the scene does not compile."""
        self.check(config)
        task, distractors, model = self._compiled(config, variations)
        robot, device = find_embodiment(config.embodiment).robot, torch.device(device)
        backend = self._worlds(model, config, num_envs=num_envs, device=device, num_threads=num_threads)
        action_mode = ACTION_MODES[config.action_mode](robot, backend, task.control_dt)
        cameras = EnvironmentCameras(backend, _camera_options(config), device, num_threads=num_threads)
        varied = None
        if distractors is not None:
            varied = VariedWorld(backend, robot, task, variations, distractors)
        return TableEnvironment(backend, robot, task, action_mode, cameras, device, varied)

    def _scene(self, config: Any) -> tuple[Task, str, ScenePart, tuple[CameraPose, ...]]:
        embodiment = find_embodiment(config.embodiment)
        return self.make_task(config, embodiment), TABLE, embodiment.part(), embodiment.scene_cameras


def _summary(task: Task, embodiments: Sequence[str], objects: Sequence[str]) -> EnvironmentSummary:
    return EnvironmentSummary(
        instruction=task.spec.instruction,
        success=" ".join((inspect.getdoc(type(task)) or "").split()),
        episode_length=round(task.spec.time_limit_s / task.control_dt),
        episode_s=task.spec.time_limit_s,
        embodiments=tuple(embodiments),
        objects=tuple(objects),
    )


def _camera_options(config: Any) -> CameraOptions:
    if isinstance(config, CameraOptions):
        return config
    return _viewport_alone(config) if isinstance(config, ViewportOptions) else CameraOptions()


def _viewport_alone(config: ViewportOptions) -> CameraOptions:
    """Return the options of cameras that no policy sees."""
    return CameraOptions(viewport_width=config.viewport_width, viewport_height=config.viewport_height)


TableEnvironmentBuilder = TableTask  # former name, kept for saved documents


@dataclass(frozen=True, kw_only=True)
class FloorEnvironmentBuilder(_SceneBuilder):
    """Builds one kind of environment on the floor.

    Attributes:
        config_class: Frozen dataclass derived from `ViewportOptions`.
        make_task: Makes the task from the options. It raises `ConfigError` for a combination that cannot work, and it
            simulates nothing.
        make_backend: Makes the worlds, with the arguments of `isaaclab_arena.sim.backends.make_backend`.
    """

    config_class: type[ViewportOptions]
    make_task: Callable[[Any], FloorTask]
    make_backend: Callable[..., Backend] = make_backend
    pays: ClassVar[int] = 64

    def check(self, config: Any) -> None:
        """Raise ConfigError for options that cannot work."""
        check_camera_options(_viewport_alone(config))
        self.make_task(config)

    def summary(self) -> EnvironmentSummary:
        """Return the environment's summary with its default options."""
        task = self.make_task(self.config_class())
        return _summary(task, (task.robot.name,), ())

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> FloorEnvironment:
        """Build the environment: ConfigError for wrong options, EnvironmentBuildError if the scene does not compile."""
        self.check(config)
        (task, _, model), device = self._compiled(config), torch.device(device)
        backend = self._worlds(model, config, num_envs=num_envs, device=device, num_threads=num_threads)
        cameras = EnvironmentCameras(backend, _viewport_alone(config), device, num_threads=num_threads)
        return FloorEnvironment(backend=backend, task=task, cameras=cameras, device=device)

    def _scene(self, config: Any) -> tuple[Task, str, ScenePart, tuple[CameraPose, ...]]:
        task = self.make_task(config)
        return task, "scenes/floor.xml", ScenePart(prefix="robot", asset=task.robot.asset), (task.robot.viewport,)
