"""What a rank sends in an iteration; the other ranks are pretended."""

import pytest
import torch
from torch import nn

from isaaclab_arena.training.algorithms import GradientExchange
from isaaclab_arena.training.checkpoints import networks_of
from tests.training.learner.test_learner import GRPO, RECURRENT
from tests.training.learning import small_learner
from tests.training.messages import Messages, pretended_ranks

NORMALISED = ("agent.actor.obs_normalization=true", "agent.critic.obs_normalization=true")
FIXED = ("agent.algorithm.schedule=fixed",)


@pytest.mark.parametrize(
    ("words", "beside_gradient", "once"),
    [
        # Once in an iteration: moments of advantages, of both networks' observations, and losses with episodes.
        (NORMALISED, 1, 4),
        ((*NORMALISED, *FIXED), 0, 4),
        ((*NORMALISED, *RECURRENT), 1, 4),
        ((*GRPO, NORMALISED[0]), 0, 2),
    ],
)
def test_a_mini_batch_costs_one_message_and_an_iteration_a_few_more(words, beside_gradient, once):
    with pretended_ranks(2) as context:
        learner = small_learner(*words, context=context)
        with Messages() as messages:
            learner.iterate()
    num_mini_batches = learner.algorithm.num_learning_epochs * learner.algorithm.num_mini_batches
    weights = sum(one.numel() for network in networks_of(learner.algorithm).values() for one in network.parameters())
    assert messages.sizes.count(weights + beside_gradient) == num_mini_batches
    assert len(messages.sizes) == num_mini_batches + once


def test_mini_batches_between_two_boundaries_send_the_divergence_alone_or_nothing():
    weights = nn.Parameter(torch.ones(5))
    weights.grad = torch.ones(5)
    with pretended_ranks(2), Messages() as messages:
        exchange = GradientExchange(period=2)
        for beside in ([torch.ones(())], []):
            exchange.begin_update(3)
            for _ in range(3):
                exchange.exchange([weights], torch.optim.SGD([weights]), beside=beside)
    # The second and the last are boundaries, with the weights beside their gradient.
    assert messages.sizes == [1, 11, 11, 10, 10]


def test_no_message_is_larger_than_a_bucket():
    weights = nn.Parameter(torch.ones(600_000))
    weights.grad = torch.ones(600_000)
    with pretended_ranks(2), Messages() as messages:
        exchange = GradientExchange(period=1, bucket_mb=1.0)
        exchange.begin_update(1)
        exchange.exchange([weights], beside=[torch.ones(())])
    assert messages.sizes == [262_144, 262_144, 75_713]
