"""The arrays of environments and policies: their shapes, bounds and names, trees of them, and chunks of actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array, without its leading ``num_envs`` dimension.

    Attributes:
        shape: Shape in one env slot.
        dtype: Element type.
        low: Lowest value of each element, flattened, or None where unbounded.
        high: Highest value of each element, flattened, or None where unbounded.
        names: One name per element of the last dimension, for example joint names.
        unit: Unit of the elements, for example ``rad``.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    names: tuple[str, ...] | None = None
    unit: str | None = None

    def space(self, *batch: int) -> "gymnasium.spaces.Box":
        """Return it as a space of Gymnasium, with dimensions of a batch before its own. Shape: (*batch, *shape)."""
        import gymnasium  # noqa: PLC0415  takes a while, and specs are read without it

        shape = (*batch, *self.shape)
        low = np.float32(-np.inf) if self.low is None else np.asarray(self.low, np.float32).reshape(self.shape)
        high = np.float32(np.inf) if self.high is None else np.asarray(self.high, np.float32).reshape(self.shape)
        return gymnasium.spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=np.float32)


ObservationSpec: TypeAlias = Mapping[str, "ArraySpec | ObservationSpec"]
"""Nested dict of `ArraySpec`: group, then term."""

Observation: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: group (``policy``, ``camera_obs``), then term."""

StateTree: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: the simulator's state, for recordings."""

HoldAction: TypeAlias = tuple[float | None, ...] | str | None
"""The action that keeps a robot at its target: a number for each element, None for an element that stays as it was in
the last action; ``last`` for all of the last action; None for an environment that declares nothing."""

HOLDS_LAST = "last"
"""The `HoldAction` of an environment whose actions are targets."""

VIEWPORT = "viewport"
"""The camera that shows a person the whole scene; no policy sees it."""


class SideBySide(dict[str, torch.Tensor]):
    """Terms of an observation that lie side by side in memory, so that one copy keeps all of them.

    Args:
        together: All terms. Shape: (num_envs, width).
        widths: Name to width of each term, in order.
    """

    def __init__(self, together: torch.Tensor, widths: Mapping[str, int]) -> None:
        super().__init__(zip(widths, together.split_with_sizes(list(widths.values()), dim=1), strict=True))
        self.together = together

    def clone(self) -> "SideBySide":
        """Return a copy, side by side too."""
        return SideBySide(self.together.clone(), {name: term.shape[1] for name, term in self.items()})


# Chunks of actions: those that a policy's network predicts at once.


@dataclass(frozen=True, kw_only=True)
class ChunkTraits:
    """Facts about a policy whose chunks its caller plays."""

    played: int  # actions of a chunk that the policy itself plays before it asks its network again
    predicted: int  # actions that the network predicts, at least as many
    can_continue: bool = False  # the network can be given a `Continuation`
    # Whose pictures a query shows: 0 is the present step, -1 the one before; none for no pictures.
    picture_steps: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The actions that new chunks continue: those that are planned already, from the step of the query on."""

    actions: torch.Tensor  # zeros if none is planned; shape (n, predicted, action_dim), float32
    # 1 for an action that is played in any case, 0 if none is planned; shape (n, predicted), float32.
    weights: torch.Tensor

    def of(self, places: Sequence[int]) -> Self:
        """Return the continuation of some of the chunks, by their places; one may be named several times."""
        return replace(self, actions=self.actions[list(places)], weights=self.weights[list(places)])
