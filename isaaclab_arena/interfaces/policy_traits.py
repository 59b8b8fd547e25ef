"""The promises of a policy, the facts about its chunks of actions, and the networks that policies ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Metric


@dataclass(frozen=True, kw_only=True)
class PolicyTraits:
    """Statements of a policy's author that cannot be measured.

    Attributes:
        reproducible: Whether an episode's actions follow from its observations and its own random stream alone, so
            that the same job gives the same bits after any other job and on any rank. Results then promise it, unless
            a probe with made-up observations shows the contrary.
        plan_because: The reason why a policy is not reproducible, in one line and with the way out; None if there is
            nothing more to say.
        batch_invariant: Whether the action in an env slot is the same to the last bit whatever the other env slots
            hold and however many there are. A network is not: its last digits change with the size of the batch, and
            on some processors with the place in it. A policy that is not batch-invariant is asked on a batch that is
            filled up until places make no difference; with ``--deterministic``, always on one size.
        serves_any_num_envs: Whether one object can serve environments of any ``num_envs``, one after the other,
            whatever its option of that name says. Consecutive jobs that differ only there then share it.
        uses_own_device: Whether the options ``policy_device`` and ``policy_device_id`` name a device of this machine,
            which is then checked before anything runs. A policy that asks a server may take them and ignore them.
        pictures: The form of each camera's term in the group ``camera_obs``. ``all``: a tensor of all env slots.
            ``announced``: `Pictures` of the env slots that ``pictures_to_see`` named. ``none``: it never looks, and
            nothing is drawn for it.
        remote: Whether the policy's network runs in another process, which other programs may ask too.
        sees_pictures: The first name of ``pictures``: False is ``none``.
        metrics: The declared ones among the numbers of `episode_metrics`.
    """

    reproducible: bool = False
    plan_because: str | None = None
    batch_invariant: bool = False
    serves_any_num_envs: bool = False
    uses_own_device: bool = True
    pictures: Literal["all", "announced", "none"] = "all"
    remote: bool = False
    sees_pictures: bool = True
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        if not self.sees_pictures:
            object.__setattr__(self, "pictures", "none")
        object.__setattr__(self, "sees_pictures", self.pictures != "none")


@dataclass(frozen=True, kw_only=True)
class ChunkTraits:
    """Facts about a policy whose chunks its caller plays.

    Attributes:
        played: Actions of a chunk that the policy itself plays before it asks its network again.
        predicted: Actions that the network predicts, at least as many.
        can_continue: Whether the network can be given a `Continuation`.
        picture_steps: Whose pictures a query shows: 0 is the present step, -1 the one before; none for no pictures.
    """

    played: int
    predicted: int
    can_continue: bool = False
    picture_steps: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The actions that new chunks continue: those that are planned already, from the step of the query on.

    Attributes:
        actions: Planned actions, zeros if none is. Shape: (n, predicted, action_dim), float32.
        weights: Weight of each action: 1 if it is played in any case, 0 if none is planned.
            Shape: (n, predicted), float32.
    """

    actions: torch.Tensor
    weights: torch.Tensor

    def of(self, places: Sequence[int]) -> Self:
        """Return the continuation of some of the chunks, by their places; one may be named several times."""
        return replace(self, actions=self.actions[list(places)], weights=self.weights[list(places)])


Entries: TypeAlias = Mapping[str, np.ndarray | Sequence[str]]
"""The entries of one question to a network, by name: arrays whose first dimension counts the entries, and texts, one
for each example."""


class Network(Protocol):
    """A network that keeps nothing from one call to the next: each answer follows from its entry alone.

    A policy's memory of an episode is no part of it, nor is a noise stream: a seed is part of the example.
    """

    @property
    def about(self) -> Mapping[str, Any]:
        """The facts about the network for a policy, in plain JSON values.

        ``slots_per_call`` is the number of entries in each call, None if the server may choose it.
        """
        ...

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the answers by name; the first dimension of each counts the entries."""
        ...


class NetworkElsewhere(Protocol):
    """Stands for a `Network` in another process, which several askers share."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The facts about the network; see `Network`."""
        ...

    @property
    def max_batch(self) -> int:
        """The number of entries that the process answers together at most."""
        ...

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        """Return the answers by name.

        Args:
            entries: Any number of entries.
            slots_per_call: Entries in each call of the network. Calls are filled up with entries of other askers, and
                if there are none, with copies.

        Raises:
            PolicyLostError: If the process takes too long, or is lost again and again over this query.
            DistributedError: If the rank that ran the process is gone.
            PolicyError: If the network cannot answer.
        """
        ...

    def close(self) -> None:
        """Announce that no question follows for now."""
        ...


# Methods of `PolicyBase` that a class defines together, for annotations.


class PlaysChunks(Protocol):
    """A policy that knows some of an env slot's next actions already."""

    def planned(self, env_id: int) -> torch.Tensor:
        """See `PolicyBase.planned`."""
        ...


class AnswersChunks(Protocol):
    """A policy whose chunks of actions can be played by its caller."""

    def chunk_traits(self) -> ChunkTraits:
        """See `PolicyBase.chunk_traits`."""
        ...

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """See `PolicyBase.look`."""
        ...

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """See `PolicyBase.chunks`."""
        ...


class AsksNetwork(Protocol):
    """A policy class whose network is apart from its memory, so that ranks can share one in a policy server."""

    def network(self) -> Network:
        """Return the network that this policy has loaded."""
        ...

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> Self:
        """Return a policy with a memory of its own that loads no network; ``options`` are those of `from_dict`."""
        ...
