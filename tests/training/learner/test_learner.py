"""The learner on one rank and on several."""

import logging
import math
from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.checkpoints import begin_with, networks_of, packed, unpacked
from isaaclab_arena.training.learner import (
    DivergedError,
    Learner,
    check_synchrony,
    differences,
    learned_state,
    named_digests,
)
from tests.end_to_end.launching import command, patience_s, run
from tests.models.trainings import trained
from tests.training.learning import small_learner
from tests.training.rsl_rl_checkpoints import NUM_ACTIONS, NUM_NUMBERS, PLAIN, SIZES, old_checkpoint, perceptron
from tests.training.samples import NUM_ENVS, algorithm, show

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


# Learning on several ranks gives what one process would learn from all samples.


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_hold_the_same_bits_and_learn_what_one_process_would_from_all_samples(ranks, tmp_path):
    finished = run(
        command(tmp_path, ranks=ranks, module=["-m", "tests.training.training_rank"]), timeout_s=patience_s(120)
    )
    assert finished.returncode == 0, finished.stderr
    assert "12 checks held" in finished.stdout
    alone = algorithm(NUM_ENVS * ranks, DistributedContext())
    untrained = alone.save()["actor_state_dict"]["mlp.0.weight"].clone()
    show(alone, list(range(ranks)))
    alone.update()
    together = torch.load(tmp_path / "update.pt", weights_only=True)
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, value in alone.save()[network].items():
            torch.testing.assert_close(together[network][name], value, rtol=1e-5, atol=1e-6, msg=f"{network}.{name}")
    assert (untrained - together["actor_state_dict"]["mlp.0.weight"]).abs().max() > 1e-4, "nothing was learned"


def test_equal_states_have_equal_digests_and_others_do_not():
    state = {"actor": {"weight": torch.arange(4.0)}, "optimizer": [{"lr": 1e-3}]}
    changed = {"actor": {"weight": torch.tensor([0.0, 1.0, 2.0, 3.0000002])}, "optimizer": [{"lr": 1e-3}]}
    assert named_digests(state) == named_digests({**state})
    assert named_digests(state)["actor.weight"] != named_digests(changed)["actor.weight"]
    assert list(named_digests(state)) == ["actor.weight", "optimizer.0.lr"]


def test_the_rank_that_differs_from_most_is_named():
    held = torch.tensor([[1, 7], [1, 8], [1, 7]])
    assert differences(["a", "b"], held) == {"b": "1"}


def test_of_two_ranks_the_higher_one_is_named():
    assert differences(["a"], torch.tensor([[1], [2]])) == {"a": "1"}


def test_a_single_process_is_always_in_step():
    check_synchrony({"actor": {"weight": torch.zeros(2), "count": torch.tensor(3)}})


# Training begins with the weights of checkpoints as rsl_rl 2 to 5 write them, for Isaac Lab and for mjlab.


STD = {"distribution.std_param": torch.ones(NUM_ACTIONS)}


def weights(learner: Learner, role: str) -> dict[str, torch.Tensor]:
    return dict(networks_of(learner.algorithm)[role].state_dict())


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def kept_of(learner: Learner, role: str, name: str) -> dict[str, torch.Tensor]:
    parameter = dict(networks_of(learner.algorithm)[role].named_parameters())[name]
    return learner.algorithm.optimizer.state[parameter]


def test_a_checkpoint_of_isaac_labs_rsl_rl_2_with_one_state_for_both_networks(tmp_path):
    path, module, optimizer = old_checkpoint(tmp_path / "model_1499.pt")
    learner = small_learner(*PLAIN)
    taken = begin_with(learner.algorithm, path)
    assert str(taken) == (f"training begins with the actor and the critic and the optimiser of {path} (iteration 1499)")
    for role in ("actor", "critic"):
        expected = {f"mlp.{name}": value for name, value in getattr(module, role).state_dict().items()}
        assert_same({k: v for k, v in weights(learner, role).items() if k.startswith("mlp.")}, expected)
        for name, parameter in getattr(module, role).named_parameters():
            kept = kept_of(learner, role, f"mlp.{name}")
            assert_same(dict(kept), dict(optimizer.state[parameter]))
    assert torch.equal(weights(learner, "actor")["distribution.std_param"], module.std)
    assert torch.equal(
        kept_of(learner, "actor", "distribution.std_param")["exp_avg"], optimizer.state[module.std]["exp_avg"]
    )
    assert learner.algorithm.optimizer.param_groups[0]["lr"] == learner.algorithm.learning_rate == 1e-3
    assert learner.iterations == 0
    learner.iterate()


