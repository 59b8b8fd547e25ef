"""Turn the actions of a robot on a floor into controls of its actuators."""

import torch

from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.named_state import side_by_side
from isaaclab_arena.sim.scene.floor_robot import FloorRobot


class FloorActions:
    """Turns actions into controls and back.

    Args:
        robot: Whose actions.
        backend: The simulation it stands in.

    Attributes:
        spec: What an action looks like.
    """

    def __init__(self, robot: FloorRobot, backend: Backend) -> None:
        names = tuple(actuator.rpartition("/")[2] for actuator in robot.actuators)
        bound = (robot.action_bound,) * len(names)
        low = tuple(-value for value in bound)
        self.spec = ArraySpec(shape=(len(names),), low=low, high=bound, names=names)
        self._bound = robot.action_bound
        self._indices = side_by_side(backend.actuator_indices(robot.actuators))
        dtype = backend.ctrl.dtype
        self._default = torch.tensor(robot.default_control, dtype=dtype, device=backend.device)
        self._scale = torch.tensor(robot.action_scale, dtype=dtype, device=backend.device)

    def controls(self, backend: Backend, action: torch.Tensor, centre: torch.Tensor | None = None) -> torch.Tensor:
        """Return the controls that actions ask for.

        Args:
            backend: The simulation.
            action: Shape: (num_envs, action_dim).
            centre: What zero actions ask for, if not the robot's default. Shape: (num_envs, action_dim).

        Returns:
            Shape: (num_envs, nu).
        """
        controls = backend.ctrl.clone()
        bounded = action.to(controls.dtype).clamp(-self._bound, self._bound)
        controls[:, self._indices] = (self._default if centre is None else centre) + self._scale * bounded
        return controls

    def last(self, backend: Backend, centre: torch.Tensor | None = None) -> torch.Tensor:
        """Return the actions of which the controls are now the result, 0 after a reset. Shapes: as `controls`."""
        return (backend.ctrl[:, self._indices] - (self._default if centre is None else centre)) / self._scale
