"""Evaluate a policy with a memory: a GRU, of which every env slot has a hidden state of its own.

python examples/recurrent_policy.py
"""

import torch

import isaaclab_arena as arena
from isaaclab_arena.policies import PolicyBase

LARGEST_STEP_M = 0.04
HIDDEN = 16


class RecurrentNetwork(torch.nn.Module):
    """From the way to the marker, and a memory, to how far the gripper should go, and the next memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(3, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, 3)

    def forward(self, way: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the step, and the memory after it. Shapes: (n, 3) and (n, HIDDEN), both given and returned."""
        memory = self.cell(way, memory)
        return self.head(memory), memory


class RecurrentPolicy(PolicyBase):
    """Keeps the memory of every env slot, and forgets it when another episode begins there."""

    def __init__(self, network: RecurrentNetwork) -> None:
        super().__init__(None)
        self.network = network
        self.memory: torch.Tensor | None = None

    def get_action(self, env, observation):
        """Return the actions. Shape: (num_envs, 7)."""
        if self.memory is None:
            self.memory = torch.zeros((env.num_envs, HIDDEN), device=env.device)
        state = observation["policy"]
        way = (state["target_pos"] - state["eef_pos"]) / LARGEST_STEP_M
        action = torch.zeros(env.action_space.shape, device=env.device)
        with torch.inference_mode():
            step, self.memory = self.network(way, self.memory)
            action[:, :3] = LARGEST_STEP_M * step
        return action

    def reset(self, env_ids=None):
        """Forget: all env slots at the start of a job, then those in which an episode begins."""
        if env_ids is None or self.memory is None:
            self.memory = None
        else:
            self.memory = self.memory.clone()  # what inference mode has made cannot be written into
            self.memory[env_ids] = 0


def trained(steps: int = 100, length: int = 5) -> RecurrentNetwork:
    """Return a network that has learned to go straight to the marker, from made-up sequences."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = RecurrentNetwork()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(steps):
            way, memory, loss = 4 * torch.randn(64, 3), torch.zeros(64, HIDDEN), torch.zeros(())
            for _ in range(length):
                step, memory = network(way, memory)
                loss = loss + torch.nn.functional.smooth_l1_loss(step, way.clamp(-1, 1))
                way = way - step.detach() + 0.1 * torch.randn_like(way)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def main() -> float:
    """Train, evaluate, show the table, and return the success rate."""
    policy = RecurrentPolicy(trained())
    results = arena.evaluate(environment="reach", policy=policy, num_episodes=20, num_envs=4, action_mode="ee_delta")
    print(results)
    return results.job().success_rate or 0.0


if __name__ == "__main__":
    main()