def normalizer(size: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(1.0, size + 1)[None]
    return {"_mean": numbers, "_var": numbers**2, "_std": numbers.clone(), "count": torch.tensor(4096)}


@pytest.mark.parametrize("key", ["critic_obs_norm_state_dict", "privileged_obs_norm_state_dict"])
def test_normalisers_that_rsl_rl_2_keeps_beside_the_networks(tmp_path, key):
    kept: dict[str, Any] = {"obs_norm_state_dict": normalizer(5), key: {**normalizer(5), "count": torch.tensor(7)}}
    path, *_ = old_checkpoint(tmp_path / "model_0.pt", **kept)
    learner = small_learner(*SIZES)
    assert "not taken" not in str(begin_with(learner.algorithm, path))
    assert weights(learner, "actor")["obs_normalizer.count"] == 4096
    assert weights(learner, "critic")["obs_normalizer.count"] == 7
    assert torch.equal(weights(learner, "actor")["obs_normalizer._mean"], normalizer(5)["_mean"])


def test_normalisers_that_rsl_rl_3_keeps_within_the_state(tmp_path):
    path, module, optimizer = old_checkpoint(tmp_path / "model_0.pt")
    state = dict(module.state_dict())
    for role in ("actor", "critic"):
        state |= {f"{role}_obs_normalizer.{name}": value for name, value in normalizer(5).items()}
    torch.save({"model_state_dict": state, "optimizer_state_dict": optimizer.state_dict(), "iter": 3}, path)
    learner = small_learner(*SIZES)
    assert begin_with(learner.algorithm, path).taken == ("the actor", "the critic", "the optimiser")
    assert weights(learner, "critic")["obs_normalizer.count"] == 4096
    assert_same(dict(kept_of(learner, "critic", "mlp.4.bias")), dict(optimizer.state[module.critic[4].bias]))


def test_a_checkpoint_of_mjlabs_rsl_rl_5_with_a_state_for_each_network(tmp_path):
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, obs_normalization=True)
    saved = torch.load(training.checkpoint, weights_only=True)
    saved["infos"] = {"env_state": {"common_step_counter": 12}}
    torch.save(saved, training.checkpoint)
    learner = small_learner(*SIZES, "agent.critic.obs_normalization=false")
    taken = begin_with(learner.algorithm, training.checkpoint)
    assert taken.taken == ("the actor", "the critic", "the optimiser")
    assert_same(weights(learner, "actor"), saved["actor_state_dict"])
    assert_same(weights(learner, "critic"), saved["critic_state_dict"])
    theirs = training.runner.alg.optimizer.state
    for ours, parameter in zip(
        learner.algorithm.actor.parameters(), training.runner.alg.actor.parameters(), strict=True
    ):
        assert_same(dict(learner.algorithm.optimizer.state[ours]), dict(theirs[parameter]))


def test_a_recurrent_network_of_rsl_rl_5(tmp_path):
    lstm = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, **lstm)
    saved = torch.load(training.checkpoint, weights_only=True)
    words = (*PLAIN, *(f"agent.actor.{name}={value}" for name, value in lstm.items()))
    distribution = "agent.actor.distribution_cfg.class_name=GaussianDistribution"
    learner = small_learner(*words, "agent.actor.hidden_dims=[32, 16]", distribution)
    taken = begin_with(learner.algorithm, training.checkpoint)
    assert taken.taken[0] == "the actor"
    assert_same(weights(learner, "actor"), saved["actor_state_dict"])
    other = small_learner(*words, "agent.actor.rnn_hidden_dim=4", "agent.actor.hidden_dims=[32, 16]", distribution)
    with pytest.raises(ConfigError, match=r"has 'rnn\.rnn\.weight_hh_l0' of 32 x 8, and 16 x 4 is needed"):
        begin_with(other.algorithm, training.checkpoint)
    with pytest.raises(ConfigError, match=r"has 'rnn\.rnn\.bias_hh_l0' of 32, and none is needed"):
        begin_with(small_learner(*PLAIN).algorithm, training.checkpoint)


def test_rsl_rl_4_names_the_deviation_as_before(tmp_path):
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS)
    saved = torch.load(training.checkpoint, weights_only=True)
    actor = saved["actor_state_dict"]
    saved["actor_state_dict"] = {name.replace("distribution.std_param", "std"): actor[name] for name in actor}
    torch.save(saved, training.checkpoint)
    learner = small_learner(*PLAIN)
    assert begin_with(learner.algorithm, training.checkpoint).taken[-1] == "the optimiser"
    assert_same(weights(learner, "actor"), actor)


def test_a_deviation_is_taken_as_a_logarithm_where_that_is_what_is_learned(tmp_path):
    path, module, _ = old_checkpoint(tmp_path / "model_0.pt")
    distribution = "agent.actor.distribution_cfg={class_name: GaussianDistribution, std_type: log}"
    learner = small_learner(*PLAIN, distribution)
    assert "the optimiser begins anew" in begin_with(learner.algorithm, path).begun_anew
    assert torch.equal(weights(learner, "actor")["distribution.log_std_param"], module.std.detach().log())


