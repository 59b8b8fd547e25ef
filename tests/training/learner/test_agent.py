import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.learner import check_agent
from tests.training.learning import small_config, small_learner


def problems(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        check_agent(small_config(*words))
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("agent.algorithm.gama=0.9", "agent.algorithm.gama: PPO has no such option; did you mean 'gamma'?"),
        (
            "agent.actor.hidden_dim=[8]",
            "agent.actor.hidden_dim: MLPModel has no such option; did you mean 'hidden_dims'?",
        ),
        ("agent.algorithm.gamma=much", "agent.algorithm.gamma: must be float, got 'much'"),
        ("agent.algorithm.class_name=PPPO", "agent.algorithm.class_name: there is no 'PPPO'"),
        ("agent.algorithm.class_name=no.such:Thing", "agent.algorithm.class_name: there is no 'no.such:Thing'"),
        ("agent.algorithm.multi_gpu_cfg={}", "agent.algorithm.multi_gpu_cfg: PPO has no such option"),
    ],
)
def test_options_that_a_class_does_not_have_are_told_before_anything_is_built(word, told):
    assert problems(word)[0].startswith(told)


def test_samples_that_would_never_be_learned_from_are_refused():
    (problem,) = problems("agent.algorithm.num_mini_batches=5")
    assert problem == (
        "agent.algorithm.num_mini_batches: 8 env slots x 16 steps = 128 samples do not divide into 5 mini-batches, and "
        "3 would never be learned from; use 4 or 8"
    )


def test_a_recurrent_policy_divides_env_slots():
    words = ("agent.actor.class_name=RNNModel", "agent.actor.distribution_cfg.class_name=GaussianDistribution")
    (problem,) = problems("num_envs=6", *words)
    assert "6 env slots of a recurrent policy do not divide into 4 mini-batches, and 2 would never" in problem


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("agent.algorithm.num_mini_batches=-4", "num_mini_batches: must be a whole number from 1, got -4"),
        ("agent.algorithm.num_mini_batches=0", "num_mini_batches: must be a whole number from 1, got 0"),
        ("agent.algorithm.num_learning_epochs=0", "num_learning_epochs: must be a whole number from 1, got 0"),
        ("agent.algorithm.schedule=adaptve", "schedule: there is no 'adaptve'; did you mean 'adaptive'?"),
        ("agent.algorithm.gamma=2", "gamma: must be from 0 to 1, got 2"),
        ("agent.actor.hidden_dims=[]", "hidden_dims: must be sizes of layers, at least one, got []"),
        ("agent.critic.hidden_dims=[0]", "hidden_dims: must be sizes of layers, at least one, got [0]"),
    ],
)
def test_numbers_with_which_nothing_would_be_learned_are_refused(word, told):
    assert any(problem.endswith(told) for problem in problems(word))


def test_groups_have_to_divide_the_env_slots():
    words = ("agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=3")
    assert problems(*words) == ["agent.algorithm.group_size: 8 env slots do not divide into groups of 3; use 2 or 4"]


def test_a_group_of_observations_that_is_not_there_is_told():
    with pytest.raises(
        ConfigError, match=r"agent.obs_groups.actor: the environment has no group 'polcy'; did you mean"
    ):
        small_learner("agent.obs_groups.actor=[polcy]")


def test_all_problems_are_told_at_once():
    assert len(problems("agent.algorithm.gama=0.9", "agent.critic.size=3", "agent.algorithm.num_mini_batches=5")) == 3


def test_a_class_of_somebody_else_can_be_named():
    check_agent(small_config("agent.algorithm.class_name=rsl_rl.algorithms:PPO"))


def test_an_actor_needs_a_distribution():
    (problem,) = problems("agent.actor.distribution_cfg=null")
    assert problem.startswith("agent.actor.distribution_cfg: a policy that learns draws its actions; give one")
