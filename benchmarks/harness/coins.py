"""An environment that costs next to nothing, and the runner with that environment registered as ``coins``.

Usage: python -m benchmarks.harness.coins [what isaaclab_arena.evaluation.eval_runner takes]
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import ArraySpec


@dataclass(frozen=True)
class CoinOptions:
    """Options of the environment."""

    success_rate: float = 0.5  # Probability that an episode succeeds.
    success_step: int = 10  # Control steps of an episode that succeeds.
    failure_step: int = 100  # Control steps of an episode that fails, which is the time limit.


class Coins(Environment):
    """Tosses a coin in the conditions of each episode: heads succeeds early, tails runs into the time limit."""

    control_dt = 0.1
    device = torch.device("cpu")
    task_description = "call the coin"

    def __init__(self, options: CoinOptions, num_envs: int) -> None:
        self.num_envs = num_envs
        self.max_episode_length = options.failure_step
        self.action_spec = ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
        self.observation_spec = {"policy": {"clock": ArraySpec(shape=(1,))}}
        self._options = options
        self._clock = torch.zeros(num_envs)
        self._heads = torch.zeros(num_envs, dtype=torch.bool)
        self._running = torch.zeros(num_envs, dtype=torch.bool)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Toss the coin of an episode."""
        return {"coin.heads": int(generator.random() < self._options.success_rate)}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named slots. Shape of ``env_ids``: (n,)."""
        self._clock[env_ids] = 0
        self._heads[env_ids] = torch.tensor([bool(condition["coin.heads"]) for condition in conditions])
        self._running[env_ids] = True
        return self._observation()

    def step(self, action: torch.Tensor) -> Step:
        """Advance every running slot by one control step. Shape of ``action``: (num_envs, 2); it changes nothing."""
        del action
        running = self._running.clone()
        self._clock += running
        success = running & self._heads & (self._clock >= self._options.success_step)
        truncated = running & (self._clock >= self._options.failure_step)
        self._running &= ~(success | truncated)
        return Step(
            observation=self._observation(),
            reward=running.float(),
            terminated=success,
            truncated=truncated,
            success=success,
            diverged=torch.zeros_like(running),
        )

    def state(self) -> StateTree:
        """Return the steps of each slot's episode."""
        return {"articulation": {"coin": {"joint_position": self._clock[:, None].clone()}}}

    def _observation(self) -> Observation:
        return {"policy": {"clock": self._clock[:, None].clone()}}


class CoinBuilder:
    """Builds `Coins` the way a registered environment is built."""

    config_class = CoinOptions

    def check(self, config: CoinOptions) -> None:
        """Accept all options."""

    def build(self, config: CoinOptions, *, num_envs: int, device: torch.device, num_threads: int) -> Coins:
        """Build the environment; it runs on the CPU on one thread."""
        del device, num_threads
        return Coins(config, num_envs)


def main(arguments: Sequence[str]) -> int:
    """Run the evaluation runner, and return its exit code."""
    ENVIRONMENTS.register("coins", CoinBuilder())
    return eval_runner.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
