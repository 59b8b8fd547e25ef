"""Start states on their way to a device: put together on the host in one array, and sent there at once."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch

from isaaclab_arena.sim.backend import StartState
from isaaclab_arena.sim.model_names import ModelNames
from isaaclab_arena.sim.start_states import write_starts


class StartSender:
    """Makes the states of worlds of their start states.

    Args:
        names: Where the model keeps what start states name.
        at_rest: What a world is where a start state does not say. Shape of each: (1, ...), float32, all on one device.
    """

    def __init__(self, names: ModelNames, at_rest: Mapping[str, torch.Tensor]) -> None:
        self._names = names
        self._shapes = {name: tuple(values.shape[1:]) for name, values in at_rest.items()}
        self._rest = torch.cat([values.reshape(1, -1) for values in at_rest.values()], dim=1).cpu()
        self._device = next(iter(at_rest.values())).device

    def send(self, starts: Sequence[StartState]) -> Mapping[str, torch.Tensor]:
        """Return the state of worlds at their start, on the device. Shape of each: (len(starts), ...), float32."""
        # Memory that the system cannot move is copied without the process waiting for it.
        packed = torch.empty((len(starts), self._rest.shape[1]), pin_memory=self._device.type == "cuda")
        packed.copy_(self._rest.expand_as(packed))
        host = {name: values.numpy() for name, values in self._fields(packed).items()}
        write_starts(starts, self._names, host, np.arange(len(starts)))
        return self._fields(packed.to(self._device, non_blocking=True))

    def _fields(self, packed: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of the fields that lie side by side for each world."""
        parts = packed.split([prod(shape) for shape in self._shapes.values()], dim=1)
        # Not reshaped, which might copy: what is written into these goes into the packed tensor.
        return {
            name: part.unflatten(1, shape) if len(shape) > 1 else part.view(len(packed), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
