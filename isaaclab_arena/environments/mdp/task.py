"""What a task is: what stands in the scene, how episodes start, what is observed, and when it is solved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch

from isaaclab_arena.environments.mdp.observations import ObservationTerm
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a task thinks of the state after a control step. Every tensor has shape (num_envs,).

    Attributes:
        reward: Float.
        success: Solved as of this step, bool.
        lost: Cannot be solved any more, bool.
        metrics: Further numbers of the episode, float.
    """

    reward: torch.Tensor
    success: torch.Tensor
    lost: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ArticulatedAsset:
    """A thing with joints.

    Attributes:
        root_body: The body that carries it.
        joints: Its joints, without a free one.
        free_joint: The free joint of a root that moves, None for one that stands.
    """

    root_body: str
    joints: tuple[str, ...]
    free_joint: str | None = None


class Task(ABC):
    """One task of one environment; it keeps counters per env slot, so it serves a single environment.

    Attributes:
        name: Registered name of its environment.
        instruction: What it asks for, in the words a policy is told; see also `instruction_for`.
        time_limit_s: When an env slot is truncated [s].
        parts: What stands in the scene besides the table and the robot.
        contact_sensors: Contacts that it wants to know of.
        rigid_objects: Name in recordings to the free joint of each loose object.
        articulations: Name in recordings to each thing with joints.
        landmarks: Role (``object``, ``bin``, ``target``, ``handle``) to a body or site, for scripted policies.
        sizes: Lengths that a scripted policy needs [m].
        held_steps: For how many control consecutive steps the goal has been met. Shape: (num_envs,), int64.
    """

    name: str
    instruction: str
    time_limit_s: float
    parts: tuple[ScenePart, ...] = ()
    contact_sensors: tuple[ContactSensor, ...] = ()
    rigid_objects: Mapping[str, str] = MappingProxyType({})
    articulations: Mapping[str, ArticulatedAsset] = MappingProxyType({})
    landmarks: Mapping[str, str] = MappingProxyType({})
    sizes: Mapping[str, float] = MappingProxyType({})
    held_steps: torch.Tensor

    @abstractmethod
    def draw_conditions(self, generator: np.random.Generator) -> Mapping[str, ConditionValue]:
        """Draw where the task's things start. Nothing but the generator may influence the draw."""

    def instruction_for(self, conditions: Conditions) -> str:
        """Return what an episode asks for; override it where the conditions decide."""
        del conditions
        return self.instruction

    @abstractmethod
    def start_state(self, conditions: Conditions) -> StartState:
        """Return the start of the task's things, without the robot."""

    @abstractmethod
    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return what is observed besides the robot."""

    def attach(self, backend: Backend) -> None:
        """Make the counters for the env slots of a simulation; called once, before the first episode."""
        self.held_steps = torch.zeros(backend.num_envs, dtype=torch.int64, device=backend.device)

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Remember what judging needs of the conditions that env slots were just reset to; nothing by default.

        Args:
            env_ids: Shape: (n,), int64.
            conditions: In the same order.
        """

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget the past of env slots that were just reset.

        Args:
            backend: The simulation.
            env_ids: Shape: (n,), int64.
        """
        del backend
        self.held_steps[env_ids] = 0

    def memory(self) -> Mapping[str, torch.Tensor]:
        """Return all that it remembers of its env slots, live: a snapshot keeps copies and writes them back in place.

        By default these are all tensors among its attributes.
        """
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}

    @abstractmethod
    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge the state after a control step.

        Args:
            backend: The simulation.
            running: Env slots that made the step; the others' counters stay. Shape: (num_envs,), bool.
        """


def draw_uniform(generator: np.random.Generator, low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...]:
    """Draw a point of a box, as plain numbers that fit into JSON."""
    return tuple(float(value) for value in generator.uniform(low, high))


def upright_pose(position: ConditionValue, yaw: ConditionValue) -> tuple[float, ...]:
    """Return position and quaternion of a thing that stands upright at ``position`` [m], turned by ``yaw`` [rad]."""
    half = number(yaw) / 2
    return (*point(position), math.cos(half), 0.0, 0.0, math.sin(half))


def point(value: ConditionValue) -> tuple[float, ...]:
    """Return a condition that must be a point, as conditions come back from JSON as lists.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"a condition must be a sequence of numbers, got {value!r}")
    return tuple(float(part) for part in value)


def number(value: ConditionValue) -> float:
    """Return a condition that must be a number.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"a condition must be a number, got {value!r}")
    return float(value)
