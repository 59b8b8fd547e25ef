"""Train a policy that balances a pole, in a loop of one's own, and evaluate it every few iterations.

python examples/evaluate_while_training.py
python examples/evaluate_while_training.py --with_stable_baselines3 --iterations 20
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tyro

import isaaclab_arena as arena


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is trained, and how often it is evaluated."""

    iterations: int = 20
    """Updates of the policy."""
    evaluate_every: int = 10
    """Updates between two evaluations."""
    num_episodes: int = 10
    """Episodes of an evaluation."""
    with_stable_baselines3: bool = False
    """Train with the PPO of Stable-Baselines3, which has to be installed, in place of the loop below."""


def flat(observation: Mapping[str, Any]) -> torch.Tensor:
    """Return what the policy sees, side by side in alphabetical order. Shape: (num_envs, 5)."""
    terms = observation["policy"]
    return torch.cat([torch.as_tensor(terms[name]).flatten(1) for name in sorted(terms)], dim=1)


class Policy(torch.nn.Module):
    """Pushes a cart; a module is a policy as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.log_std = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation: Mapping[str, Any]) -> torch.Tensor:
        """Return the best action. Shape: (num_envs, 1)."""
        return self.mean(flat(observation))


def mean_return(policy: Any, options: Options) -> float:
    """Evaluate a policy on episodes that are the same each time."""
    results = arena.evaluate(
        environment="cartpole", policy=policy, num_episodes=options.num_episodes, num_envs=10, seed=1, no_dataset=True
    )
    return results.job().mean_return or 0.0


def train(options: Options) -> list[float]:
    """Train by policy gradients, and return the mean returns."""
    env, policy, means = arena.make("cartpole", num_envs=32), Policy(), []
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.01)
    observation, _ = env.reset(seed=0)
    for iteration in range(1, options.iterations + 1):
        log_probabilities, rewards = [], []
        for _ in range(32):
            chosen = torch.distributions.Normal(policy(observation), policy.log_std.exp())
            action = chosen.sample()
            log_probabilities.append(chosen.log_prob(action).sum(dim=1))
            observation, reward, terminated, truncated, _ = env.step(action.clamp(-1, 1).numpy())
            rewards.append(torch.as_tensor(reward, dtype=torch.float32) - torch.as_tensor(terminated).float())
            if (terminated | truncated).any():
                observation, _ = env.reset(options={"reset_mask": terminated | truncated})
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean(dim=1, keepdim=True)) / (returns.std() + 1e-6)
        optimiser.zero_grad()
        (-(torch.stack(log_probabilities) * advantage).mean()).backward()
        optimiser.step()
        if iteration % options.evaluate_every == 0:
            means.append(mean_return(policy, options))
    env.close()
    return means


def train_with_stable_baselines3(options: Options) -> list[float]:
    """Train with PPO of Stable-Baselines3, and return the mean returns."""
    from stable_baselines3 import PPO  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    model = PPO("MlpPolicy", "isaaclab_arena.gym:arena/Cartpole-v0", n_steps=256, device="cpu")
    means = []
    for _ in range(options.iterations // options.evaluate_every):
        model.learn(total_timesteps=256 * options.evaluate_every, reset_num_timesteps=False)
        means.append(mean_return(lambda seen: model.predict(flat(seen).numpy(), deterministic=True)[0], options))
    return means


def main(arguments: Sequence[str]) -> int:
    """Train, and print the mean return of each evaluation."""
    options = tyro.cli(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,), use_underscores=True)
    train_it = train_with_stable_baselines3 if options.with_stable_baselines3 else train
    returns = train_it(options)
    sys.stdout.write("".join(f"mean return {each:.2f}\n" for each in returns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
