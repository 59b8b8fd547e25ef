"""Build a registered environment: check options, compose the scene, make the simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mujoco
import torch

from isaaclab_arena.environments.arena.cameras import (
    CameraOptions,
    EnvironmentCameras,
    ViewportOptions,
    backend_choice,
    check_camera_options,
    on_the_cpu,
)
from isaaclab_arena.environments.arena.environment import (
    CONTROL_DT,
    START_NOISE_RAD,
    FloorEnvironment,
    TableEnvironment,
)
from isaaclab_arena.environments.catalog import EMBODIMENTS, OBJECTS
from isaaclab_arena.environments.mdp.spaces import ACTION_MODES, ActionModeName, make_action_mode
from isaaclab_arena.environments.mdp.task import FloorTask, Task
from isaaclab_arena.environments.robots.embodiment import TABLE, Embodiment
from isaaclab_arena.environments.robots.lookup import (
    find_embodiment,
    part_files,
    refuse_out_of_reach,
    refuse_too_tall,
    robot_files,
)
from isaaclab_arena.environments.variations.catalogue import (
    Distractors,
    Scene,
    catalogue,
    covered,
    distractor_kinds,
    most_distractors,
    surface_textures,
)
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem, did_you_mean
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment_builder import EnvironmentSummary, Variation, described_success
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.registry import Registry
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.backends import faster_backend, make_backend
from isaaclab_arena.sim.scene import ScenePart, compose_scene

# Build a registered environment: check options, compose the scene, make the simulation.


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


@dataclass(frozen=True, kw_only=True)
class TableTask:
    """Builds one kind of environment on the table.

    Attributes:
        config_class: `TableOptions`, `ObjectOptions`, or another frozen dataclass with ``embodiment``, ``action_mode``
            and perhaps ``object``; derived from `CameraOptions` if policies may see pictures.
        make_task: Makes the task from the options and the embodiment. It raises `ConfigError` for a combination
            that cannot work, and it simulates nothing.
        make_backend: Makes the worlds, with the arguments of `isaaclab_arena.sim.backends.make_backend`.
    """

    config_class: type
    make_task: Callable[[Any, Embodiment], Task]
    make_backend: Callable[..., Backend] = make_backend

    def check(self, config: Any) -> None:
        """Refuse unknown names and combinations that cannot work; see `EnvironmentBuilder`.

        Raises:
            ConfigError: With ``key`` set to the option at fault; all unknown names at once.
        """
        problems = _embodiment_problems(config.embodiment)
        if hasattr(config, "object"):
            problems += _unknown("object", config.object, OBJECTS)
        if config.action_mode not in ACTION_MODES:
            hint = did_you_mean(str(config.action_mode), ACTION_MODES)
            problems.append(Problem(f"no action mode called '{config.action_mode}'{hint}", key="action_mode"))
        if problems:
            raise ConfigError(problems)
        check_camera_options(_camera_options(config))
        embodiment = find_embodiment(config.embodiment)
        if hasattr(config, "object"):
            refuse_too_tall(OBJECTS.get(config.object), embodiment)
        refuse_out_of_reach(self.make_task(config, embodiment), embodiment)

    def robot_name(self, config: Any) -> str:
        """Return the name of a robot that a file describes, else the job's own name of the robot."""
        return (
            str(config.embodiment)
            if config.embodiment in EMBODIMENTS
            else find_embodiment(config.embodiment).robot.name
        )

    def task_name(self, config: Any) -> str:
        """Return the task's instruction; see `TaskBuilder`."""
        return self.make_task(config, find_embodiment(config.embodiment)).spec.instruction

    def content_sources(self, config: Any) -> ContentSources:
        """Return the files of the robot and the things from outside this package; see `ContentBuilder`."""
        files = robot_files(config.embodiment)
        chosen = OBJECTS.get(config.object).asset if hasattr(config, "object") else None
        for part in self.make_task(config, find_embodiment(config.embodiment)).spec.parts:
            files |= part_files("object" if part.asset == chosen else part.prefix, part.asset)
        return ContentSources(files=files)

    def summary(self) -> EnvironmentSummary:
        """Return the environment's summary with its default options, and the robots and objects that it accepts."""
        default = self.config_class()
        task = self.make_task(default, find_embodiment(default.embodiment))
        objects = OBJECTS.names() if hasattr(default, "object") else ()
        return EnvironmentSummary(
            instruction=task.spec.instruction,
            success=described_success(task),
            episode_length=round(task.spec.time_limit_s / CONTROL_DT),
            episode_s=task.spec.time_limit_s,
            embodiments=tuple(name for name in EMBODIMENTS.names() if self._accepts(embodiment=name)),
            objects=tuple(name for name in objects if self._accepts(object=name)),
        )

    def faster_backend(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: tuple[Variation, ...] = (),
    ) -> str:
        """Return the name of the faster backend on this machine; see `SimulatedBuilder`.

        Raises:
            EnvironmentBuildError: If the scene does not compile.
        """
        model = self._scene_of(config, variations).compiled()
        return faster_backend(model, num_envs=num_envs, device=device, num_threads=num_threads)

    def _accepts(self, **options: str) -> bool:
        try:
            self.check(self.config_class(**options))
        except ConfigError:
            return False
        return True

    def variations(self, config: Any) -> tuple[Variation, ...]:
        """Return the possible variations of the environment; see `VariableEnvironmentBuilder`.

        Raises:
            ConfigError: If the options cannot work.
            EnvironmentBuildError: If the scene does not compile.
        """
        self.check(config)
        parts = self._scene_of(config)
        home, noise = parts.embodiment.robot.home, START_NOISE_RAD
        span = (tuple(round(value - noise, 6) for value in home), tuple(round(value + noise, 6) for value in home))
        scene = Scene(
            model=parts.compiled(),
            task=parts.task,
            has_distractors=bool(distractor_kinds(parts.task)),
            joint_position_span=span,
            joint_limits=(parts.embodiment.robot.joint_low, parts.embodiment.robot.joint_high),
        )
        return catalogue(scene)

    def sample(self, config: Any) -> TableEnvironment:
        """Return a batch of one on the CPU; see `SampleBuilder`.

        Raises:
            EnvironmentBuildError: If the scene does not compile.
        """
        options = _camera_options(config)
        blind = replace(config, enable_cameras=False) if options.enable_cameras else config
        sample = self.build(on_the_cpu(blind), num_envs=1, device=torch.device("cpu"), num_threads=1)
        sample.announce_pictures(options)
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
        """Build the environment; see `VariableEnvironmentBuilder`.

        Raises:
            ConfigError: If the options cannot work.
            EnvironmentBuildError: If the scene does not compile.
        """
        self.check(config)
        scene, device = self._scene_of(config, variations), torch.device(device)
        robot = scene.embodiment.robot
        backend = self.make_backend(
            scene.compiled(),
            choice=backend_choice(config),
            num_envs=num_envs,
            device=device,
            num_threads=num_threads,
        )
        action_mode = make_action_mode(config.action_mode, robot, backend, CONTROL_DT)
        return TableEnvironment(
            backend=backend,
            robot=robot,
            task=scene.task,
            action_mode=action_mode,
            cameras=EnvironmentCameras(backend, _camera_options(config), device, num_threads=num_threads),
            device=device,
            varied=scene.varied(backend, action_mode.spec, variations, device) if variations else None,
        )

    def _scene_of(self, config: Any, variations: tuple[Variation, ...] = ()) -> "_TableScene":
        embodiment = find_embodiment(config.embodiment)
        task = self.make_task(config, embodiment)
        distractors = Distractors.ready(task, most_distractors(variations))
        return _TableScene(embodiment, task, distractors, covered(variations))


