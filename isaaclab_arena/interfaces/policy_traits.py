"""A policy as its caller knows it: the pictures that it is shown, its network, and its methods for annotations."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits  # noqa: F401  an earlier place of the traits
from isaaclab_arena.interfaces.specs import CAMERAS, ChunkTraits, Continuation, Pictures, pictures_of

# Pictures that readers announce: those that a policy asks for, and the form in which a reader gets them.


def announced_pictures(policy: PolicyBase, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
    """Return the env slots at whose pictures a policy looks next, None for all."""
    if "pictures_to_see" in policy.offers:
        return policy.pictures_to_see(env, starting)
    return () if policy.traits.pictures == "none" else None


def shown_to(policy: PolicyBase, env: Environment, observation: Observation) -> Observation:
    """Return an observation with its pictures in the form of a policy's traits."""
    if CAMERAS not in observation:
        return observation
    shown, form = dict(observation[CAMERAS]), policy.traits.pictures
    for camera, each in shown.items():
        if form == "announced":
            shown[camera] = pictures_of(each)
        elif isinstance(each, Pictures) and form == "all" and "pictures_to_see" not in policy.offers:
            # It announces nothing, so an env slot without a picture does not act.
            shown[camera] = each.frames.new_zeros((env.num_envs, *each.frames.shape[1:]))
            shown[camera][list(each.env_ids)] = each.frames
    return {**observation, CAMERAS: shown}


def seen_by(reader: str, cameras: Mapping[str, torch.Tensor | Pictures], announced: np.ndarray) -> dict[str, Pictures]:
    """Return the pictures that a reader has announced, of those that there are. Shape of the mask: (num_envs,)."""
    seen = {}
    for camera, shown in cameras.items():
        drawn = pictures_of(shown)
        frames, places = drawn.frames, np.flatnonzero(announced[list(drawn.env_ids)])
        if len(places) == 0:
            frames = frames[:0]
        elif len(places) < len(frames):
            frames = frames[torch.from_numpy(places).to(frames.device, non_blocking=True)]
        seen[camera] = Pictures(tuple(drawn.env_ids[place] for place in places), frames, camera, reader)
    return seen


def refuse_misread(error: AttributeError) -> None:
    """Raise `UnannouncedPictureError` if a reader took `Pictures` for the tensor of all env slots."""
    shown = error.obj
    if isinstance(shown, Pictures):
        raise UnannouncedPictureError(
            f"{shown.reader} looks at '{shown.camera}' as a tensor of all env slots without having announced it; "
            "docs/how_to/cameras.md says how pictures are announced, and read by env slot"
        ) from error


# Networks, which a policy asks in this process or in another one.

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
