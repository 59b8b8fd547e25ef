"""The protocols of environments that are recorded, started again, or kept whole by a training."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree
from isaaclab_arena.interfaces.episode import Conditions

# The protocols of environments whose state can be recorded, and of those that start a recorded episode again.


@runtime_checkable
class Recordable(Protocol):
    """An environment that shows the state of its simulator; recordings of others hold no states."""

    def state(self) -> StateTree:
        """Return the simulator's state in Isaac Lab's layout, copied.

        ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
        ``rigid_object/<name>/{root_pose,root_velocity}``; poses are (num_envs, 7), position [m] then quaternion
        w x y z.
        """
        ...


@runtime_checkable
class PartwiseRecordable(Recordable, Protocol):
    """A recordable environment that lets a recorder copy a few tensors per step, and make states once per episode."""

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return what `state` is made of: views of the simulation's memory, the same ones at every call.

        The next `step` or `reset` changes their values.

        Returns:
            All of one type. Shape of each: (num_envs, n).
        """
        ...

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return `state` as it was when copies of `state_parts` were made, in arrays, to the last bit.

        Args:
            parts: The parts side by side, of any env slots and moments. Shape: (n, width).

        Returns:
            As `state` has it; it may share memory with ``parts``. Shape of each: (n, ...).
        """
        ...


@runtime_checkable
class Restorable(Protocol):
    """An environment that starts a recorded episode again bit for bit, and not only from its conditions."""

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        """Return what restores each of some env slots bit for bit; recorded once, at the start of their episodes.

        Args:
            env_ids: The env slots.
        """
        ...

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again in the named env slots.

        Args:
            env_ids: Env slots to start, ascending. Shape: (n,), int64.
            conditions: What each of them started from, in the same order.
            states: What `episode_states` returned for each; empty where that was not recorded.

        Returns:
            The observation of all env slots.
        """
        ...


def episode_states_of(environment: Environment, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
    """Return what restores each of some env slots bit for bit, empty where the environment is not `Restorable`."""
    return environment.episode_states(env_ids) if isinstance(environment, Restorable) else [{}] * len(env_ids)


# The protocol of environments of which a training keeps everything, to go on as if it had not stopped.


@runtime_checkable
class Snapshottable(Protocol):
    """An environment that can be put back where it was; a training in others begins new episodes when it resumes."""

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return everything that the future of all env slots depends on, copied; None where its options forbid it."""
        ...

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Put every env slot where it was when `snapshot` was taken, of this or of an equal environment.

        Returns:
            The observation of all env slots, bit for bit the last one before the snapshot.
        """
        ...
