"""Read the states of one episode by name, moment after moment, as tasks read those of many env slots."""

from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeVar

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.sim.model_names import ModelNames
from isaaclab_arena.sim.named_state import NamedState

MOMENT_FIELDS = ("qpos", "qvel", "ctrl", "sensordata", "site_xpos")
"""What of a state can be kept of each moment."""

_Array = TypeVar("_Array", np.ndarray, torch.Tensor)


class Moments(NamedState):
    """The states of one episode; where a `NamedState` has env slots, it has moments.

    Args:
        names: Where named things are.
        parts: ``qpos`` of each moment, and whatever else of `MOMENT_FIELDS` is kept. Shape of each: (moments, width).
        standing: Positions of the bodies at the end, for those that do not move [m]. Shape: (nbody, 3).
    """

    def __init__(self, names: ModelNames, parts: Mapping[str, torch.Tensor], standing: torch.Tensor) -> None:
        self.names, self.device = names, torch.device("cpu")
        self._standing = standing
        for name, part in parts.items():
            setattr(self, name, part.reshape(len(part), -1, 3) if name == "site_xpos" else part)

    def __len__(self) -> int:
        return len(self.qpos)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not kept; anything else is found without this."""
        raise AttributeError(f"moments have no '{name}'; a task names what they are to keep of a state: moment_fields")

    def body_position(self, body: str) -> torch.Tensor:
        """Return where a thing is that is loose or does not move [m]. Shape: (moments, 3)."""
        pose = self._pose(body)
        return self._standing[self.names.bodies[body]].expand(len(self), 3) if pose is None else pose[:, :3]

    def body_orientation(self, body: str) -> torch.Tensor:
        """Return how a loose thing is turned. Shape: (moments, 4).

        Raises:
            KeyError: If it has no free joint.
        """
        pose = self._pose(body)
        if pose is None:
            raise KeyError(f"{body} is not loose")
        return pose[:, 3:]

    def _pose(self, body: str) -> torch.Tensor | None:
        joint = self.names.free_joints.get(body)
        return None if joint is None else self.joint_position(joint)


class MomentRing:
    """Keeps the last moments of all env slots, with one write per control step.

    Args:
        state: The simulation.
        num_envs: Number of env slots.
        capacity: Control steps of the longest episode.
        fields: What of a state is kept: ``qpos``, and more of `MOMENT_FIELDS`.
    """

    def __init__(
        self, state: NamedState, *, num_envs: int, capacity: int, fields: Sequence[str] = MOMENT_FIELDS
    ) -> None:
        self._state = state
        kept = {name: getattr(state, name) for name in fields}
        # Views of the simulation's own memory, which it renews with every step.
        self._parts = [field.view(num_envs, -1) if field.ndim == 3 else field for field in kept.values()]
        self._widths = {name: part.shape[1] for name, part in zip(kept, self._parts, strict=True)}
        width = sum(self._widths.values())
        self._steps = state.qpos.new_empty((capacity, num_envs, width))
        # Right after the physics each call costs several times what it does elsewhere, so the views are made here, and
        # where it can NumPy copies, which takes half of torch's time.
        self._each_step = self._steps.unbind(0)
        self._starts = state.qpos.new_empty((num_envs, width))
        self._on_host = self._steps.is_cpu
        self._host_parts = [part.numpy() for part in self._parts if part.shape[1]] if self._on_host else []
        self._each_host_step = [step.numpy() for step in self._each_step] if self._on_host else []
        self._first = [0] * num_envs
        self._next = 0

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin episodes in env slots that were just reset."""
        for env_id in env_ids:
            self._first[env_id] = self._next
        if self._on_host:
            starts = self._starts.numpy()
            for env_id in env_ids:
                np.concatenate([part[env_id] for part in self._host_parts], out=starts[env_id])
        else:
            slots = torch.tensor(env_ids, dtype=torch.int64).to(self._starts.device, non_blocking=True)
            self._starts[slots] = torch.cat(self._parts, dim=1)[slots]

    def keep(self) -> None:
        """Keep the moment after a control step."""
        place = self._next % len(self._each_step)
        if self._on_host:
            np.concatenate(self._host_parts, axis=1, out=self._each_host_step[place])
        else:
            torch.cat(self._parts, dim=1, out=self._each_step[place])
        self._next += 1

    def take_back(self) -> None:
        """Forget the last control step, because it is made again."""
        self._next -= 1

    def moments(self, env_ids: Sequence[int]) -> list[Moments]:
        """Return the moments of the episodes in some env slots, each with its start first, read from a GPU together."""
        there = [self._state.xpos[env_id] for env_id in env_ids]
        if self._on_host:
            starts, steps, read = self._starts.numpy(), self._steps.numpy(), iter(there)
            numbers = [_by_number([starts[env_id : env_id + 1], *self._since(env_id, steps)]) for env_id in env_ids]
        else:
            kept = [(self._starts[env_id : env_id + 1], *self._since(env_id, self._steps)) for env_id in env_ids]
            read = iter(on_cpu([*(part for parts in kept for part in parts), *there]))
            numbers = [_by_number([next(read).numpy() for _ in parts]) for parts in kept]
        names, widths = list(self._widths), list(self._widths.values())
        return [
            Moments(self._state.names, dict(zip(names, each.split(widths, dim=1), strict=True)), standing)
            for each, standing in zip(numbers, read, strict=True)
        ]

    def _since(self, env_id: int, steps: _Array) -> list[_Array]:
        """Return the control steps of an env slot's episode in order, in up to two parts. Shape of each: (n, width)."""
        first = self._first[env_id]
        begin, end = first % len(steps), self._next % len(steps)
        if self._next == first:
            return []
        if begin < end:
            return [steps[begin:end, env_id]]
        return [part for part in (steps[begin:, env_id], steps[:end, env_id]) if len(part)]


def _by_number(parts: Sequence[np.ndarray]) -> torch.Tensor:
    """Return parts as one, with each number's moments beside one another, as facts are told number by number.

    NumPy copies them in this thread; torch would wake others for it, which takes longer than the copying.
    """
    copied = np.empty((parts[0].shape[1], sum(map(len, parts))), parts[0].dtype)
    at = 0
    for part in parts:
        copied[:, at : at + len(part)] = part.T
        at += len(part)
    return torch.from_numpy(copied).T