class _TableScene(NamedTuple):
    """The robot, the task's things, the distractors and the varied surfaces of a table scene."""

    embodiment: Embodiment
    task: Task
    distractors: Distractors
    surfaces: tuple[str, ...]

    def compiled(self) -> mujoco.MjModel:
        """Return the scene as a model; EnvironmentBuildError if it does not compile."""
        spec = self.task.spec
        parts = (self.embodiment.part(), *spec.parts, *self.distractors.parts())
        try:
            return compose_scene(
                TABLE,
                parts,
                spec.contact_sensors,
                self.embodiment.scene_cameras,
                surface_textures(TABLE, self.surfaces),
            )
        except ValueError as error:
            raise EnvironmentBuildError(f"the scene of '{spec.name}' does not compile: {error}") from error

    @property
    def episode_length(self) -> int:
        """Control steps after which an episode is truncated."""
        return round(self.task.spec.time_limit_s / CONTROL_DT)

    def varied(
        self, backend: Backend, action_spec: ArraySpec, variations: tuple[Variation, ...], device: torch.device
    ) -> VariedWorld:
        """Return the variations of worlds of this scene, observed on ``device``."""
        return VariedWorld(
            backend=backend,
            base_body=self.embodiment.robot.base_body,
            task=self.task,
            action_spec=action_spec,
            variations=variations,
            distractors=self.distractors,
            device=device,
        )


