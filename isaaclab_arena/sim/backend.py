"""The contract of a physics backend: a batch of worlds of one model, read and written by name.

Shapes: ``num_envs`` worlds; ``nq`` positions, ``nv`` degrees of freedom, ``nu`` controls of the model. Quaternions
are w x y z. Task code reads named joints, bodies, sites and sensors and never an index, so the same code serves
every backend. All derived quantities describe the state after the last `reset` or `step`; contact sensors alone
are those of the last physics step, one ``physics_dt`` earlier.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.model_changes import ModelChange
from isaaclab_arena.sim.named_state import NamedState
from isaaclab_arena.sim.replayed import Capture


@dataclass(frozen=True, kw_only=True)
class StartState:
    """What one world starts from; whatever is not named keeps the model's default.

    Attributes:
        joint_positions: Joint to its position: one number [m or rad], or a pose of seven for a free joint.
        joint_velocities: Joint to its velocity: one number [m/s or rad/s], or the six of a free joint.
        controls: Actuator to its control.
        mocap_positions: Mocap body to its position [m].
    """

    joint_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    joint_velocities: Mapping[str, Sequence[float]] = field(default_factory=dict)
    controls: Mapping[str, float] = field(default_factory=dict)
    mocap_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Backend(NamedState, ABC):
    """A batch of worlds that share a model.

    The tensors are live views of the simulation: read them after `step`, copy what must last, and write only
    ``ctrl``. Their values do not depend on ``num_envs`` or on the number of threads.

    Attributes:
        model: The compiled model that the worlds share.
        num_envs: Number of worlds.
        reproducible: Whether the same calls give the same bits again.
        renders: Whether `isaaclab_arena.sim.warp.batch_cameras` renders the worlds where they are.
        capture: What captures the work of torch that follows a step, where that is worth it; see `Replayed`.
        physics_dt: Time that one substep advances [s].
        diverged: Worlds whose physics broke down since their reset: a MuJoCo error, a warning about bad positions,
            velocities, accelerations or controls, or a number that is not finite. Shape: (num_envs,), bool.
    """

    model: mujoco.MjModel
    num_envs: int
    reproducible: bool
    renders: bool = False
    capture: Capture | None = None
    physics_dt: float
    diverged: torch.Tensor

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Put the named worlds into their start states and leave all others untouched.

        Args:
            env_ids: Worlds, ascending. Shape: (n,), int64.
            starts: One state per world, in the same order.
        """

    @abstractmethod
    def step(self, moved: torch.Tensor, num_substeps: int) -> None:
        """Advance some worlds; the others keep state and derived quantities.

        Args:
            moved: Which ones; a mask, because to turn it into indices on a GPU is to wait for the GPU.
                Shape: (num_envs,), bool, on the backend's device.
            num_substeps: Physics steps of ``physics_dt`` each.
        """

    def try_step(self, moved: torch.Tensor, num_substeps: int) -> torch.Tensor:
        """Advance some worlds as `step` does, without waiting to learn whether that was possible; by default it is.

        Where it was not, all worlds are as they were, and `step` with the same arguments advances them.

        Args:
            moved: See `step`.
            num_substeps: See `step`.

        Returns:
            Which worlds were advanced: those of ``moved``, or none. Shape: (num_envs,), bool, on the backend's device.
        """
        self.step(moved, num_substeps)
        return moved

    @abstractmethod
    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return how a site, moving with its body, follows the degrees of freedom.

        Args:
            body: The body that the site belongs to.
            site: The site.

        Returns:
            Axis 1 is vx, vy, vz, wx, wy, wz in the world frame. Shape: (num_envs, 6, nv).
        """

    @abstractmethod
    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return everything that some worlds' future depends on, copied. Shape: (len(env_ids), state_size), float64."""

    def integration_state(self, env_id: int) -> np.ndarray:
        """Return everything the future of a world depends on, copied. Shape: (state_size,), float64."""
        return self.integration_states([env_id])[0]

    @abstractmethod
    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Continue a world from what `integration_state` returned.

        Args:
            env_id: The world.
            state: Shape: (state_size,).
        """

    @abstractmethod
    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return everything the future of all worlds depends on and everything that can be read of them, copied.

        Shape of each: (num_envs, ...).
        """

    @abstractmethod
    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Put all worlds where they were when `snapshot` was taken, of this backend or of one of the same model."""

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Give the named worlds values of the model of their own, in place of those of an earlier call.

        Whatever is not named is the shared model's again, and what the model derives from changed values (inertia
        about axes, bounding volumes, constraint scaling) follows. Call it before `reset`. A world's values must not
        depend on those of other worlds, to the last bit.

        Args:
            env_ids: Worlds, ascending. Shape: (n,), int64.
            changes: One list per world, in the same order.

        Raises:
            EnvironmentBuildError: If the backend cannot.
        """
        del env_ids, changes
        raise EnvironmentBuildError(f"the backend '{self.engine()}' cannot vary its model between worlds")

    def model_field(self, name: str) -> np.ndarray:
        """Return a field of the model in every world, for renderers and tests. Shape: (num_envs, ...).

        Args:
            name: As in `mujoco.MjModel`: ``geom_rgba``, ``light_dir``, ``cam_pos``.

        Raises:
            EnvironmentBuildError: If the backend cannot.
        """
        raise EnvironmentBuildError(f"the backend '{self.engine()}' does not show its model's '{name}'")

    @abstractmethod
    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and its state with current poses of everything visible; good until the next call."""

    def close(self) -> None:
        """Release what would outlast the worlds on their device."""

    @abstractmethod
    def model_digest(self) -> str:
        """Return a hash of the compiled model: equal for equal physics."""

    @abstractmethod
    def engine(self) -> str:
        """Return name and version of the physics engine."""
