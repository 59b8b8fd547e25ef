"""How a registered environment is built: options checked, scene composed, simulation made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from isaaclab_arena.environments.actions import ACTION_MODES, make_action_mode
from isaaclab_arena.environments.arena_environment import CONTROL_DT, ArenaEnvironment
from isaaclab_arena.environments.cameras import CameraOptions, EnvironmentCameras, check_camera_options
from isaaclab_arena.environments.catalog import EMBODIMENTS, OBJECTS
from isaaclab_arena.environments.embodiments.embodiment import Embodiment
from isaaclab_arena.environments.tasks.task import Task
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem, did_you_mean
from isaaclab_arena.registry import Registry
from isaaclab_arena.sim.mujoco_backend import MujocoBackend
from isaaclab_arena.sim.scene import compose_scene

_TABLE = "scenes/table.xml"


@dataclass(frozen=True, kw_only=True)
class TableEnvironmentBuilder:
    """Builds one kind of environment on the table.

    Attributes:
        config_class: Frozen dataclass with ``embodiment``, ``action_mode`` and, where the task has one, ``object``;
            made from `CameraOptions` where policies may see pictures.
        make_task: Makes the task from the options and the embodiment. It raises `ConfigError` for a combination
            that cannot work, and it simulates nothing.
    """

    config_class: type
    make_task: Callable[[Any, Embodiment], Task]

    def check(self, config: Any) -> None:
        """Refuse unknown names and combinations that cannot work; see `EnvironmentBuilder`.

        Raises:
            ConfigError: With ``key`` set to the option at fault; all unknown names at once.
        """
        problems = _unknown("embodiment", config.embodiment, EMBODIMENTS)
        if hasattr(config, "object"):
            problems += _unknown("object", config.object, OBJECTS)
        if config.action_mode not in ACTION_MODES:
            hint = did_you_mean(str(config.action_mode), ACTION_MODES)
            problems.append(Problem(f"no action mode called '{config.action_mode}'{hint}", key="action_mode"))
        if problems:
            raise ConfigError(problems)
        check_camera_options(_camera_options(config))
        self.make_task(config, EMBODIMENTS.get(config.embodiment))

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> ArenaEnvironment:
        """Build the environment; see `EnvironmentBuilder`.

        Raises:
            ConfigError: If the options cannot work.
            EnvironmentBuildError: If the scene does not compile.
        """
        self.check(config)
        embodiment = EMBODIMENTS.get(config.embodiment)
        task = self.make_task(config, embodiment)
        try:
            model = compose_scene(_TABLE, (embodiment.part(), *task.parts), task.contact_sensors)
        except ValueError as error:
            raise EnvironmentBuildError(f"the scene of '{task.name}' does not compile: {error}") from error
        backend = MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
        action_mode = make_action_mode(config.action_mode, embodiment.robot, backend, CONTROL_DT)
        device = torch.device(device)
        return ArenaEnvironment(
            backend=backend,
            robot=embodiment.robot,
            task=task,
            action_mode=action_mode,
            cameras=EnvironmentCameras(backend, _camera_options(config), device),
            device=device,
        )


def _camera_options(config: Any) -> CameraOptions:
    return config if isinstance(config, CameraOptions) else CameraOptions()


def _unknown(key: str, name: object, registry: Registry) -> list[Problem]:
    if isinstance(name, str) and name in registry:
        return []
    return [Problem(f"no {registry.kind} called '{name}'{did_you_mean(str(name), registry.names())}", key=key)]
