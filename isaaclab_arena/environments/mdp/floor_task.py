"""Define the common parts of tasks of robots on a floor."""

import torch

from isaaclab_arena.environments.events.floor import FloorFacts, floor_events_of
from isaaclab_arena.environments.mdp.floor_actions import FloorActions
from isaaclab_arena.environments.mdp.floor_observations import FloorSenses
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.interfaces.episode import EpisodeEvents
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.named_state import NamedState
from isaaclab_arena.sim.scene.floor_robot import FloorRobot


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
