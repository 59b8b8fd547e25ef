"""Ask a policy of LeRobot in the run's policy server: the network that is there, and what stands for it on a rank."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena.policy.lerobot.network import Acted, Description, LeRobotNetwork

_SHOWN, _WORDS, _SEEDS, _ACTIONS, _MEMORIES = "shown.", "words", "noise_seeds", "actions", "memories"


class SharedNetwork:
    """A policy of LeRobot in its worker, as a `Network`. What it remembers is part of the entry and of the answer.

    Args:
        network: The policy's worker.
    """

    def __init__(self, network: LeRobotNetwork) -> None:
        self._network = network
        self.about: Mapping[str, Any] = {"slots_per_call": None, **asdict(network.description)}

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the next actions; see `Network.answer`."""
        shown = {name[len(_SHOWN) :]: np.asarray(entries[name]) for name in entries if name.startswith(_SHOWN)}
        seeds = [int(seed) for seed in entries[_SEEDS]]
        memories = [np.asarray(memory) for memory in entries.get(_MEMORIES, ())]
        acted = self._network.actions(shown, list(map(str, entries[_WORDS])), seeds, memories)
        if not acted.memories:
            return {_ACTIONS: acted.actions}
        return {_ACTIONS: acted.actions, _MEMORIES: _of_one_length(acted.memories, self._network.description)}


class NetworkOnServer:
    """Stands for a `LeRobotNetwork` that a policy server has.

    Args:
        network: The network there.

    Attributes:
        description: What it says of itself. A call has always one size there.
    """

    def __init__(self, network: NetworkElsewhere) -> None:
        self._network = network
        said = {name: value for name, value in network.about.items() if name != "slots_per_call"}
        self.description = replace(Description(**said), max_batch=network.max_batch)

    def actions(
        self,
        shown: Mapping[str, np.ndarray],
        words: Sequence[str],
        noise_seeds: Sequence[int],
        memories: Sequence[np.ndarray] = (),
        *,
        slots_per_call: int | None = None,
    ) -> Acted:
        """Return what is done next in some env slots; see `LeRobotNetwork.actions` and `NetworkElsewhere.ask`."""
        entries: dict[str, np.ndarray | Sequence[str]] = {f"{_SHOWN}{name}": values for name, values in shown.items()}
        entries |= {_WORDS: list(words), _SEEDS: np.array(noise_seeds, np.int64)}
        if self.description.remembers:
            entries[_MEMORIES] = _of_one_length(memories, self.description)
        answers = self._network.ask(entries, slots_per_call=slots_per_call or len(words))
        return Acted(actions=answers[_ACTIONS], memories=[*answers.get(_MEMORIES, ())])

    def close(self) -> None:
        """Say that nothing will be asked for now."""
        self._network.close()


def _of_one_length(memories: Sequence[np.ndarray], description: Description) -> np.ndarray:
    """Return memories with zeros behind them, which say nothing. Shape: (n, memory_bytes), uint8.

    Raises:
        PolicyError: If one is longer than a policy server takes.
    """
    size, longest = description.memory_bytes, max(map(len, memories))
    if longest > size:
        raise PolicyError(
            f"the policy remembers more in the course of an episode, {longest} bytes instead of {size}, and a policy "
            "server takes what has one size; leave policy_server out"
        )
    return np.stack([np.pad(memory, (0, size - len(memory))) for memory in memories])
