"""The learner on one rank and on several."""

import logging
import math

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


def after_an_iteration(*words: str) -> Learner:
    learner = small_learner(*words)
    learner.iterate()
    return learner


@pytest.mark.parametrize(
    "words",
    [GRPO, RECURRENT, ("agent.algorithm.schedule=linear",), CURIOUS],
    ids=["grpo", "recurrent", "linear", "curious"],
)
def test_training_that_is_taken_up_again_gives_the_bits_of_an_undisturbed_one(words):
    words = (*words, "agent.max_iterations=10")
    undisturbed = after_an_iteration(*words)
    undisturbed.iterate()
    learned, state = saved(undisturbed)
    told = [undisturbed.iterate() for _ in range(2)]
    torch.randn(17)
    resumed = small_learner(*words)
    assert resumed.load(learned, state)
    told_later = [resumed.iterate() for _ in range(2)]
    assert digests(resumed) == digests(undisturbed)
    assert list(map(of_episodes, told_later)) == list(map(of_episodes, told)) or words[:-1] == GRPO
    assert ("Loss/rnd" in told[0]) == (words[0] in CURIOUS)


def test_a_checkpoint_that_has_other_sums_of_metrics_is_taken_up_as_well():
    interrupted, resumed = after_an_iteration(), small_learner()
    learned, state = saved(interrupted)
    state["environment"]["training/sums"] = torch.zeros(11, dtype=torch.float64)
    assert resumed.load(learned, state)
    assert of_episodes(resumed.iterate()) == of_episodes(interrupted.iterate())


def test_another_number_of_env_slots_or_no_state_goes_on_with_new_episodes():
    first = after_an_iteration(*RECURRENT)
    learned, state = saved(first)
    without = small_learner(*RECURRENT)
    assert not without.load(learned, None)
    assert (without.iterations, digests(without)) == (1, digests(first))
    second = small_learner("num_envs=16", *RECURRENT)
    assert not second.load(learned, state)
    before = second.env_steps
    second.iterate()
    assert second.env_steps - before == 16 * 16


def test_another_learning_rate_holds_from_where_training_goes_on():
    words = ("agent.algorithm.schedule=fixed", "agent.algorithm.learning_rate=0.001")
    learned, state = saved(after_an_iteration(*words))
    learned["infos"] = {"isaaclab_arena": {"config": {"agent": {"algorithm": {"learning_rate": 0.001}}}}}
    second = small_learner(*words[:1], "agent.algorithm.learning_rate=0.0001")
    second.load(learned, state)
    assert second.iterate()["Loss/learning_rate"] == 0.0001


@pytest.mark.parametrize("word", ["agent.actor.hidden_dims=[8]", "agent.algorithm.class_name=GRPO"])
def test_a_checkpoint_of_other_networks_is_refused(word):
    learned, state = saved(small_learner())
    with pytest.raises(ConfigError, match="other networks"):
        small_learner(word).load(learned, state)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not():
    first, same, other = (digests(after_an_iteration(*words)) for words in ((), (), ("agent.seed=43",)))
    assert first == same != other


# Half a minute of trainings; their losses and their bits are held by faster tests.
@pytest.mark.slow
def test_ppo_and_grpo_learn_to_balance_a_pole():
    words = ("num_envs=32", "agent.algorithm.learning_rate=3e-3")
    ppo = small_learner(*words)
    lengths = [ppo.iterate().get("Train/mean_episode_length", math.nan) for _ in range(20)]
    assert max(lengths[-3:]) > 2 * next(length for length in lengths if not math.isnan(length))
    grpo = small_learner(*GRPO, *words, "agent.num_steps_per_env=64", "agent.algorithm.kl_coef=0.001")
    falls = []
    for _ in range(20):
        grpo.iterate()
        falls.append(int(grpo.algorithm.storage.dones.sum()))
    assert sum(falls[-3:]) < sum(falls[:3]) / 2


