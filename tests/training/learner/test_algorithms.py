"""Losses, normalisation and the exchange of gradients."""

import math
from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn
from torch.distributions import Normal

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.training.algorithms import (
    GRPO,
    GradientExchange,
    RanksNormalization,
    moments_over_ranks,
    normalised_over_ranks,
)
from isaaclab_arena.training.checkpoints import networks_of
from isaaclab_arena.training.learner import learned_state, named_digests
from tests.training.learner.test_learner import GRPO as EXCHANGE_GRPO
from tests.training.learner.test_learner import RECURRENT
from tests.training.learning import small_learner
from tests.training.messages import Messages, pretended_ranks


@pytest.mark.parametrize(("words", "desired_kl"), [((), 1e-7), ((), 1e3), (RECURRENT, 1e3)])
def test_the_learning_rate_follows_the_divergence_of_all_ranks_as_it_does_alone(words, desired_kl):
    rate = ("agent.algorithm.learning_rate=0.001", f"agent.algorithm.desired_kl={desired_kl}")
    words = (*words, *rate, *(f"agent.{role}.obs_normalization=false" for role in ("actor", "critic")))
    alone = small_learner(*words)
    alone.iterate()
    # A group of one rank says what that rank says.
    with pretended_ranks(1):
        among_ranks = small_learner(*words, context=DistributedContext(rank=0, world_size=2))
        among_ranks.iterate()
    assert (alone.algorithm.learning_rate > 0.001) == (desired_kl > 1), "the rate has moved"
    assert named_digests(learned_state(among_ranks.algorithm)) == named_digests(learned_state(alone.algorithm))
    assert among_ranks.algorithm.learning_rate == alone.algorithm.learning_rate


# GRPO's loss and its gradient, held against the loss written out sample by sample.


NUM_STEPS, NUM_ENVS, NUM_NUMBERS, NUM_ACTIONS = 2, 4, 3, 2
HALF = math.sqrt(0.5)
REWARDS = [[0.0, 0.0, 5.0, 1.0], [4.0, 2.0, 9.0, 3.0]]
DONES = [[0, 0, 1, 0], [0, 0, 0, 0]]
# With a discount of 0.5 the returns are 2, 1 | 5, 2.5 and 4, 2 | -, 3: of two env slots the better one is half a root
# above the mean, and the third env slot's second step comes after its end, which leaves the fourth alone.
ADVANTAGES = [[HALF, -HALF, HALF, -HALF], [HALF, -HALF, 0.0, 0.0]]
# How much likelier an action is now than when it was drawn. Of each sign of the advantage there are ratios on both
# sides of what counts, and within it.
RATIOS = [[1.5, 1.5, 0.5, 0.5], [1.1, 0.9, 7.0, 1.3]]
# Sums of a dozen single precision numbers, in another order.
TOLERANCE = 2e-5


def observed(numbers: torch.Tensor) -> TensorDict:
    return TensorDict({"policy": numbers}, batch_size=[len(numbers)])


# The samples that count: all but the one after the end.
COUNTED = [0, 1, 2, 3, 4, 5, 7]


