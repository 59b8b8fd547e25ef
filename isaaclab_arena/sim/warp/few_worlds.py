"""A few worlds out of thousands, as a renderer sees them: a film of four episodes must not render four thousand."""

import copy

import mujoco_warp
import torch
import warp

from isaaclab_arena.sim.visible_world import VISIBLE_FIELDS, VISIBLE_POSES
from isaaclab_arena.sim.warp.backend import WarpBackend


class FewWorlds:
    """Copies of what is visible of some worlds, on their device.

    Args:
        backend: All worlds.
        num_worlds: How many can be shown at once.
    """

    def __init__(self, backend: WarpBackend, num_worlds: int) -> None:
        self._backend = backend
        self.num_worlds = num_worlds
        with backend.launcher.compiling():
            # Nothing ever touches there, and room for contacts would be most of it.
            self._data = mujoco_warp.make_data(backend.model, nworld=num_worlds, nconmax=1, njmax=1)
        self._own: dict[str, warp.array] = {}

    def show(self, env_ids: torch.Tensor) -> tuple[mujoco_warp.Model, mujoco_warp.Data]:
        """Return worlds as they are now, good until the next call; those behind them are of no interest.

        They are in the same memory each time, as a graph that renders them needs it.

        Args:
            env_ids: At most ``num_worlds`` of them. Shape: (n,), int64.
        """
        model, data = self._backend.warp_worlds
        for name in VISIBLE_POSES:
            warp.to_torch(getattr(self._data, name))[: len(env_ids)] = warp.to_torch(getattr(data, name))[env_ids]
        shown = copy.copy(model)
        for name in VISIBLE_FIELDS:
            array = getattr(model, name)
            if array.shape[0] > 1:
                if name not in self._own:
                    shape = (self.num_worlds, *array.shape[1:])
                    self._own[name] = warp.zeros(shape, dtype=array.dtype, device=array.device)
                warp.to_torch(self._own[name])[: len(env_ids)] = warp.to_torch(array)[env_ids]
                setattr(shown, name, self._own[name])
        return shown, self._data
