"""The protocol of environments of which a training keeps everything, to go on as if it had not stopped."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from isaaclab_arena.interfaces.environment import Observation


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
