"""Ask a policy's network in the run's policy server: the network that is there, and what stands for it on a rank."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena.models.network import Answer, Memory, PolicyNetwork

_OBSERVATION, _MEAN, _STD = "observation", "mean", "std"


class SharedNetwork:
    """A policy's network as a `Network`: its memory of an episode is part of the entry and of the answer."""

    def __init__(self, network: PolicyNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self.about: Mapping[str, Any] = {
            "slots_per_call": None,
            "num_inputs": network.num_inputs,
            "num_outputs": network.num_outputs,
            "knows_std": network.knows_std,
            "memory": [[part.shape[0], part.shape[2]] for part in network.new_memory(1)],
        }

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the outputs and the new memory; see `Network.answer`."""
        tensors = {name: torch.from_numpy(np.asarray(values)).to(self._device) for name, values in entries.items()}
        answer = self._network.answer(tensors[_OBSERVATION], _memory_in(tensors, len(self.about["memory"])))
        outputs = {_MEAN: answer.mean} | ({} if answer.std is None else {_STD: answer.std})
        return {name: tensor.cpu().numpy() for name, tensor in {**outputs, **_by_entry(answer.memory)}.items()}


class NetworkOnServer(PolicyNetwork):
    """The stand-in for a network in a policy server. Its memory stays on the rank."""

    def __init__(self, network: NetworkElsewhere) -> None:
        # One call covers all entries of a batch, so an answer has the same bits as without a server.
        self._network = network
        self.num_inputs, self.num_outputs = network.about["num_inputs"], network.about["num_outputs"]
        self.knows_std = network.about["knows_std"]

    def new_memory(self, batch_size: int) -> Memory:
        """Return zeros for each part of the network's memory."""
        sizes = self._network.about["memory"]
        return tuple(torch.zeros(num_layers, batch_size, hidden_size) for num_layers, hidden_size in sizes)

    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for a batch; see `PolicyNetwork.answer`, and `NetworkElsewhere.ask` for the errors."""
        asked = {_OBSERVATION: observation, **_by_entry(memory)}
        entries = {name: tensor.contiguous().numpy() for name, tensor in asked.items()}
        said = self._network.ask(entries, slots_per_call=len(observation))
        tensors = {name: torch.from_numpy(values) for name, values in said.items()}
        return Answer(mean=tensors[_MEAN], std=tensors.get(_STD), memory=_memory_in(tensors, len(memory)))

    def close(self) -> None:
        """Announce that no request will follow now."""
        self._network.close()


def _by_entry(memory: Memory) -> dict[str, torch.Tensor]:
    """Return the parts of a memory by name, entries first. Shape of each: (batch, num_layers, hidden_size)."""
    return {f"memory.{index}": part.transpose(0, 1) for index, part in enumerate(memory)}


def _memory_in(tensors: Mapping[str, torch.Tensor], num_parts: int) -> Memory:
    return tuple(tensors[f"memory.{index}"].transpose(0, 1).contiguous() for index in range(num_parts))
