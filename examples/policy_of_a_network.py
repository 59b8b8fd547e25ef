"""Evaluate a network of one's own: a multilayer perceptron in torch, read from a checkpoint.

python examples/policy_of_a_network.py
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import isaaclab_arena as arena
from isaaclab_arena.policies import PolicyBase, PolicyCfg, PolicyTraits

CHECKPOINT = Path("outputs") / "network.pt"
LARGEST_STEP_M = 0.04


def new_network() -> torch.nn.Module:
    """Return an untrained network: from the way to the marker to the gripper's next step."""
    return torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


@dataclass(frozen=True)
class ReachCfg(PolicyCfg):
    """Options of `ReachPolicy`. A file that an option ending in ``_path`` names is hashed into the results."""

    checkpoint_path: str


class ReachPolicy(PolicyBase[ReachCfg]):
    """Moves the gripper as the network says."""

    config_class = ReachCfg
    # Nothing is carried from one episode to the next, so the table promises the same bits on any number of ranks.
    traits = PolicyTraits(reproducible=True)

    def __init__(self, config: ReachCfg) -> None:
        super().__init__(config)
        self.network = new_network()
        self.network.load_state_dict(torch.load(config.checkpoint_path, weights_only=True))

    def get_action(self, env, observation):
        """Return the actions. Shape: (num_envs, 7)."""
        state = observation["policy"]
        way = (state["target_pos"] - state["eef_pos"]) / LARGEST_STEP_M
        action = torch.zeros(env.action_space.shape, device=env.device)
        with torch.inference_mode():
            action[:, :3] = LARGEST_STEP_M * self.network(way)
        return action


def train(path: Path, steps: int = 200) -> None:
    """Learn to go straight to the marker, and write a checkpoint: stands for whatever training there is."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = new_network()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(steps):
            way = 4 * torch.randn(64, 3)
            loss = torch.nn.functional.smooth_l1_loss(network(way), way.clamp(-1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), path)


def main() -> float:
    """Train, evaluate, show the table, and return the success rate."""
    train(CHECKPOINT)
    policy = ReachPolicy(ReachCfg(checkpoint_path=str(CHECKPOINT)))
    results = arena.evaluate(environment="reach", policy=policy, num_episodes=20, num_envs=4, action_mode="ee_delta")
    print(results)
    return results.job().success_rate or 0.0


if __name__ == "__main__":
    main()
