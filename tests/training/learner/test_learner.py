import math

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.checkpoints import packed, unpacked
from isaaclab_arena.training.learner import DivergedError, Learner, learned_state, named_digests
from tests.training.learning import small_learner

GRPO = ("agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4")
RECURRENT = (
    *(
        f"agent.{role}.{word}"
        for role in ("actor", "critic")
        for word in ("class_name=RNNModel", "hidden_dims=[16]", "rnn_type=lstm", "rnn_hidden_dim=8", "rnn_num_layers=1")
    ),
    "agent.actor.distribution_cfg.class_name=GaussianDistribution",
)
CURIOUS = (
    (
        "agent.algorithm.rnd_cfg={weight: 1.0, num_outputs: 4, predictor_hidden_dims: [8], target_hidden_dims: [8], "
        "state_normalization: true, reward_normalization: true, "
        "weight_schedule: {mode: linear, initial_step: 0, final_step: 90, final_value: 0.0}}"
    ),
    "agent.obs_groups.rnd_state=[policy]",
)


def digests(learner: Learner) -> dict[str, int]:
    return named_digests(learned_state(learner.algorithm))


def of_episodes(measures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in measures.items() if name.startswith(("Train", "Metrics"))}


def saved(learner: Learner) -> tuple[dict, dict]:
    learned = {**learner.algorithm.save(), "iter": learner.iterations}
    return unpacked(packed(learned)), unpacked(packed(learner.rank_state()))


@pytest.mark.parametrize(
    "words",
    [(), GRPO, RECURRENT, ("agent.algorithm.schedule=linear",), CURIOUS],
    ids=["ppo", "grpo", "recurrent", "linear", "curious"],
)
def test_training_that_is_taken_up_again_gives_the_bits_of_an_undisturbed_one(words):
    words = (*words, "agent.max_iterations=10")
    undisturbed = small_learner(*words)
    told = [undisturbed.iterate() for _ in range(6)]
    interrupted = small_learner(*words)
    for _ in range(3):
        interrupted.iterate()
    learned, state = saved(interrupted)
    torch.randn(17)
    resumed = small_learner(*words)
    assert resumed.load(learned, state)
    told_later = [resumed.iterate() for _ in range(3)]
    assert digests(resumed) == digests(undisturbed)
    assert list(map(of_episodes, told_later)) == list(map(of_episodes, told[3:])) or words == GRPO


def test_a_checkpoint_that_has_other_sums_of_metrics_is_taken_up_as_well():
    interrupted = small_learner()
    interrupted.iterate()
    learned, state = saved(interrupted)
    state["environment"]["training/sums"] = torch.zeros(11, dtype=torch.float64)
    resumed = small_learner()
    assert resumed.load(learned, state)
    assert of_episodes(resumed.iterate()) == of_episodes(interrupted.iterate())


def test_curiosity_is_an_option_of_rsl_rl_that_works():
    words = ("{weight: 1.0, num_outputs: 4, predictor_hidden_dims: [8], target_hidden_dims: [8]}",)
    learner = small_learner(f"agent.algorithm.rnd_cfg={words[0]}", "agent.obs_groups.rnd_state=[policy]")
    assert "Loss/rnd" in learner.iterate()


def test_without_its_state_a_rank_goes_on_with_new_episodes():
    first = small_learner()
    first.iterate()
    learned, _ = saved(first)
    second = small_learner()
    assert not second.load(learned, None)
    assert second.iterations == 1
    assert digests(second) == digests(first)
    second.iterate()


@pytest.mark.parametrize("words", [(), RECURRENT], ids=["ppo", "recurrent"])
def test_another_number_of_env_slots_goes_on_with_new_episodes(words):
    first = small_learner(*words)
    first.iterate()
    learned, state = saved(first)
    second = small_learner("num_envs=16", *words)
    assert not second.load(learned, state)
    before = second.env_steps
    second.iterate()
    assert second.env_steps - before == 16 * 16


def test_another_learning_rate_holds_from_where_training_goes_on():
    words = ("agent.algorithm.schedule=fixed", "agent.algorithm.learning_rate=0.001")
    first = small_learner(*words)
    first.iterate()
    learned, state = saved(first)
    config = {"agent": {"algorithm": {"learning_rate": 0.001}}}
    learned["infos"] = {"isaaclab_arena": {"config": config}}
    second = small_learner(*words[:1], "agent.algorithm.learning_rate=0.0001")
    second.load(learned, state)
    assert second.iterate()["Loss/learning_rate"] == 0.0001


@pytest.mark.parametrize("word", ["agent.actor.hidden_dims=[8]", "agent.algorithm.class_name=GRPO"])
def test_a_checkpoint_of_other_networks_is_refused_in_a_sentence(word):
    first = small_learner()
    first.iterate()
    learned, state = saved(first)
    with pytest.raises(ConfigError, match="the checkpoint is of another algorithm or other networks"):
        small_learner(word).load(learned, state)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not():
    found = []
    for words in ((), (), ("agent.seed=43",)):
        learner = small_learner(*words)
        learner.iterate()
        found.append(digests(learner))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_ppo_learns_to_balance_a_pole():
    learner = small_learner("num_envs=32", "agent.algorithm.learning_rate=3e-3")
    lengths = [learner.iterate().get("Train/mean_episode_length", math.nan) for _ in range(20)]
    first = next(length for length in lengths if not math.isnan(length))
    assert max(lengths[-3:]) > 2 * first


def test_grpo_learns_to_balance_a_pole():
    words = ("num_envs=32", "agent.num_steps_per_env=64", "agent.algorithm.learning_rate=3e-3")
    learner = small_learner(*GRPO, *words, "agent.algorithm.kl_coef=0.001")
    falls = []
    for _ in range(20):
        learner.iterate()
        falls.append(int(learner.algorithm.storage.dones.sum()))
    assert sum(falls[-3:]) < sum(falls[:3]) / 2


@pytest.mark.parametrize("words", [(), GRPO], ids=["ppo", "grpo"])
def test_the_learning_rate_falls_over_iterations_whatever_the_number_of_ranks(words):
    learner = small_learner(
        *words, "agent.algorithm.schedule=linear", "agent.max_iterations=4", "agent.learning_rate=0.001"
    )
    rates = [learner.iterate()["Loss/learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4, 0.0, 0.0])
    assert [group["lr"] for group in learner.algorithm.optimizer.param_groups] == [0.0]


def test_nan_ends_training_with_a_way_out():
    learner = small_learner()
    learner.iterate()
    with torch.no_grad():
        next(learner.algorithm.actor.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"iteration 1: .* --resume and a smaller agent.learning_rate"):
        learner.iterate()
