"""A task: a specification of the scene and the limits as data, and a judge of the state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from isaaclab_arena.environments.events import MOMENT_FIELDS, Facts, FloorFacts, events_of, floor_events_of
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import FloorActions
from isaaclab_arena.environments.mdp.observations import FloorSenses, ObservationTerm
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, EpisodeEvents
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.scene.scene import ContactSensor, FloorRobot, ScenePart

# Define a task: a specification of the scene and the limits as data, and a judge of the state.


@dataclass(frozen=True, kw_only=True)
class Verdict:
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


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What a task is made of, as data.

    Attributes:
        name: Registered name of its environment.
        instruction: What it asks for, in the words a policy is told; see also `Task.instruction_for`.
        paraphrases: The same in other words, from near to far, for episodes that vary their words.
        time_limit_s: When an episode is truncated [s].
        hold_steps: For how many consecutive control steps the goal has to be met.
        things: What stands in the scene besides the table and the robot.
        contact_sensors: Contacts that it wants to know of.
        articulations: Name in recordings to each thing with joints.
        sites: Further landmarks: role to a body or site.
        sizes: Lengths that a scripted policy needs [m].
    """

    name: str
    instruction: str
    time_limit_s: float
    paraphrases: tuple[str, ...] = ()
    hold_steps: int = 1
    things: tuple[SceneObject, ...] = ()
    contact_sensors: tuple[ContactSensor, ...] = ()
    articulations: Mapping[str, ArticulatedAsset] = field(default_factory=dict)
    sites: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[ScenePart, ...]:
        """The things as parts of a scene."""
        return tuple(thing.part() for thing in self.things)

    @property
    def rigid_objects(self) -> dict[str, str]:
        """Name in recordings to the free joint of each loose thing."""
        return {thing.name: thing.joint for thing in self.things if thing.loose}

    @property
    def landmarks(self) -> dict[str, str]:
        """Role (``object``, ``bin``, ``target``, ``handle``) to a body or site, for scripted policies."""
        return {**{thing.prefix: thing.body for thing in self.things if thing.observed_as}, **self.sites}


