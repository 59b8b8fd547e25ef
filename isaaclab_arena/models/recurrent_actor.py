"""The recurrent actor of rsl_rl's checkpoints: an LSTM or a GRU before the multilayer perceptron."""

from collections.abc import Sequence

import torch

from isaaclab_arena.models.action_distribution import ActionDistribution
from isaaclab_arena.models.actor import Actor, Layer, Normalizer
from isaaclab_arena.models.network import Answer, Memory


class RecurrentActor(Actor):
    """An actor that remembers what it has seen of each batch entry.

    Args:
        rnn: An LSTM, or a GRU; its output is the input of the first layer.
        layers: See `Actor`.
        activation: See `Actor`.
        normalizer: See `Actor`.
        distribution: See `Actor`.
    """

    def __init__(
        self,
        rnn: torch.nn.LSTM | torch.nn.GRU,
        layers: Sequence[Layer],
        *,
        activation: str,
        normalizer: Normalizer | None,
        distribution: ActionDistribution,
    ) -> None:
        super().__init__(layers, activation=activation, normalizer=normalizer, distribution=distribution)
        self._rnn = rnn
        self.num_inputs = rnn.input_size

    def new_memory(self, batch_size: int) -> Memory:
        """Return zeros: one part for a GRU; hidden and cell state for an LSTM."""
        rnn = self._rnn
        device = next(rnn.parameters()).device
        parts = 2 if isinstance(rnn, torch.nn.LSTM) else 1
        return tuple(torch.zeros(rnn.num_layers, batch_size, rnn.hidden_size, device=device) for _ in range(parts))

    @torch.no_grad()
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the actions for a batch, and what is remembered; see `PolicyNetwork.answer`."""
        sequence = self.normalized(observation).unsqueeze(0)
        if isinstance(self._rnn, torch.nn.LSTM):
            hidden, cell = memory
            latent, memory = self._rnn(sequence, (hidden, cell))
        else:
            latent, hidden = self._rnn(sequence, memory[0])
            memory = (hidden,)
        return self.acted(latent.squeeze(0), memory)
