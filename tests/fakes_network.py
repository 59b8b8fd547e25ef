"""A policy with a small network, whose last digits change with the size of the batch it is asked on."""

import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits


class NetworkPolicy(PolicyBase[PolicyCfg]):
    """Moves the arm about as a random network makes of what it sees."""

    config_class = PolicyCfg
    traits = PolicyTraits(reproducible=True)

    def __init__(self, config: PolicyCfg | None = None) -> None:
        super().__init__(config)
        self._networks: dict[tuple[int, int], torch.nn.Module] = {}

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        seen = torch.cat([term.flatten(1).float() for term in observation["policy"].values()], dim=1)
        low, high = (torch.tensor(bound) for bound in (env.action_spec.low, env.action_spec.high))
        return low + (high - low) * torch.sigmoid(self._made(seen.shape[1], env.action_spec.shape[0])(seen))

    def _made(self, num_inputs: int, num_outputs: int) -> torch.nn.Module:
        # Two jobs that follow each other share the policy, and may differ in what there is to see.
        sizes = (num_inputs, num_outputs)
        if sizes not in self._networks:
            generator = torch.Generator().manual_seed(5)
            linear = [torch.nn.Linear(*each) for each in ((num_inputs, 256), (256, 256), (256, num_outputs))]
            for parameter in (parameter for layer in linear for parameter in layer.parameters()):
                torch.nn.init.normal_(parameter, std=0.2, generator=generator)
            self._networks[sizes] = torch.nn.Sequential(
                linear[0], torch.nn.Tanh(), linear[1], torch.nn.Tanh(), linear[2]
            )
        return self._networks[sizes]
