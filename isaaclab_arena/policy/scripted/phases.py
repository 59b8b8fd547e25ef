"""The phases of a script as tensors, so that every env slot can look up its own."""

from collections.abc import Sequence

import torch

from isaaclab_arena.policy.scripted.scripts import Phase
from isaaclab_arena.sim.backend import Backend


class PhaseTables:
    """Tables with one entry per phase; `Phase` explains the values.

    Args:
        phases: The phases of a script.
        roles: Every landmark that they name; ``role``, ``toward`` and ``carries`` are indices into it, 0 for none.
        backend: The backend, for its device.
        speed: Factor on ``step_m``.
    """

    def __init__(self, phases: Sequence[Phase], roles: Sequence[str], backend: Backend, *, speed: float) -> None:
        self._backend = backend
        place = {"": 0, **{role: index for index, role in enumerate(roles)}}
        self.role = self._table([place[phase.role] for phase in phases])
        self.toward = self._table([place[phase.toward] for phase in phases])
        self.any_toward = any(phase.toward for phase in phases)
        self.carries = self._table([place[phase.carries] for phase in phases])
        self.carrying = self._table([bool(phase.carries) for phase in phases])
        self.retry = self._table([phase.retry for phase in phases])
        self.follows_pose = self._table([phase.follow == "pose" for phase in phases])
        self.follows_place = self._table([phase.follow != "nothing" for phase in phases])
        self.offset = self._table([phase.offset for phase in phases])
        self.along_m = self._table([phase.along_m for phase in phases])
        self.ahead_m = self._table([phase.ahead_m for phase in phases])
        self.width_m = self._table([phase.width_m for phase in phases])
        self.step_m = self._table([phase.step_m for phase in phases]) * speed
        self.tolerance_m = self._table([phase.tolerance_m for phase in phases])
        self.min_steps = self._table([phase.min_steps for phase in phases])
        self.max_steps = self._table([phase.max_steps for phase in phases])

    def _table(self, values: Sequence[object]) -> torch.Tensor:
        table = torch.tensor(values, device=self._backend.device)
        return table.to(self._backend.qpos.dtype) if table.is_floating_point() else table
