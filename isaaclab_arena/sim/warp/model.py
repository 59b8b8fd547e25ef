"""MuJoCo-Warp's model with values that differ from world to world."""

from collections.abc import Sequence

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.device_reads import on_device
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.model_changes import ModelChange, changed_entries

_FOLLOWING = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "tendon_length0"),
    *("actuator_acc0", "geom_rbound", "geom_aabb", "geom_size", "eq_data"),
    *("cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0", "light_dir0"),
)
"""Fields that `mujoco_warp.set_const` computes from others, so that they differ where those do."""


_SHARED = frozenset({"geom_priority"})
"""Fields of which MuJoCo-Warp has one for all worlds."""


class VariedModel:
    """Which fields of a model differ from world to world, and what they are there.

    Args:
        model: The compiled model.
        put: The same model on Warp's device.
        num_envs: Number of worlds.

    Attributes:
        fields: Names of the fields that have been changed in some world, and of those that follow from them.
    """

    def __init__(self, model: mujoco.MjModel, put: mujoco_warp.Model, num_envs: int) -> None:
        self._model = model
        self._put = put
        self._num_envs = num_envs
        self._changed: set[str] = set()
        self.fields: tuple[str, ...] = ()

    def shared_among(self, names: set[str]) -> set[str]:
        """Return those fields of which no world has had a value of its own yet."""
        return names - self._changed

    def widen(self, names: set[str]) -> None:
        """Give each world values of its own of these fields, and of those that follow from any; the arrays are new."""
        self._changed |= names
        following = {name for name in _FOLLOWING if hasattr(self._model, name) and hasattr(self._put, name)}
        self.fields = tuple(sorted(self._changed | following))
        for name in (*self._changed, *_FOLLOWING):
            array = getattr(self._put, name, None)
            if array is None or name in _SHARED or array.shape[0] == self._num_envs:
                continue
            per_world = np.repeat(array.numpy()[:1], self._num_envs, axis=0)
            setattr(self._put, name, warp.array(per_world, dtype=array.dtype, device=array.device))

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Give worlds values of their own, those of an earlier call forgotten; what follows from them is not renewed.

        Args:
            env_ids: Worlds. Shape: (n,), int64.
            changes: One list per world, in the same order, of fields that were widened.

        Raises:
            EnvironmentBuildError: If worlds disagree about a field of which MuJoCo-Warp has one for all.
        """
        wanted = {
            name: np.repeat(np.asarray(getattr(self._model, name))[None], len(changes), axis=0)
            for name in self._changed
        }
        for changed in changed_entries(changes):
            per_world = wanted[changed.field]
            per_world[changed.worlds, changed.entry] = changed.values.reshape(-1, *per_world.shape[2:])
        # A world in which nothing at all varies asks for nothing.
        asking = np.array([bool(own) for own in changes])
        for name in wanted.keys() & _SHARED:
            self._set_for_all(name, warp.to_torch(getattr(self._put, name)), wanted.pop(name)[asking])
        put = [warp.to_torch(getattr(self._put, name)) for name in wanted]
        own = [
            torch.from_numpy(per_world.reshape(len(changes), *values.shape[1:])).to(values.dtype)
            for per_world, values in zip(wanted.values(), put, strict=True)
        ]
        for values, there in zip(put, on_device(own, env_ids.device), strict=True):
            values[env_ids] = there

    def field(self, name: str) -> np.ndarray:
        """Return a field in every world, copied. Shape: (num_envs, ...)."""
        shared = np.asarray(getattr(self._model, name))
        if name in self.fields:
            own = getattr(self._put, name).numpy()
            own = own.reshape(-1, *shared.shape).astype(shared.dtype)
        else:
            own = shared[None]
        return np.array(np.broadcast_to(own, (self._num_envs, *shared.shape)))

    def _set_for_all(self, name: str, values: torch.Tensor, per_world: np.ndarray) -> None:
        if len(per_world) == 0:
            return
        if (per_world != per_world[0]).any():
            raise EnvironmentBuildError(
                f"MuJoCo-Warp has one '{name}' for all worlds, and they are to differ; use the backend 'mujoco'"
            )
        values.copy_(torch.from_numpy(per_world[0].reshape(values.shape)).to(values.device, values.dtype))