@pytest.mark.parametrize("words", [(), pytest.param(GRPO, marks=pytest.mark.slow)], ids=["ppo", "grpo"])
def test_the_learning_rate_falls_over_iterations_whatever_the_number_of_ranks(words):
    learner = small_learner(
        *words, "agent.algorithm.schedule=linear", "agent.max_iterations=4", "agent.learning_rate=0.001"
    )
    rates = [learner.iterate()["Loss/learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4, 0.0, 0.0])
    assert [group["lr"] for group in learner.algorithm.optimizer.param_groups] == [0.0]


def test_nan_ends_training_with_a_way_out():
    learner = after_an_iteration()
    with torch.no_grad():
        next(learner.algorithm.actor.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"iteration 1: .* agent.learning_rate"):
        learner.iterate()


# Learning on several ranks gives what one process would learn from all samples.


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
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
    assert differences(["a"], torch.tensor([[1], [2]])) == {"a": "1"}, "of two ranks the higher one"
    check_synchrony({"actor": {"weight": torch.zeros(2), "count": torch.tensor(3)}})


# Training begins with the weights of checkpoints as rsl_rl 2 to 5 write them, for Isaac Lab and for mjlab.


def weights(learner: Learner, role: str) -> dict[str, torch.Tensor]:
    return dict(networks_of(learner.algorithm)[role].state_dict())


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def kept_of(learner: Learner, role: str, name: str) -> dict[str, torch.Tensor]:
    parameter = dict(networks_of(learner.algorithm)[role].named_parameters())[name]
    return learner.algorithm.optimizer.state[parameter]


def test_a_checkpoint_of_isaac_labs_rsl_rl_2_with_one_state_for_both_networks(old):
    path, module, optimizer = old
    learner = small_learner(*PLAIN)
    told = begin_with(learner.algorithm, path)
    assert told.startswith("training begins with the actor and the critic and the optimiser of ")
    assert "(iteration 1499)" in told
    for role in ("actor", "critic"):
        expected = {f"mlp.{name}": value for name, value in getattr(module, role).state_dict().items()}
        assert_same({k: v for k, v in weights(learner, role).items() if k.startswith("mlp.")}, expected)
        for name, parameter in getattr(module, role).named_parameters():
            kept = kept_of(learner, role, f"mlp.{name}")
            assert_same(dict(kept), dict(optimizer.state[parameter]))
    assert torch.equal(weights(learner, "actor")["distribution.std_param"], module.std)
    moments = kept_of(learner, "actor", "distribution.std_param")
    assert torch.equal(moments["exp_avg"], optimizer.state[module.std]["exp_avg"])
    assert learner.algorithm.optimizer.param_groups[0]["lr"] == learner.algorithm.learning_rate == 1e-3
    assert learner.iterations == 0
    learner.iterate()


@pytest.fixture
def old(tmp_path):
    return old_checkpoint(tmp_path / "model_1499.pt")


def normalizer(size: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(1.0, size + 1)[None]
    return {"_mean": numbers, "_var": numbers**2, "_std": numbers.clone(), "count": torch.tensor(4096)}


@pytest.mark.parametrize("key", ["critic_obs_norm_state_dict", "privileged_obs_norm_state_dict", None])
def test_normalisers_lie_beside_the_networks_in_rsl_rl_2_and_within_their_state_in_rsl_rl_3(old, key):
    path, module, optimizer = old
    saved = torch.load(path, weights_only=True)
    actors, critics = normalizer(5), {**normalizer(5), "count": torch.tensor(7)}
    if key:
        saved |= {"obs_norm_state_dict": actors, key: critics}
    else:
        for role, own in (("actor", actors), ("critic", critics)):
            saved["model_state_dict"] |= {f"{role}_obs_normalizer.{name}": value for name, value in own.items()}
    torch.save(saved, path)
    learner = small_learner(*SIZES)
    told = begin_with(learner.algorithm, path)
    assert told.startswith("training begins with the actor and the critic and the optimiser of ")
    assert "not taken" not in told
    assert (weights(learner, "actor")["obs_normalizer.count"], weights(learner, "critic")["obs_normalizer.count"]) == (
        4096,
        7,
    )
    assert torch.equal(weights(learner, "actor")["obs_normalizer._mean"], normalizer(5)["_mean"])
    assert_same(dict(kept_of(learner, "critic", "mlp.4.bias")), dict(optimizer.state[module.critic[4].bias]))


@pytest.mark.parametrize("deviation", ["distribution.std_param", "std"], ids=["rsl_rl 5", "rsl_rl 4"])
def test_a_checkpoint_of_mjlabs_rsl_rl_5_with_a_state_for_each_network(tmp_path, deviation):
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, obs_normalization=True)
    saved = torch.load(training.checkpoint, weights_only=True)
    actor = saved["actor_state_dict"]
    renamed = {name.replace("distribution.std_param", deviation): value for name, value in actor.items()}
    state = {"infos": {"env_state": {"common_step_counter": 12}}, "actor_state_dict": renamed}
    torch.save({**saved, **state}, training.checkpoint)
    learner = small_learner(*SIZES, "agent.critic.obs_normalization=false")
    told = begin_with(learner.algorithm, training.checkpoint)
    assert told.startswith("training begins with the actor and the critic and the optimiser of ")
    assert_same(weights(learner, "actor"), actor)
    assert_same(weights(learner, "critic"), saved["critic_state_dict"])
    parameters = [each.alg.actor.parameters() for each in (training.runner,)]
    theirs = training.runner.alg.optimizer.state
    for ours, parameter in zip(learner.algorithm.actor.parameters(), *parameters, strict=True):
        assert_same(dict(learner.algorithm.optimizer.state[ours]), dict(theirs[parameter]))


def test_a_recurrent_network_of_rsl_rl_5(tmp_path):
    lstm = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, **lstm)
    saved = torch.load(training.checkpoint, weights_only=True)
    words = (*PLAIN, *(f"agent.actor.{name}={value}" for name, value in lstm.items()))
    words = (*words, "agent.actor.distribution_cfg.class_name=GaussianDistribution")
    learner = small_learner(*words)
    assert "begins with the actor " in begin_with(learner.algorithm, training.checkpoint)
    assert_same(weights(learner, "actor"), saved["actor_state_dict"])
    with pytest.raises(ConfigError, match=r"'rnn\.rnn\.weight_hh_l0' of 32 x 8, and 16 x 4"):
        begin_with(small_learner(*words, "agent.actor.rnn_hidden_dim=4").algorithm, training.checkpoint)
    with pytest.raises(ConfigError, match=r"'rnn\.rnn\.bias_hh_l0' of 32, and none"):
        begin_with(small_learner(*PLAIN).algorithm, training.checkpoint)


def test_a_deviation_is_taken_as_a_logarithm_where_that_is_what_is_learned_and_back(old, tmp_path):
    path, module, _ = old
    learner = small_learner(*PLAIN, "agent.actor.distribution_cfg={class_name: GaussianDistribution, std_type: log}")
    assert "the optimiser starts anew" in begin_with(learner.algorithm, path)
    assert torch.equal(weights(learner, "actor")["distribution.log_std_param"], module.std.detach().log())
    torch.save({**learner.algorithm.save(), "iter": 8, "infos": None}, tmp_path / "model_8.pt")
    plain = small_learner(*PLAIN)
    begin_with(plain.algorithm, tmp_path / "model_8.pt")
    torch.testing.assert_close(weights(plain, "actor")["distribution.std_param"], module.std.detach())


def test_sizes_of_the_actor_that_do_not_fit_are_refused_with_both_numbers(tmp_path):
    path, *_ = old_checkpoint(tmp_path / "model_0.pt", num_numbers=48)
    with pytest.raises(ConfigError) as refused:
        begin_with(small_learner("agent.actor.obs_normalization=false").algorithm, path)
    numbers, layers = (problem.message for problem in refused.value.problems)
    assert "48 numbers, and 5" in numbers
    assert "use agent.actor.hidden_dims=[32, 16]" in layers
    with pytest.raises(ConfigError, match=r"use agent\.actor.obs_normalization=false"):
        begin_with(small_learner(*SIZES).algorithm, path)


def test_a_critic_that_does_not_fit_or_is_missing_begins_anew_and_that_is_told(old):
    path, module, _ = old
    state = module.state_dict()
    critic = {f"critic.{name}": value for name, value in perceptron(99, 1).state_dict().items()}
    torch.save({"model_state_dict": {**state, **critic}, "iter": 7, "rnd_state_dict": {}}, path)
    learner = small_learner(*PLAIN)
    before = {name: value.clone() for name, value in weights(learner, "critic").items()}
    told = begin_with(learner.algorithm, path)
    assert told.startswith("training begins with the actor of ")
    assert "99 numbers, and 5" in told
    assert "not taken: rnd_state_dict" in told
    assert_same(weights(learner, "critic"), before)
    actor = {f"mlp.{k}": v for k, v in module.actor.state_dict().items()}
    torch.save({"actor_state_dict": {**actor, "distribution.std_param": torch.ones(NUM_ACTIONS)}}, path)
    told = begin_with(small_learner(*PLAIN).algorithm, path)
    assert told.endswith("; the critic starts untrained: the file holds none, the optimiser starts anew")


def test_grpo_takes_the_actor_and_stays_near_it(old):
    path, module, _ = old
    learner = small_learner(*PLAIN, *GRPO, "agent.algorithm.kl_coef=0.1")
    assert "begins with the actor and the optimiser of" in begin_with(learner.algorithm, path)
    reference = learner.algorithm.reference.state_dict()
    assert torch.equal(reference["mlp.0.weight"], module.state_dict()["actor.0.weight"])
    learner.iterate()


def test_steps_of_the_optimiser_may_be_plain_numbers_as_older_versions_of_torch_have_them(old):
    path, module, optimizer = old
    state = optimizer.state_dict()
    for kept in state["state"].values():
        kept["step"] = 3
    torch.save({"model_state_dict": module.state_dict(), "optimizer_state_dict": state}, path)
    learner = small_learner(*PLAIN)
    assert "and the optimiser of" in begin_with(learner.algorithm, path)
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
def test_an_optimiser_that_is_none_begins_anew(old, optimizer):
    path, module, _ = old
    torch.save({"model_state_dict": module.state_dict(), "optimizer_state_dict": optimizer}, path)
    assert begin_with(small_learner(*PLAIN).algorithm, path).endswith(".pt; the optimiser starts anew")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model_state_dict": {"actor.0.weight": torch.full((2, 5), torch.nan)}}, "NaN"),
        ({"model_state_dict": {7: torch.zeros(1)}}, "student_state_dict"),
        ({"epoch": 3}, "student_state_dict or actor_state_dict or model_state_dict"),
        ({"weights": torch.zeros(1)}, r"\(weights\)"),
        ({"model_state_dict": {"actor.0.weight": torch.zeros(1).expand(9, 5)}}, "overlap"),
        ({"actor_state_dict": {}, "infos": logging.Logger}, "could run code"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content, told):
    path = tmp_path / "model_0.pt"
    torch.save(content, path)
    with pytest.raises(ConfigError, match=told):
        begin_with(small_learner(*PLAIN).algorithm, path)