class Task(ABC):
    """One task of one environment. It keeps counters per env slot, so it serves a single environment.

    Args:
        spec: What it is made of.

    Attributes:
        spec: The same.
        held_steps: For how many consecutive control steps the goal has been met. Shape: (num_envs,), int64.
        moment_fields: What `facts` read of a state: ``qpos``, and more of `MOMENT_FIELDS`.
        capturable: Whether `judge` and the observation terms do the same in each step, with tensors alone, and whatever
            else changes tensors among its attributes changes them in place. On a GPU both are replayed as graphs then,
            if the class that has `judge` says so or one derived from it.
    """

    held_steps: torch.Tensor
    moment_fields: ClassVar[Sequence[str]] = MOMENT_FIELDS
    capturable: ClassVar[bool] = False

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec

    def draw_conditions(self, generator: np.random.Generator) -> Mapping[str, ConditionValue]:
        """Draw where things start, in their order. Nothing but the generator may influence the draw."""
        return {key: value for thing in self.spec.things for key, value in thing.draw(generator).items()}

    def instruction_for(self, conditions: Conditions) -> str:
        """Return what an episode asks for; override it where the conditions decide."""
        del conditions
        return self.spec.instruction

    def paraphrases_for(self, conditions: Conditions) -> Sequence[str]:
        """Return what `instruction_for` says in other words, as many as ``spec.paraphrases``; override both alike."""
        del conditions
        return self.spec.paraphrases

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the start of the task's things, without the robot."""
        joints: dict[str, tuple[float, ...]] = {}
        mocap: dict[str, tuple[float, ...]] = {}
        for thing in self.spec.things:
            (joints if thing.loose else mocap).update(thing.pose(conditions))
        return StartState(joint_positions=joints, mocap_positions=mocap)

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return what is observed besides the robot."""
        return {name: term for thing in self.spec.things for name, term in thing.observation_terms().items()}

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

    def held(self, met: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Count the steps in which the goal is met; return whether it has been met for ``spec.hold_steps``.

        Args:
            met: Whether it is met now. Shape: (num_envs,), bool.
            running: Env slots that made the step; the others keep their count. Shape: (num_envs,), bool.

        Returns:
            Shape: (num_envs,), bool.
        """
        self.held_steps = terms.count_while(met, self.held_steps, running)
        return self.held_steps >= self.spec.hold_steps

    @abstractmethod
    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        """Judge the state after a control step.

        Args:
            backend: The simulation.
            running: Env slots that made the step; the others' counters stay. Shape: (num_envs,), bool.
        """

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor | None:
        """Return whether the goal is met in each state, however long it has been; None where a moment cannot meet it.

        Args:
            state: The states. Shape of what it returns: (n, ...).
            env_ids: Which env slot's episode each of them belongs to. Shape: (n,), int64.

        Returns:
            Shape: (n,), bool.
        """
        del state, env_ids

    @classmethod
    def can_be_captured(cls) -> bool:
        """Return whether it says so for its own `judge`, and not for that of a class that it is derived from."""
        judges, says = (next(each for each in cls.__mro__ if name in vars(each)) for name in ("judge", "capturable"))
        return cls.capturable and issubclass(says, judges)

    @property
    def tells_events(self) -> bool:
        """Whether it says of an episode what it was like: whether it has `facts` of its own."""
        return type(self).facts is not Task.facts

    def events(self, moments: NamedState, env_id: int, *, solved: bool, max_steps: int) -> EpisodeEvents:
        """Return what happened in one episode, by default as its `facts` have it.

        Args:
            moments: The states that it went through; see `facts`.
            env_id: Its env slot, which has not been reset since.
            solved: Whether it succeeded.
            max_steps: Control steps after which it would have run out of time.
        """
        return events_of(self.facts(moments, env_id), solved=solved, max_steps=max_steps)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return what one episode was like, for its events. It must not depend on other env slots.

        Args:
            moments: The states that it went through, in place of env slots: its start, then the end of each step.
            env_id: Its env slot, which has not been reset since.

        Raises:
            NotImplementedError: If the task tells no events, as by default.
        """
        raise NotImplementedError(f"task '{self.spec.name}' tells no events")


Judgement = Verdict  # the name that documents had before


# Define the common parts of tasks of robots on a floor.


class FloorTask(Task):
    """A task of a robot that stands or moves on a floor.

    It says all that policies observe, and its start states begin from the robot's default posture.

    Attributes:
        robot: Whose task it is.
        control_dt: Time between two control steps [s].
        actions: Reads the last action back from the controls; there once there is a simulation.
        senses: Reads how the robot moves, if it has a free joint; there likewise.
    """

    robot: FloorRobot
    control_dt: float
    actions: FloorActions
    senses: FloorSenses

    def attach(self, backend: Backend) -> None:
        """Make the counters for the env slots of a simulation."""
        super().attach(backend)
        self.actions = FloorActions(self.robot, backend)
        self.senses = FloorSenses(self.robot, backend)

    def centre(self) -> torch.Tensor | None:
        """Return the controls that a zero action asks for now, None for the robot's default ones.

        Shape: (num_envs, action_dim).
        """
        return None

    @property
    def tells_events(self) -> bool:
        """Whether it says of an episode what it was like: whether it has `floor_facts` of its own."""
        return type(self).floor_facts is not FloorTask.floor_facts

    def events(self, moments: NamedState, env_id: int, *, solved: bool, max_steps: int) -> EpisodeEvents:
        """Return what happened in one episode, as its `floor_facts` have it; see `Task.events`."""
        return floor_events_of(self.floor_facts(moments, env_id), solved=solved, max_steps=max_steps)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        """Return what one episode was like, for its events; see `Task.facts`.

        Raises:
            NotImplementedError: If the task tells no events, as by default.
        """
        raise NotImplementedError(f"task '{self.spec.name}' tells no events")