def _camera_options(config: Any) -> CameraOptions:
    return config if isinstance(config, CameraOptions) else CameraOptions()


def _embodiment_problems(name: object) -> list[Problem]:
    try:
        find_embodiment(name)
    except ConfigError as error:
        return list(error.problems)
    return []


def _unknown(key: str, name: object, registry: Registry) -> list[Problem]:
    if isinstance(name, str) and name in registry:
        return []
    return [Problem(f"no {registry.kind} called '{name}'{did_you_mean(str(name), registry.names())}", key=key)]


TableEnvironmentBuilder = TableTask  # former name, kept for saved documents


# Build a registered environment of a robot on a floor.

FLOOR = "scenes/floor.xml"


@dataclass(frozen=True, kw_only=True)
class FloorEnvironmentBuilder:
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

    def check(self, config: Any) -> None:
        """Refuse options that cannot work; see `EnvironmentBuilder`.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """
        check_camera_options(_viewport_options(config))
        self.make_task(config)

    def task_name(self, config: Any) -> str:
        """Return the task's instruction; see `TaskBuilder`."""
        return self.make_task(config).spec.instruction

    def content_sources(self, config: Any) -> ContentSources:
        """Return the files of the robot and the things from outside this package; see `ContentBuilder`."""
        task = self.make_task(config)
        files = part_files("robot", task.robot.asset)
        for part in task.spec.parts:
            files |= part_files(part.prefix, part.asset)
        return ContentSources(files=files)

    def summary(self) -> EnvironmentSummary:
        """Return the environment's summary with its default options."""
        task = self.make_task(self.config_class())
        return EnvironmentSummary(
            instruction=task.spec.instruction,
            success=described_success(task),
            episode_length=round(task.spec.time_limit_s / task.control_dt),
            episode_s=task.spec.time_limit_s,
            embodiments=(task.robot.name,),
        )

    def sample(self, config: Any) -> FloorEnvironment:
        """Return a batch of one on the CPU; see `SampleBuilder`.

        Raises:
            EnvironmentBuildError: If the scene does not compile.
        """
        return self.build(on_the_cpu(config), num_envs=1, device=torch.device("cpu"), num_threads=1)

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> FloorEnvironment:
        """Build the environment; see `EnvironmentBuilder`.

        Raises:
            ConfigError: If the options cannot work.
            EnvironmentBuildError: If the scene does not compile.
        """
        self.check(config)
        task = self.make_task(config)
        device = torch.device(device)
        backend = self.make_backend(
            _compile(task), choice=backend_choice(config), num_envs=num_envs, device=device, num_threads=num_threads
        )
        cameras = EnvironmentCameras(backend, _viewport_options(config), device, num_threads=num_threads)
        return FloorEnvironment(backend=backend, task=task, cameras=cameras, device=device)

    def faster_backend(
        self,
        config: Any,
        *,
        num_envs: int,
        device: torch.device,
        num_threads: int,
        variations: Sequence[Variation] = (),
    ) -> str:
        """Return the name of the faster backend on this machine; see `SimulatedBuilder`. A floor has no variations.

        Raises:
            EnvironmentBuildError: If the scene does not compile.
        """
        del variations
        model = _compile(self.make_task(config))
        return faster_backend(model, num_envs=num_envs, device=device, num_threads=num_threads)


def _compile(task: FloorTask) -> mujoco.MjModel:
    robot = task.robot
    try:
        part = ScenePart(prefix="robot", asset=robot.asset)
        return compose_scene(FLOOR, (part, *task.spec.parts), task.spec.contact_sensors, (robot.viewport,))
    except ValueError as error:
        raise EnvironmentBuildError(f"the scene of '{task.spec.name}' does not compile: {error}") from error


def _viewport_options(config: ViewportOptions) -> CameraOptions:
    return CameraOptions(viewport_width=config.viewport_width, viewport_height=config.viewport_height)
