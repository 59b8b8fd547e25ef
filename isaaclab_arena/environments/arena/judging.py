"""Judging and observing a batch after each step: on a GPU as graphs, where a task does both with tensors alone."""

from collections.abc import Mapping

import torch

from isaaclab_arena.environments.mdp.observations import ObservationTerm, read_terms
from isaaclab_arena.environments.mdp.task import Task, Verdict
from isaaclab_arena.interfaces.environment import SideBySide
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.replayed import Capture, Replayed


class Judging:
    """What a task says of all env slots and what policies see of them.

    Args:
        task: Whose.
        backend: The simulation.
        terms: What policies see, by name.
        device: Where they see it.
        capture: Captures the work of a task that is `Task.capturable`; see `Replayed`.
    """

    def __init__(
        self,
        task: Task,
        backend: Backend,
        terms: Mapping[str, ObservationTerm],
        device: torch.device,
        capture: Capture | None,
    ) -> None:
        self._task, self._backend, self._terms, self._device = task, backend, terms, device
        self._is_replayed = capture is not None and task.can_be_captured() and device == backend.device
        self._moved = torch.zeros(backend.num_envs, dtype=torch.bool, device=backend.device)
        name = task.spec.name
        self._judge = Replayed(self._judge_moved, capture, keeper=task, name=f"the verdict of '{name}'")
        self._read = Replayed(self._read_terms, capture, name=f"what is seen of '{name}'")

    def judge(self, moved: torch.Tensor) -> Verdict:
        """Return what the task thinks of the state, good until the next time.

        Args:
            moved: Env slots that made the step, and did not break down. Shape: (num_envs,), bool.
        """
        if not self._is_replayed:
            return self._task.judge(self._backend, moved)
        self._moved.copy_(moved)
        return self._judge()

    def observe(self, origin: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what policies see.

        Args:
            origin: Where from, None for the world's origin [m]. Shape: (num_envs, 3).
        """
        if not self._is_replayed or origin is not None:
            return read_terms(self._terms, self._backend, self._device, origin)
        seen = self._read()
        return seen.clone() if isinstance(seen, SideBySide) else {name: term.clone() for name, term in seen.items()}

    def forget(self) -> None:
        """Give back what was captured."""
        self._judge.forget()
        self._read.forget()

    def _judge_moved(self) -> Verdict:
        return self._task.judge(self._backend, self._moved)

    def _read_terms(self) -> dict[str, torch.Tensor]:
        return read_terms(self._terms, self._backend, self._device)
