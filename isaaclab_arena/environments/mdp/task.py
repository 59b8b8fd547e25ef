"""A task: a specification of the scene and the limits as data, and a judge of the state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.environments.events import MOMENT_FIELDS, Facts, FloorFacts, events_of, floor_events_of
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import FloorActions, FloorSenses, ObservationTerm
from isaaclab_arena.environments.mdp.things import ArticulatedAsset, SceneObject
from isaaclab_arena.interfaces.environment import set_aside
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Conditions, EpisodeEvents, Metric
from isaaclab_arena.sim.backend import Backend, NamedState, StartState
from isaaclab_arena.sim.scene import ContactSensor, FloorRobot, ScenePart


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A task's judgement of the state after a control step. Every tensor has shape (num_envs,).

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
class TaskSpec:
    """The specification of a task, as data.

    Attributes:
        name: Registered name of its environment.
        instruction: The request, in the words that a policy reads; see also `Task.instruction_for`.
        paraphrases: The same in other words, from near to far, for episodes that vary their words.
        time_limit_s: Time after which an episode is truncated [s].
        hold_steps: Number of consecutive control steps for which the goal has to be met.
        things: The objects in the scene besides the table and the robot.
        contact_sensors: Contacts that the task reads.
        articulations: Name in recordings to each thing with joints.
        sites: Further landmarks: role to a body or site.
        sizes: Lengths that a scripted policy needs [m].
        metrics: The declared ones among ``Verdict.metrics``, which tables, page and services then show.
        variations: Those of the world that an environment at a table has only with this task.
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
    metrics: tuple[Metric, ...] = ()
    variations: tuple[Variation, ...] = ()

    @property
    def parts(self) -> tuple[ScenePart, ...]:
        """The things as parts of a scene."""
        return tuple(thing.part() for thing in self.things)

    @property
    def rigid_objects(self) -> dict[str, str]:
        """Map the name in recordings to the free joint, for each loose thing."""
        return {thing.name: thing.joint for thing in self.things if thing.loose}

    @property
    def landmarks(self) -> dict[str, str]:
        """Map each role (``object``, ``bin``, ``target``, ``handle``) to a body or site, for scripted policies."""
        return {**{thing.prefix: thing.body for thing in self.things if thing.observed_as}, **self.sites}


