"""The learner on one rank and on several."""

import logging

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
    undisturbed, resumed = after_an_iteration(*words), small_learner(*words)
    undisturbed.iterate()
    learned, state = saved(undisturbed)
    told = [undisturbed.iterate() for _ in range(2)]
    torch.randn(17)
    assert resumed.load(learned, state)
    told_later = [resumed.iterate() for _ in range(2)]
    assert digests(resumed) == digests(undisturbed)
    for later, before in zip(told_later, told, strict=True):
        of_episodes = {name for name in before if name.startswith(("Train", "Metrics"))}
        assert words[:-1] == GRPO or {name: later[name] for name in of_episodes} == {n: before[n] for n in of_episodes}
    assert ("Loss/rnd" in told[0]) == (words[0] in CURIOUS)


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
    state["environment"]["training/sums"] = torch.zeros(11, dtype=torch.float64)
    assert without.load(learned, state), "an older version kept sums of other metrics"


def test_another_learning_rate_holds_from_where_training_goes_on_and_other_networks_are_refused():
    words = ("agent.algorithm.schedule=fixed", "agent.algorithm.learning_rate=0.001")
    learned, state = saved(after_an_iteration(*words))
    learned["infos"] = {"isaaclab_arena": {"config": {"agent": {"algorithm": {"learning_rate": 0.001}}}}}
    second = small_learner(*words[:1], "agent.algorithm.learning_rate=0.0001")
    second.load(learned, state)
    assert second.iterate()["Loss/learning_rate"] == 0.0001
    for word in ("agent.actor.hidden_dims=[8]", "agent.algorithm.class_name=GRPO"):
        with pytest.raises(ConfigError, match="other networks"):
            small_learner(word).load(learned, state)


@pytest.mark.slow
def test_ppo_and_grpo_learn_to_balance_a_pole():
    words = ("num_envs=32", "agent.algorithm.learning_rate=3e-3", "agent.num_steps_per_env=64")
    for learner in (small_learner(*words), small_learner(*GRPO, *words, "agent.algorithm.kl_coef=0.001")):
        falls = []
        for _ in range(20):
            learner.iterate()
            falls.append(int(learner.algorithm.storage.dones.sum()))
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
    assert "all checks held" in finished.stdout
    alone = algorithm(NUM_ENVS * ranks, DistributedContext())
    untrained = alone.save()["actor_state_dict"]["mlp.0.weight"].clone()
    show(alone, list(range(ranks)))
    alone.update()
    together = torch.load(tmp_path / "update.pt", weights_only=True)
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, value in alone.save()[network].items():
            torch.testing.assert_close(together[network][name], value, rtol=1e-5, atol=1e-6, msg=f"{network}.{name}")
    assert (untrained - together["actor_state_dict"]["mlp.0.weight"]).abs().max() > 1e-4, "nothing was learned"


def test_the_rank_that_differs_from_most_is_named():
    values = (3.0, 3.0, 3.0000002)
    one, same, other = ({"actor": {"weight": torch.tensor([last])}, "rates": [{"lr": 1e-3}]} for last in values)
    assert list(named_digests(one)) == ["actor.weight", "rates.0.lr"]
    digests = [list(named_digests(each).values()) for each in (one, other, same)]
    assert differences(["weight", "rate"], torch.tensor(digests)) == {"weight": "1"}
    assert differences(["a"], torch.tensor([[1], [2]])) == {"a": "1"}, "of two ranks the higher one"
    check_synchrony(one)


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
    assert BEGINS_WITH_ALL in told
    assert "(iteration 1499)" in told
    for role in ("actor", "critic"):
        for name, parameter in getattr(module, role).named_parameters():
            assert torch.equal(weights(learner, role)[f"mlp.{name}"], parameter)
            assert_same(dict(kept_of(learner, role, f"mlp.{name}")), dict(optimizer.state[parameter]))
    assert torch.equal(weights(learner, "actor")["distribution.std_param"], module.std)
    moments = kept_of(learner, "actor", "distribution.std_param")
    assert torch.equal(moments["exp_avg"], optimizer.state[module.std]["exp_avg"])
    assert learner.algorithm.optimizer.param_groups[0]["lr"] == learner.algorithm.learning_rate == 1e-3
    assert learner.iterations == 0
    learner.iterate()


BEGINS_WITH_ALL = "begins with the actor and the critic and the optimiser of "


@pytest.fixture
def old(tmp_path):
    return old_checkpoint(tmp_path / "model_1499.pt")


