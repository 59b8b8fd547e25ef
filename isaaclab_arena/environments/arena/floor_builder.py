"""Build a registered environment of a robot on a floor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import torch

from isaaclab_arena.environments.arena.cameras import (
    CameraOptions,
    EnvironmentCameras,
    ViewportOptions,
    check_camera_options,
)
from isaaclab_arena.environments.arena.floor_environment import FloorEnvironment
from isaaclab_arena.environments.arena.simulation import backend_choice, on_the_cpu
from isaaclab_arena.environments.arena.summary import EnvironmentSummary, described_success
from isaaclab_arena.environments.mdp.floor_task import FloorTask
from isaaclab_arena.environments.robots.files import part_files
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.variation import Variation
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.backends import faster_backend, make_backend
from isaaclab_arena.sim.scene.scene import ScenePart, compose_scene

FLOOR = "scenes/floor.xml"


@dataclass(frozen=True, kw_only=True)
class FloorEnvironmentBuilder:
    """Builds one kind of environment on the floor.

    Attributes:
        config_class: Frozen dataclass made from `ViewportOptions`.
        make_task: Makes the task from the options. It raises `ConfigError` for a combination that cannot work, and it
            simulates nothing.
        make_backend: Makes the worlds; takes what `isaaclab_arena.sim.backends.make_backend` takes.
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
        """Return the files of a robot and of things that do not come with this package; see `ContentBuilder`."""
        task = self.make_task(config)
        files = part_files("robot", task.robot.asset)
        for part in task.spec.parts:
            files |= part_files(part.prefix, part.asset)
        return ContentSources(files=files)

    def summary(self) -> EnvironmentSummary:
        """Return what the environment is about, with its default options."""
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
        """Return which backend is the faster one here; see `SimulatedBuilder`. Nothing varies on the floor.

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
