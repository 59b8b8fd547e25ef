"""The same samples for algorithms of any number of env slots and ranks."""

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.training.config import TrainingConfig
from isaaclab_arena.training.learner import build_algorithm
from tests.training.learning import small_config

NUM_ENVS, NUM_STEPS, NUM_NUMBERS, NUM_ACTIONS = 4, 6, 3, 2
_WORDS = (
    "agent.algorithm.schedule=fixed",
    "agent.algorithm.num_learning_epochs=1",
    "agent.algorithm.num_mini_batches=1",
    "agent.algorithm.optimizer=sgd",
    "agent.algorithm.learning_rate=0.1",
    f"agent.num_steps_per_env={NUM_STEPS}",
)


class Resting(VecEnv):
    """Env slots that are never stepped."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.num_actions = NUM_ACTIONS
        self.device = "cpu"
        self.cfg = {}

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": torch.zeros(self.num_envs, NUM_NUMBERS)}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor):
        raise NotImplementedError


def algorithm(num_envs: int, context: DistributedContext) -> Any:
    """Return PPO that makes one plain gradient step from all samples; the same weights at every call."""
    config: TrainingConfig = small_config(f"num_envs={num_envs}", *_WORDS)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return build_algorithm(config, Resting(num_envs), context)  # type: ignore[arg-type]


def show(learner: Any, ranks: list[int]) -> None:
    """Give an algorithm the samples of some ranks, side by side."""
    generators = [torch.Generator().manual_seed(100 + rank) for rank in ranks]

    def drawn(*shape: int) -> torch.Tensor:
        return torch.cat([torch.randn(NUM_ENVS, *shape, generator=generator) for generator in generators])

    for _ in range(NUM_STEPS):
        seen = TensorDict({"policy": 3 * drawn(NUM_NUMBERS) + 1}, batch_size=[NUM_ENVS * len(ranks)])
        learner.act(seen)
        learner.transition.actions = drawn(NUM_ACTIONS)
        learner.transition.actions_log_prob = learner.actor.get_output_log_prob(learner.transition.actions).detach()
        rewards, dones = drawn()[:], drawn()[:] > 1
        learner.process_env_step(seen, rewards, dones, {"time_outs": torch.zeros(len(rewards))})
    learner.compute_returns(TensorDict({"policy": drawn(NUM_NUMBERS)}, batch_size=[NUM_ENVS * len(ranks)]))