def normalizer(count: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(1.0, 6)[None]
    return {"_mean": numbers, "_var": numbers**2, "_std": numbers.clone(), "count": torch.tensor(count)}


@pytest.mark.parametrize("key", ["critic_obs_norm_state_dict", "privileged_obs_norm_state_dict", None])
def test_normalisers_lie_beside_the_networks_in_rsl_rl_2_and_within_their_state_in_rsl_rl_3(old, key):
    path, module, optimizer = old
    saved = torch.load(path, weights_only=True)
    if key:
        saved |= {"obs_norm_state_dict": normalizer(4096), key: normalizer(7)}
    else:
        for role, count in (("actor", 4096), ("critic", 7)):
            own = normalizer(count).items()
            saved["model_state_dict"] |= {f"{role}_obs_normalizer.{name}": value for name, value in own}
    torch.save(saved, path)
    learner = small_learner(*SIZES)
    told = begin_with(learner.algorithm, path)
    assert (BEGINS_WITH_ALL in told, "not taken" in told) == (True, False)
    for role, count in (("actor", 4096), ("critic", 7)):
        assert weights(learner, role)["obs_normalizer.count"] == count
        assert torch.equal(weights(learner, role)["obs_normalizer._mean"], normalizer(7)["_mean"])
    assert_same(dict(kept_of(learner, "critic", "mlp.4.bias")), dict(optimizer.state[module.critic[4].bias]))


@pytest.mark.parametrize("deviation", ["distribution.std_param", "std"], ids=["rsl_rl 5", "rsl_rl 4"])
def test_a_checkpoint_of_mjlabs_rsl_rl_5_with_a_state_for_each_network(tmp_path, deviation):
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, obs_normalization=True)
    saved = torch.load(training.checkpoint, weights_only=True)
    actor = saved["actor_state_dict"]
    renamed = {name.replace("distribution.std_param", deviation): value for name, value in actor.items()}
    torch.save({**saved, "infos": {"env_state": {"steps": 12}}, "actor_state_dict": renamed}, training.checkpoint)
    learner = small_learner(*SIZES, "agent.critic.obs_normalization=false")
    assert BEGINS_WITH_ALL in begin_with(learner.algorithm, training.checkpoint)
    assert_same(weights(learner, "actor"), actor)
    assert_same(weights(learner, "critic"), saved["critic_state_dict"])
    theirs = training.runner.alg
    for ours, parameter in zip(learner.algorithm.actor.parameters(), theirs.actor.parameters(), strict=True):
        assert_same(dict(learner.algorithm.optimizer.state[ours]), dict(theirs.optimizer.state[parameter]))


def test_a_recurrent_network_of_rsl_rl_5(tmp_path):
    lstm = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    training = trained(tmp_path / "run", num_observations=NUM_NUMBERS, num_actions=NUM_ACTIONS, **lstm)
    words = (*PLAIN, *(f"agent.actor.{name}={value}" for name, value in lstm.items()))
    words = (*words, "agent.actor.distribution_cfg.class_name=GaussianDistribution")
    learner = small_learner(*words)
    assert "begins with the actor " in begin_with(learner.algorithm, training.checkpoint)
    assert_same(weights(learner, "actor"), torch.load(training.checkpoint, weights_only=True)["actor_state_dict"])
    with pytest.raises(ConfigError, match="weight_hh_l0' of 32 x 8, and 16 x 4"):
        begin_with(small_learner(*words, "agent.actor.rnn_hidden_dim=4").algorithm, training.checkpoint)
    with pytest.raises(ConfigError, match="bias_hh_l0' of 32, and none"):
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
    assert "agent.actor.hidden_dims=[32, 16]" in layers
    with pytest.raises(ConfigError, match=r"agent.actor.obs_normalization=false"):
        begin_with(small_learner(*SIZES).algorithm, path)


def test_a_critic_that_does_not_fit_or_is_missing_begins_anew_and_that_is_told(old):
    path, module, _ = old
    critic = {f"critic.{name}": value for name, value in perceptron(99, 1).state_dict().items()}
    torch.save({"model_state_dict": {**module.state_dict(), **critic}, "iter": 7, "rnd_state_dict": {}}, path)
    learner = small_learner(*PLAIN)
    before = {name: value.clone() for name, value in weights(learner, "critic").items()}
    told = begin_with(learner.algorithm, path)
    assert all(part in told for part in ("begins with the actor of ", "99 numbers, and 5", "not taken: rnd_state_dict"))
    assert_same(weights(learner, "critic"), before)
    actor = {f"mlp.{name}": value for name, value in module.actor.state_dict().items()}
    torch.save({"actor_state_dict": {**actor, "distribution.std_param": torch.ones(NUM_ACTIONS)}}, path)
    told = begin_with(small_learner(*PLAIN).algorithm, path)
    assert told.endswith("; the critic starts untrained: the file holds none, the optimiser starts anew")


def test_grpo_takes_the_actor_and_stays_near_it_also_where_older_versions_of_torch_wrote_the_optimiser(old):
    path, module, optimizer = old
    state = optimizer.state_dict()
    for kept in state["state"].values():
        kept["step"] = 3
    torch.save({"model_state_dict": module.state_dict(), "optimizer_state_dict": state}, path)
    learner = small_learner(*PLAIN, *GRPO, "agent.algorithm.kl_coef=0.1")
    assert "begins with the actor and the optimiser of" in begin_with(learner.algorithm, path)
    assert torch.equal(learner.algorithm.reference.state_dict()["mlp.0.weight"], module.state_dict()["actor.0.weight"])
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
    assert begin_with(small_learner(*PLAIN).algorithm, path).endswith("; the optimiser starts anew")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model_state_dict": {"actor.0.weight": torch.full((2, 5), torch.nan)}}, "NaN"),
        ({"model_state_dict": {7: torch.zeros(1)}}, "student_state_dict"),
        ({"weights": torch.zeros(1)}, r"\(weights\)"),
        ({"model_state_dict": {"actor.0.weight": torch.zeros(1).expand(9, 5)}}, "overlap"),
        ({"actor_state_dict": {}, "infos": logging.Logger}, "could run code"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content, told):
    torch.save(content, tmp_path / "model_0.pt")
    with pytest.raises(ConfigError, match=told):
        begin_with(small_learner(*PLAIN).algorithm, tmp_path / "model_0.pt")