def weights_of(network: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def log_probabilities(actor: Any, numbers: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return Normal(actor.mlp(numbers), actor.distribution.std_param).log_prob(actions).sum(dim=1)


def learner(**settings: Any) -> GRPO:
    """Return GRPO with a network of one hidden layer, whose weights have moved since training began."""
    chosen: dict[str, Any] = {"group_size": 2, "num_learning_epochs": 1, "num_mini_batches": 1, "gamma": 0.5}
    chosen |= {"learning_rate": 0.1, "optimizer": "sgd", "max_grad_norm": 1e6, **settings}
    example = observed(torch.zeros(NUM_ENVS, NUM_NUMBERS))
    network = {"hidden_dims": [4], "activation": "tanh"}
    network["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 0.7}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        actor = MLPModel(example, {"actor": ["policy"]}, "actor", NUM_ACTIONS, **network)
    algorithm = GRPO(actor, RolloutStorage("rl", NUM_ENVS, NUM_STEPS, example, [NUM_ACTIONS]), "cpu", **chosen)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.2 * torch.rand(parameter.shape, generator=generator))
    return algorithm


def show(algorithm: GRPO) -> tuple[torch.Tensor, ...]:
    """Give an algorithm two steps of four env slots; return numbers, actions, old log probs, advantages that count."""
    generator = torch.Generator().manual_seed(5)
    samples = []
    for rewards, dones, ratios, advantages in zip(REWARDS, DONES, RATIOS, ADVANTAGES, strict=True):
        numbers = torch.randn(NUM_ENVS, NUM_NUMBERS, generator=generator)
        algorithm.act(observed(numbers))
        transition = algorithm.transition
        transition.actions = torch.randn(NUM_ENVS, NUM_ACTIONS, generator=generator)
        now = algorithm.actor.get_output_log_prob(transition.actions).detach()
        transition.actions_log_prob = now - torch.tensor(ratios).log()
        samples.append((numbers, transition.actions, transition.actions_log_prob, torch.tensor(advantages)))
        extras = {"time_outs": torch.ones(NUM_ENVS)}
        algorithm.process_env_step(observed(numbers), torch.tensor(rewards), torch.tensor(dones), extras)
    algorithm.compute_returns(observed(torch.zeros(NUM_ENVS, NUM_NUMBERS)))
    return tuple(torch.cat(each)[COUNTED] for each in zip(*samples, strict=True))


def parts_of_the_loss(
    actor: Any, first: Any, samples: tuple[torch.Tensor, ...], clip: float
) -> dict[str, torch.Tensor]:
    """Return the means over the samples of what is lost by acting, of the entropy, and of the divergence."""
    numbers, actions, old, advantage = samples
    now = log_probabilities(actor, numbers, actions)
    ratio = torch.exp(now - old)
    further = torch.zeros(()) if first is None else log_probabilities(first, numbers, actions).detach() - now
    return {
        "surrogate": -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean(),
        "entropy": Normal(torch.zeros(NUM_ACTIONS), actor.distribution.std_param).entropy().sum(),
        "reference_kl": (torch.exp(further) - further - 1).mean(),
    }


def step_of(algorithm: GRPO) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Learn once by plain gradient descent; return the gradient that the weights show, and the losses that are told."""
    before = weights_of(algorithm.actor)
    losses = algorithm.update()
    after = weights_of(algorithm.actor)
    return {name: (before[name] - after[name]) / algorithm.learning_rate for name in before}, losses


@pytest.mark.parametrize(
    ("entropy_coef", "kl_coef", "clip"), [(0.0, 0.0, 0.2), (0.3, 0.0, 0.2), (0.0, 0.5, 0.2), (0.01, 0.1, 0.4)]
)
def test_the_loss_and_its_gradient_are_those_written_out(entropy_coef, kl_coef, clip):
    algorithm = learner(entropy_coef=entropy_coef, kl_coef=kl_coef, clip_param=clip)
    samples, actor = show(algorithm), algorithm.actor
    parts = parts_of_the_loss(actor, algorithm.reference if kl_coef else None, samples, clip)
    loss = parts["surrogate"] - entropy_coef * parts["entropy"] + kl_coef * parts["reference_kl"]
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    gradient, losses = step_of(algorithm)
    assert losses == {name: pytest.approx(value.item(), abs=TOLERANCE) for name, value in parts.items()}
    for (name, _), value in zip(actor.named_parameters(), expected, strict=True):
        assert torch.allclose(gradient[name], value, atol=TOLERANCE), name


def test_a_gradient_that_is_too_long_is_cut_to_the_longest_and_keeps_its_direction():
    gradients = []
    for longest in (1e6, 0.25):
        algorithm = learner(kl_coef=2.0, max_grad_norm=longest)
        show(algorithm)
        gradient, _ = step_of(algorithm)
        gradients.append(torch.cat([value.flatten() for value in gradient.values()]))
    long, cut = gradients
    assert long.norm() > 0.5
    torch.testing.assert_close(cut, 0.25 * long / long.norm(), atol=1e-4, rtol=0)


def test_the_policy_that_training_began_with_stays_as_it_was_also_where_training_goes_on():
    algorithm = learner(kl_coef=0.5)
    began = weights_of(algorithm.reference)
    assert not any(torch.equal(began[name], value) for name, value in algorithm.actor.named_parameters())
    for _ in range(3):
        show(algorithm)
        algorithm.update()
    taken_up = learner(kl_coef=0.5)
    with torch.no_grad():
        for parameter in (*taken_up.actor.parameters(), *taken_up.reference.parameters()):
            parameter.zero_()
    assert taken_up.load(algorithm.save(), None, strict=True)
    for each in (algorithm, taken_up):
        assert all(torch.equal(began[name], value) for name, value in each.reference.named_parameters())
    saved = algorithm.actor.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in taken_up.actor.state_dict().items())


def test_a_second_step_starts_from_a_gradient_of_nothing():
    lengths = []
    for epochs in (1, 2):
        # With steps too small to change anything the same gradient is computed again, and the step is as long.
        algorithm = learner(num_learning_epochs=epochs, learning_rate=1e-4)
        show(algorithm)
        gradient, _ = step_of(algorithm)
        lengths.append(math.sqrt(sum(float((value**2).sum()) for value in gradient.values())))
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=0.05)


def test_losses_are_means_in_double_precision_in_the_order_of_the_mini_batches_each_learned_once_an_epoch():
    algorithm = learner(num_learning_epochs=3, num_mini_batches=4, kl_coef=0.5, optimizer="adam")
    show(algorithm)
    told: list[torch.Tensor] = []
    learn = algorithm._learn
    algorithm._learn = lambda *given: (told.append(learn(*given)), told[-1])[1]  # type: ignore[method-assign]
    losses = algorithm.update()
    assert list(losses.values()) == [sum(float(each[part]) for each in told) / 12 for part in range(3)]
    assert {int(state["step"]) for state in algorithm.optimizer.state.values()} == {12}


def test_what_is_drawn_is_kept_with_the_probability_it_was_drawn_with():
    algorithm = learner()
    numbers = torch.ones(NUM_ENVS, NUM_NUMBERS)
    actions = algorithm.act(observed(numbers))
    expected = log_probabilities(algorithm.actor, numbers, actions).tolist()
    assert algorithm.transition.actions_log_prob.tolist() == pytest.approx(expected, abs=TOLERANCE)
    assert len({tuple(action) for action in actions.tolist()}) == NUM_ENVS


def test_advantages_have_mean_0_and_the_unbiased_deviation_1_or_are_nothing_where_all_are_equal():
    # The deviation of 1, 2, 3 and 6 from their mean of 3 is the root of 14 / 3.
    expected = [each / (14 / 3) ** 0.5 for each in (-2, -1, 0, 3)]
    assert normalised_over_ranks(torch.tensor([1.0, 2.0, 3.0, 6.0])).tolist() == pytest.approx(expected)
    assert normalised_over_ranks(torch.full((2, 3), 7.0)).tolist() == [[0.0] * 3] * 2
    assert normalised_over_ranks(torch.tensor([5.0])).tolist() == [0.0]


def test_what_ranks_tell_of_their_samples_gives_the_moments_of_all_samples():
    # Ranks of unlike size and unlike means: 1, 2 and 3, and 11; a rank tells number, sum and squared deviations.
    other = torch.tensor([[1.0], [11.0], [0.0]], dtype=torch.float64)
    values = torch.tensor([[1.0], [2.0], [3.0]])
    moments = moments_over_ranks(values, gather=lambda own: [own, other])
    assert [each.item() for each in moments] == pytest.approx([4, 17 / 4, 1 + 4 + 9 + 121 - 17**2 / 4])


def test_observations_are_normalised_as_rsl_rl_does_until_enough_are_seen():
    generator = torch.Generator().manual_seed(2)
    ours, theirs = RanksNormalization(3, until=13), EmpiricalNormalization(3)
    for number in (5, 8):
        samples = 4 * torch.randn(number, 3, generator=generator) + 2
        ours.update(samples)
        theirs.update(samples)
    ours.update(torch.full((1, 3), 100.0))
    assert ours.state_dict()["count"] == theirs.state_dict()["count"] == 13
    torch.testing.assert_close(ours(torch.ones(1, 3)), theirs(torch.ones(1, 3)))


# What a rank sends in an iteration; the other ranks are pretended.


NORMALISED = ("agent.actor.obs_normalization=true", "agent.critic.obs_normalization=true")
FIXED = ("agent.algorithm.schedule=fixed",)


@pytest.mark.parametrize(
    ("words", "beside_gradient", "once"),
    [
        # Once in an iteration: moments of advantages, of both networks' observations, and losses with episodes.
        (NORMALISED, 1, 4),
        ((*NORMALISED, *FIXED), 0, 4),
        ((*NORMALISED, *RECURRENT), 1, 4),
        ((*EXCHANGE_GRPO, NORMALISED[0]), 0, 2),
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
