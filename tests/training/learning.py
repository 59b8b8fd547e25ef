"""Small training runs for tests: cartpole, few env slots, tiny networks."""

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.training.config import TrainingConfig, default_document, merged, overrides_document, read_training
from isaaclab_arena.training.learner import Learner

SMALL = {
    "environment": "cartpole",
    "num_envs": 8,
    "agent": {
        "num_steps_per_env": 16,
        "action_scaling": "within_bounds",
        "actor": {"hidden_dims": [16]},
        "critic": {"hidden_dims": [16]},
    },
    "evaluation": {"interval": 0},
}
"""Iterations of a few hundredths of a second."""


def small_config(*words: str) -> TrainingConfig:
    """Return the configuration of a small run, changed by words of the command line."""
    base = merged(default_document(), SMALL)
    return read_training(merged(base, overrides_document(words, base)), task="cartpole", source="test")


def small_learner(*words: str, context: DistributedContext | None = None) -> Learner:
    """Return a learner for a small run."""
    return Learner(small_config(*words), context or DistributedContext(), num_threads=1)