class Task(ABC):
    """One task of one environment. It keeps counters per env slot, so it serves a single environment.

    A counter is a tensor with a number for each env slot. `attach` makes it, `begin` sets it to 0, and `judge` updates
    it and returns it as a metric, which ``spec.metrics`` may declare. Here it is the time of a contact [s]::

        cleared = (*Task.cleared, "touch_s")

        def attach(self, backend):
            super().attach(backend)
            self.touch_s = torch.zeros(backend.num_envs, device=backend.device)

        def judge(self, backend, running):
            touches = backend.touching("hand_touches_cube")  # one of ``spec.contact_sensors``; (num_envs,), bool
            self.touch_s = self.touch_s + self.control_dt * (touches & running)
            return Verdict(..., metrics={"touch_s": self.touch_s})

    Attributes:
        spec: Its specification, as it was given.
        control_dt: Time between two control steps [s].
        held_steps: Number of consecutive control steps for which the goal has been met. Shape: (num_envs,), int64.
        cleared: Names of the tensors that `begin` sets to 0.
        moment_fields: The parts of a state that `facts` reads: ``qpos``, and more of `MOMENT_FIELDS`.
        capturable: Whether `judge` and the observation terms do the same work in each step, with tensors alone. All
            other code that changes tensors among the attributes must then change them in place. On a GPU both are
            replayed as graphs, if the class that defines `judge`, or one derived from it, sets this.
    """

    control_dt: float = 0.05
    held_steps: torch.Tensor
    cleared: ClassVar[tuple[str, ...]] = ("held_steps",)
    moment_fields: ClassVar[Sequence[str]] = MOMENT_FIELDS
    capturable: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A verdict of its own must not be bypassed by the graph of one above it.
        set_aside(cls, "judge", "capturable", default=False)

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the start of the things, in their order. The draw may depend on the generator alone.

        `start_state` and `remember` apply these conditions, and recordings hold them. At a table each
        ``<thing>.<name>`` is a variation too; changes of the world around the task are variations alone, in the spec.
        """
        return {key: value for thing in self.spec.things for key, value in thing.draw(generator).items()}

    def instruction_for(self, conditions: Conditions) -> str:
        """Return the instruction of an episode; override it if the conditions decide."""
        del conditions
        return self.spec.instruction

    def paraphrases_for(self, conditions: Conditions) -> Sequence[str]:
        """Return `instruction_for` in other words, as many as ``spec.paraphrases``; override both together."""
        del conditions
        return self.spec.paraphrases

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the start state of the task's things, without the robot."""
        joints: dict[str, tuple[float, ...]] = {}
        mocap: dict[str, tuple[float, ...]] = {}
        for thing in self.spec.things:
            (joints if thing.loose else mocap).update(thing.pose(conditions))
        return StartState(joint_positions=joints, mocap_positions=mocap)

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the observed terms besides the robot's."""
        return {name: term for thing in self.spec.things for name, term in thing.observation_terms().items()}

    def attach(self, backend: Backend) -> None:
        """Create the counters for the env slots of a simulation; called once, before the first episode."""
        self.held_steps = torch.zeros(backend.num_envs, dtype=torch.int64, device=backend.device)

    def remember(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Store the parts that `judge` needs of the conditions of env slots (n,) just reset; by default nothing."""

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Clear the counters of env slots (n,), int64, that were just reset."""
        del backend
        # A task may have a tensor of its own that is called ``cleared``.
        for name in type(self).cleared:
            getattr(self, name)[env_ids] = 0

    def memory(self) -> Mapping[str, torch.Tensor]:
        """Return every tensor kept of env slots, by default all attributes; snapshots restore them in place."""
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}

    def held(self, met: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return True where the goal has been met for ``spec.hold_steps`` steps, this one counted. Shapes: (num_envs,).

        The goal is ``met`` now in some env slots, bool; those outside of ``running``, bool, keep their count.
        """
        self.held_steps = terms.count_while(met, self.held_steps, running)
        return self.held_steps >= self.spec.hold_steps

    @abstractmethod
    def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
        """Judge the state after a control step of the env slots ``running`` (num_envs,), bool; other counters stay."""

    def goal_met(self, state: NamedState, env_ids: torch.Tensor) -> torch.Tensor | None:
        """Return True for each state that meets the goal, (n,), bool; None if one moment cannot meet it.

        Each read of ``state`` has shape (n, ...). The states' episodes are those of ``env_ids`` (n,), int64.
        """

    @property
    def tells_events(self) -> bool:
        """True if the task reports the events of an episode: by default, if it overrides `facts`."""
        return type(self).facts is not Task.facts

    def events(self, moments: NamedState, env_id: int, *, solved: bool, max_steps: int) -> EpisodeEvents:
        """Return the events of an episode that succeeded or not within ``max_steps`` control steps; see `facts`."""
        return events_of(self.facts(moments, env_id), solved=solved, max_steps=max_steps)

    def facts(self, moments: NamedState, env_id: int) -> Facts:
        """Return the facts of one episode, for its events. They must not depend on other env slots.

        ``moments`` has its states, moments in place of env slots: its start, then the end of each step. The env slot
        has not been reset since.
        """
        raise NotImplementedError(f"task '{self.spec.name}' tells no events")


Judgement = Verdict  # former name, kept for saved documents


class FloorTask(Task):
    """A task of a robot on a floor. It states all that policies observe, and starts from the robot's default posture.

    Attributes:
        robot: The robot that performs the task.
        actions: Reads the last action back from the controls; set by `attach`.
        senses: Reads the motion of the robot, if it has a free joint; set by `attach`.
    """

    robot: FloorRobot
    actions: FloorActions
    senses: FloorSenses

    def attach(self, backend: Backend) -> None:
        """Create the counters for the env slots of a simulation."""
        super().attach(backend)
        self.actions = FloorActions(self.robot, backend)
        self.senses = FloorSenses(self.robot, backend)

    def centre(self) -> torch.Tensor | None:
        """Return the controls (num_envs, action_dim) of a zero action now, None for the robot's default ones."""
        return None

    @property
    def tells_events(self) -> bool:
        """True if the task reports the events of an episode: by default, if it overrides `floor_facts`."""
        return type(self).floor_facts is not FloorTask.floor_facts

    def events(self, moments: NamedState, env_id: int, *, solved: bool, max_steps: int) -> EpisodeEvents:
        """Return the events of one episode, read from its `floor_facts`; see `Task.events`."""
        return floor_events_of(self.floor_facts(moments, env_id), solved=solved, max_steps=max_steps)

    def floor_facts(self, moments: NamedState, env_id: int) -> FloorFacts:
        """Return the facts of one episode, for its events; see `Task.facts`."""
        raise NotImplementedError(f"task '{self.spec.name}' tells no events")
