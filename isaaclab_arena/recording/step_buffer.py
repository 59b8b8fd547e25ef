"""Where the steps of the episodes under way are kept: a few wide arrays, one write each per control step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Observation, StateTree


def flatten(tree: Observation | StateTree, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and tensor of every leaf of a nested dict: ``states/rigid_object/cube/root_pose``."""
    for name, value in tree.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            yield from flatten(dict(value), path)
        else:
            yield path, value


@dataclass(frozen=True, kw_only=True)
class _Column:
    """Where an array lies in its pack."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class _Pack:
    """Arrays of one dtype side by side: to copy twenty small arrays one by one would cost more than the physics."""

    def __init__(self, arrays: Mapping[str, torch.Tensor], num_envs: int, capacity: int) -> None:
        self.columns: list[_Column] = []
        start = 0
        for name, tensor in arrays.items():
            stop = start + tensor[0].numel()
            self.columns.append(_Column(name=name, start=start, stop=stop, shape=tuple(tensor.shape[1:])))
            start = stop
        dtype = torch.empty(0, dtype=next(iter(arrays.values())).dtype).numpy().dtype
        # The system gives memory to pages that are touched, so a long limit costs nothing for short episodes.
        self.values = np.empty((num_envs, capacity, start), dtype)

    def append(self, rows: np.ndarray, steps: np.ndarray, arrays: Mapping[str, torch.Tensor]) -> None:
        if steps.max(initial=0) >= self.values.shape[1]:
            self.values = np.concatenate([self.values, np.empty_like(self.values)], axis=1)
        flat = [arrays[column.name].reshape(len(self.values), -1) for column in self.columns]
        batch = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
        self.values[rows, steps] = batch.cpu().numpy()[rows]

    def take(self, env_id: int, length: int) -> Iterator[tuple[str, np.ndarray]]:
        for column in self.columns:
            values = self.values[env_id, :length, column.start : column.stop].copy()
            yield column.name, values.reshape(length, *column.shape)


class StepBuffer:
    """The steps of the episode under way in each row of a batch.

    Args:
        num_envs: Number of rows.
        capacity: Control steps that are expected at most; more are taken too.
    """

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._num_envs = num_envs
        self._capacity = max(1, capacity)
        self._lengths = np.zeros(num_envs, np.int64)
        self._packs: list[_Pack] | None = None

    def start(self, env_ids: Sequence[int]) -> None:
        """Forget the steps of the named rows."""
        self._lengths[list(env_ids)] = 0

    def append(self, running: torch.Tensor, arrays: Mapping[str, torch.Tensor]) -> None:
        """Add one control step of the running rows.

        Args:
            running: Shape: (num_envs,), bool.
            arrays: The same names, shapes and types at every call. Shape of each: (num_envs, ...).
        """
        if self._packs is None:
            self._packs = [_Pack(group, self._num_envs, self._capacity) for group in _grouped(arrays)]
        rows = np.flatnonzero(running.cpu().numpy())
        steps = self._lengths[rows]
        for pack in self._packs:
            pack.append(rows, steps, arrays)
        self._lengths[rows] += 1

    def take(self, env_id: int) -> dict[str, np.ndarray]:
        """Return the steps of a row's episode, copied. Shape of each: (length, ...)."""
        length = int(self._lengths[env_id])
        return dict(pair for pack in self._packs or () for pair in pack.take(env_id, length))


def _grouped(arrays: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Put vectors of one dtype together; images are large enough to stand alone."""
    groups: dict[object, dict[str, torch.Tensor]] = {}
    for name, tensor in arrays.items():
        key = tensor.dtype if tensor.ndim <= 2 else name
        groups.setdefault(key, {})[name] = tensor
    return list(groups.values())
