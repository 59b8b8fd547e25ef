import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.training.learner import learned_state, named_digests
from tests.training.learner.test_learner import RECURRENT
from tests.training.learning import small_learner
from tests.training.messages import pretended_ranks


@pytest.mark.parametrize("words", [(), RECURRENT], ids=["mlp", "recurrent"])
@pytest.mark.parametrize("desired_kl", [1e-7, 1e3])
def test_the_learning_rate_follows_the_divergence_of_all_ranks_as_it_does_alone(words, desired_kl):
    words = (
        *words,
        f"agent.algorithm.desired_kl={desired_kl}",
        "agent.algorithm.learning_rate=0.001",
        *(f"agent.{role}.obs_normalization=false" for role in ("actor", "critic")),
    )
    alone = small_learner(*words)
    alone.iterate()
    # A group of one rank says what that rank says.
    with pretended_ranks(1):
        among_ranks = small_learner(*words, context=DistributedContext(rank=0, world_size=2))
        among_ranks.iterate()
    assert (alone.algorithm.learning_rate > 0.001) == (desired_kl > 1), "the rate has moved"
    assert named_digests(learned_state(among_ranks.algorithm)) == named_digests(learned_state(alone.algorithm))
    assert among_ranks.algorithm.learning_rate == alone.algorithm.learning_rate
