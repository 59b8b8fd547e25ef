"""Keeps the control steps of the episodes under way in a ring of memory, with a few writes per step."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu


class StepRing:
    """Keeps the control steps of all env slots, back to the start of the oldest episode under way.

    A step is kept as a few packs: numbers of one type side by side. Copying each tensor on its own would cost more than
    the physics. The episode of an env slot is every step from its start until it is taken. Steps come as tensors, of a
    GPU many at once, or are written by the caller, where each pack is one copy of what the processor still has at hand.

    Args:
        num_envs: Number of env slots.
        capacity: Expected length of the longest episode, in control steps; longer episodes are kept too.

    Attributes:
        capacity: Control steps that the memory holds now.
    """

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._num_envs = num_envs
        self.capacity = max(1, capacity)
        self._packs: list[_Pack] = []
        self._next = 0
        self._origin = 0
        self._first: dict[int, int] = {}
        self._room_until = 0
        self._each_step: list[tuple[np.ndarray, ...]] = []

    def start(self, env_ids: Iterable[int]) -> None:
        """Begin an episode in the named env slots with the next step."""
        self._first.update(dict.fromkeys(env_ids, self._next))

    def next_places(self, packs: Sequence[tuple[int, np.dtype]]) -> Sequence[np.ndarray]:
        """Begin a control step, and return where its packs are to be written before anything else is asked.

        Args:
            packs: Width and type of each, the same at every call.

        Returns:
            Shape of each: (num_envs, width).
        """
        if not self._packs:
            self._packs = [_Pack(width, dtype, self._num_envs, self.capacity) for width, dtype in packs]
            self._each_step = self._places()
        if self._next >= self._room_until:
            self._make_room(1)
        position = (self._next - self._origin) % self.capacity
        self._next += 1
        return self._each_step[position]

    def fill(self, pack: int, columns: slice, steps: np.ndarray) -> None:
        """Write columns of the steps that were begun last.

        Args:
            pack: Number of the pack.
            columns: Where in it.
            steps: What stands there. Shape: (num_steps, num_envs, width).
        """
        array, position = self._packs[pack].array, (self._next - len(steps) - self._origin) % self.capacity
        before_the_end = array[position : position + len(steps), :, columns]
        before_the_end[:] = steps[: len(before_the_end)]
        if len(before_the_end) < len(steps):
            array[: len(steps) - len(before_the_end), :, columns] = steps[len(before_the_end) :]

    def append(self, packs: Sequence[Sequence[torch.Tensor]], num_steps: int = 1) -> None:
        """Keep control steps.

        Args:
            packs: At every call the same number of packs, and in each the tensors of one step after the other: for each
                step the same number, of the same types. Some or all of them may be side by side already, along the
                second dimension. Shape of each tensor: (num_envs, ...).
            num_steps: How many steps those are; at least one.
        """
        if not self._packs:
            widths = [sum(tensor[0].numel() for tensor in tensors) // num_steps for tensors in packs]
            types = [torch.empty(0, dtype=tensors[0].dtype).numpy().dtype for tensors in packs]
            self._packs = [_Pack(*each, self._num_envs, self.capacity) for each in zip(widths, types, strict=True)]
        if self._next + num_steps > self._room_until:
            self._make_room(num_steps)
        position = (self._next - self._origin) % self.capacity
        joined = on_cpu([_joined(tensors) for tensors in packs])
        for pack, tensor in zip(self._packs, joined, strict=True):
            pack.write(position, tensor, num_steps)
        self._next += num_steps

    def take(self, env_id: int) -> list[np.ndarray]:
        """End an env slot's episode and return its steps, which the next steps may change.

        Returns:
            One array per pack, its tensors flattened and side by side. Shape of each: (length, width).
        """
        first = self._first.pop(env_id)
        position, length = (first - self._origin) % self.capacity, self._next - first
        return [pack.read(env_id, position, length) for pack in self._packs]

    def _make_room(self, num_steps: int) -> None:
        """Double the memory until the next steps take the place of none that is still needed."""
        oldest = min(self._first.values(), default=self._next)
        while self._next + num_steps - oldest > self.capacity:
            turn = (self._next - self._origin) % self.capacity
            for pack in self._packs:
                pack.double(turn)
            self._origin = self._next - self.capacity
            self.capacity *= 2
            self._each_step = self._places() if self._each_step else []
        self._room_until = oldest + self.capacity

    def _places(self) -> list[tuple[np.ndarray, ...]]:
        """Return where each step's packs are written."""
        return list(zip(*(pack.array for pack in self._packs), strict=True))


class _Pack:
    """One pack, step after step.

    Attributes:
        array: All steps. Shape: (capacity, num_envs, width).
    """

    def __init__(self, width: int, dtype: np.dtype, num_envs: int, capacity: int) -> None:
        self._hold(_untouched((capacity, num_envs, width), dtype))

    def write(self, position: int, joined: torch.Tensor, num_steps: int) -> None:
        steps = joined.reshape(len(joined), num_steps, self._values.shape[2]).transpose(0, 1)
        before_the_end = min(num_steps, len(self._values) - position)
        self._values[position : position + before_the_end].copy_(steps[:before_the_end])
        if before_the_end < num_steps:
            self._values[: num_steps - before_the_end].copy_(steps[before_the_end:])

    def read(self, env_id: int, position: int, length: int) -> np.ndarray:
        before_the_end = self.array[position : position + length, env_id]
        if len(before_the_end) == length:
            return before_the_end
        return np.concatenate((before_the_end, self.array[: length - len(before_the_end), env_id]))

    def double(self, turn: int) -> None:
        before = self._values
        self._hold(_untouched((2 * len(before), *before.shape[1:]), self.array.dtype))
        self._values[: len(before) - turn] = before[turn:]
        self._values[len(before) - turn : len(before)] = before[:turn]

    def _hold(self, values: torch.Tensor) -> None:
        self._values = values
        self.array = values.numpy()


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors flattened and side by side. Shapes: (num_envs, ...) -> (num_envs, width)."""
    flat = [tensor if tensor.ndim == 2 else tensor.reshape(len(tensor), -1) for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def _untouched(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return memory that nothing was written to, on the CPU.

    The system gives memory to pages that are touched, so a long limit costs nothing for short episodes. PyTorch fills
    new tensors with NaN where it calculates deterministically, and so touches all of it; NumPy does not.
    """
    return torch.from_numpy(np.empty(shape, dtype))
