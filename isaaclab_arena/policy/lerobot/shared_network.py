"""Ask a policy of LeRobot in the run's policy server: the network that is there, and what stands for it on a rank."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena.policy.lerobot.network import Description, LeRobotNetwork

_SHOWN, _WORDS, _SEEDS, _ACTIONS = "shown.", "words", "noise_seeds", "actions"


class SharedNetwork:
    """A policy of LeRobot in its worker, as a `Network`.

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
        return {_ACTIONS: self._network.actions(shown, list(map(str, entries[_WORDS])), seeds)}


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
        *,
        slots_per_call: int | None = None,
    ) -> np.ndarray:
        """Return the next actions of some env slots; see `LeRobotNetwork.actions` and `NetworkElsewhere.ask`."""
        entries = {f"{_SHOWN}{name}": values for name, values in shown.items()}
        entries |= {_WORDS: list(words), _SEEDS: np.array(noise_seeds, np.int64)}
        return self._network.ask(entries, slots_per_call=slots_per_call or len(words))[_ACTIONS]

    def close(self) -> None:
        """Say that nothing will be asked for now."""
        self._network.close()
