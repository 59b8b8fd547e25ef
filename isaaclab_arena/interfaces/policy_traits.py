"""The promises of a policy, and the protocols that it may offer besides the methods of `PolicyBase`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation


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
        sees_pictures: Whether it ever looks at the group ``camera_obs``. For a policy that never does nothing is drawn.
            One that looks now and then is `AnnouncesPictures`.
        is_lent: Whether the class stands for one object of the caller, which the caller uses further and closes.
    """

    reproducible: bool = False
    plan_because: str | None = None
    batch_invariant: bool = False
    serves_any_num_envs: bool = False
    uses_own_device: bool = True
    sees_pictures: bool = True
    is_lent: bool = False


@runtime_checkable
class SharesNetwork(Protocol):
    """A policy of which there can be several with one network in memory."""

    def with_own_memory(self) -> Self | None:
        """Return a policy with this one's network and a memory of its own; None if this object cannot be shared."""
        ...


@runtime_checkable
class ActsInSome(Protocol):
    """A policy that can act in some env slots while others wait, as clients of a server do."""

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as ``get_action`` does, and leave the memory of all other env slots as it is.

        Args:
            env: The environment.
            observation: Nested dict of tensors, batched by environment; zeros in the other env slots.
            env_ids: Env slots that act.

        Returns:
            Shape: (num_envs, action_dim). The values in the other env slots mean nothing.
        """
        ...


@runtime_checkable
class PlaysChunks(Protocol):
    """A policy that knows some of an env slot's next actions already, whatever the observations until then."""

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the actions that follow the one that it returned last. Shape: (n, action_dim), n may be 0."""
        ...


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


@runtime_checkable
class AnswersChunks(Protocol):
    """A policy whose chunks of actions can be played by its caller.

    `PolicyBase.start_episodes` is called as ever, and `look` once per control step.
    """

    def chunk_traits(self) -> ChunkTraits:
        """Return the facts about its chunks.

        Raises:
            ConfigError: If the options combine chunks in a way that its caller cannot.
        """
        ...

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take the observation of some env slots, in every control step that they make, before `chunks`."""
        ...

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the network for the next chunks of some env slots.

        Args:
            env: The environment.
            observation: Its present observation.
            env_ids: The env slots, ascending.
            going_on: The actions that their chunks continue, None for none.

        Returns:
            Shape: (len(env_ids), predicted, action_dim), float32, on the CPU.
        """
        ...


@runtime_checkable
class StatesChunks(Protocol):
    """A policy class that can tell the facts about its chunks before anything is loaded or asked.

    Unusable chunks are then refused at once, instead of as a failed job.
    """

    @classmethod
    def stated_chunks(cls, config: Any) -> ChunkTraits:
        """Return the facts about its chunks at best: the most actions that it may predict, and its possible abilities.

        Args:
            config: Options of the job.

        Raises:
            ConfigError: If the options combine chunks in a way that its caller cannot.
        """
        ...


@runtime_checkable
class MeasuresEpisodes(Protocol):
    """A policy that adds numbers of its own to the records of episodes."""

    def episode_metrics(self, env_id: int) -> Mapping[str, float]:
        """Return the numbers of the episode that ends in an env slot, by name; asked before `end_episodes`."""
        ...


@runtime_checkable
class DividesCalls(Protocol):
    """A policy that divides its env slots into calls of one size."""

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return the number of env slots in every call, None if one call has all of them.

        Args:
            num_envs: Number of env slots of the environment as this policy sees it.
        """
        ...

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Make calls of another size from now on.

        Args:
            num_slots: Env slots in every call, at least `slots_per_call`; None for just that.
        """
        ...


@runtime_checkable
class StatesModel(Protocol):
    """A policy that asks a server, which states its model."""

    def stated_model(self) -> str | None:
        """Return the model that the server states, ``unknown`` if it states none, None if no server is asked."""
        ...


@runtime_checkable
class AnnouncesPictures(Protocol):
    """A policy that does not look at the pictures of every env slot in every step.

    Only the announcements of the class that defines ``get_action`` count: a class that overrides it, and announces
    nothing, gets every picture.
    """

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots at whose pictures the next ``get_action`` looks; others' need not be drawn.

        Asked before each ``reset`` and each ``step`` of the environment.

        Args:
            env: The environment.
            starting: Env slots in which an episode is about to begin; none before a step.

        Returns:
            The env slots, with those of ``starting`` that are looked at; None for all.
        """
        ...


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


@runtime_checkable
class AsksNetwork(Protocol):
    """A policy class whose network is apart from its memory, so that ranks can share one."""

    def network(self) -> Network:
        """Return the network that this policy has loaded."""
        ...

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> Self:
        """Return a policy with a memory of its own that loads no network and asks one elsewhere.

        Args:
            options: The options of `PolicyBase.from_dict`.
            network: The network to ask.
        """
        ...
