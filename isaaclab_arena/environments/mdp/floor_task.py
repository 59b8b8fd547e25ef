"""What tasks of machines on a floor have in common."""

import torch

from isaaclab_arena.environments.mdp.legged_actions import MachineActions
from isaaclab_arena.environments.mdp.legged_observations import MachineSenses
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.scene.legged_robot import Machine


class FloorTask(Task):
    """A task of a machine that stands or moves on a floor.

    It says all that policies observe, and its start states begin from the machine's default posture.

    Attributes:
        machine: Whose task it is.
        control_dt: Time between two control steps [s].
        actions: Reads the last action back from the controls; there once there is a simulation.
        senses: Reads how the machine moves, if it has a free joint; there likewise.
    """

    machine: Machine
    control_dt: float
    actions: MachineActions
    senses: MachineSenses

    def attach(self, backend: Backend) -> None:
        """Make the counters for the rows of a simulation."""
        super().attach(backend)
        self.actions = MachineActions(self.machine, backend)
        self.senses = MachineSenses(self.machine, backend)

    def centre(self) -> torch.Tensor | None:
        """Return the controls that a zero action asks for now, None for the machine's default ones.

        Shape: (num_envs, action_dim).
        """
        return None
