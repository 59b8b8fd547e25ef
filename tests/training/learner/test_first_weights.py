"""Training begins with the weights of checkpoints as rsl_rl 2 to 5 write them, for Isaac Lab and for mjlab."""

import logging
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.checkpoints import begin_with, networks_of
from isaaclab_arena.training.learner import Learner
from tests.models.trainings import trained
from tests.training.learning import small_learner
from tests.training.rsl_rl_checkpoints import NUM_ACTIONS, NUM_NUMBERS, PLAIN, SIZES, old_checkpoint, perceptron

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