def test_sizes_of_the_actor_that_do_not_fit_are_refused_with_both_numbers(tmp_path):
    path, *_ = old_checkpoint(tmp_path / "model_0.pt", num_numbers=48)
    with pytest.raises(ConfigError) as refused:
        begin_with(small_learner("agent.actor.obs_normalization=false").algorithm, path)
    assert [problem.message for problem in refused.value.problems] == [
        "its actor sees 48 numbers, and 5 are shown here",
        "its actor has hidden layers of [32, 16], and those here are [16]; use agent.actor.hidden_dims=[32, 16]",
    ]
    with pytest.raises(
        ConfigError, match=r"has no normaliser of observations; use agent\.actor.obs_normalization=false"
    ):
        begin_with(small_learner(*SIZES).algorithm, path)


def test_a_critic_that_does_not_fit_begins_anew_and_that_is_told(tmp_path):
    path, module, _ = old_checkpoint(tmp_path / "model_0.pt")
    critic = perceptron(99, 1).state_dict()
    state = {**module.state_dict(), **{f"critic.{name}": value for name, value in critic.items()}}
    torch.save({"model_state_dict": state, "iter": 7, "rnd_state_dict": {}}, path)
    learner = small_learner(*PLAIN)
    before = {name: value.clone() for name, value in weights(learner, "critic").items()}
    assert str(begin_with(learner.algorithm, path)) == (
        f"training begins with the actor of {path} (iteration 7); the critic begins anew: its critic sees 99 numbers, "
        "and 5 are shown here, the optimiser begins anew, not taken: rnd_state_dict"
    )
    assert_same(weights(learner, "critic"), before)


def test_a_checkpoint_without_a_critic_says_so(tmp_path):
    path, module, _ = old_checkpoint(tmp_path / "model_0.pt")
    torch.save({"actor_state_dict": {f"mlp.{k}": v for k, v in module.actor.state_dict().items()} | STD}, path)
    begun_anew = begin_with(small_learner(*PLAIN).algorithm, path).begun_anew
    assert begun_anew == ("the critic begins anew: the file holds none", "the optimiser begins anew")


def test_grpo_takes_the_actor_and_stays_near_it(tmp_path):
    path, module, _ = old_checkpoint(tmp_path / "model_0.pt")
    words = ("agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4", "agent.algorithm.kl_coef=0.1")
    learner = small_learner(*PLAIN, *words)
    assert begin_with(learner.algorithm, path).taken == ("the actor", "the optimiser")
    reference = learner.algorithm.reference.state_dict()
    assert torch.equal(reference["mlp.0.weight"], module.state_dict()["actor.0.weight"])
    learner.iterate()


@pytest.mark.parametrize("step", [torch.tensor(3.0), 3])
def test_steps_of_the_optimiser_may_be_plain_numbers_as_older_versions_of_torch_have_them(tmp_path, step):
    path, module, optimizer = old_checkpoint(tmp_path / "model_0.pt")
    state = optimizer.state_dict()
    for kept in state["state"].values():
        kept["step"] = step
    torch.save({"model_state_dict": module.state_dict(), "optimizer_state_dict": state}, path)
    learner = small_learner(*PLAIN)
    assert begin_with(learner.algorithm, path).taken[-1] == "the optimiser"
    learner.iterate()


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"state": {}, "param_groups": [{"params": []}]},
        {"state": {0: {"momentum_buffer": None}}, "param_groups": [{"params": [0]}]},
        {"state": {}, "param_groups": [{"params": [[]]}, 3]},
        {"state": [], "param_groups": None},
        "none",
    ],
)
def test_an_optimiser_that_is_none_begins_anew(tmp_path, optimizer):
    path, module, _ = old_checkpoint(tmp_path / "model_0.pt")
    torch.save({"model_state_dict": module.state_dict(), "optimizer_state_dict": optimizer}, path)
    assert begin_with(small_learner(*PLAIN).algorithm, path).begun_anew == ("the optimiser begins anew",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model_state_dict": {"actor.0.weight": torch.full((2, 5), torch.nan)}}, "holds NaN or infinity"),
        ({"model_state_dict": {7: torch.zeros(1)}}, "holds no student_state_dict"),
        ({"epoch": 3}, "holds no student_state_dict or actor_state_dict or model_state_dict of rsl_rl"),
        ({"weights": torch.zeros(1)}, r"holds weights alone \(weights\), and not of which network"),
        ({"model_state_dict": {"actor.0.weight": torch.zeros(1).expand(9, 5)}}, "they overlap"),
        ({"actor_state_dict": {}, "infos": logging.Logger}, "is not loaded: it could run code"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_a_sentence(tmp_path, content, told):
    path = tmp_path / "model_0.pt"
    torch.save(content, path)
    with pytest.raises(ConfigError, match=told):
        begin_with(small_learner(*PLAIN).algorithm, path)
