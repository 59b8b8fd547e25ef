"""Environments as a training sees them."""

import dataclasses
import math
from contextlib import closing

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, Stream, episode_seed_sequence
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.models import ActionScaler, ActionScaling
from isaaclab_arena.training.learner import EpisodeCounter, TrainingEnvironment, check_agent
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS, build
from tests.environments.variations.varying import build_varied, everything
from tests.fakes_environment import ScriptedEnvironment
from tests.training.learning import small_config, small_learner


def env_slots(
    environment: Environment, *, seed: int = 3, group_size: int = 1, scaling: ActionScaling = ActionScaling.AS_IS
) -> TrainingEnvironment:
    scaler = ActionScaler(environment.action_spec, scaling, device=environment.device)
    training = TrainingEnvironment(environment, seed=seed, scaler=scaler, cfg={})
    training.group_size = group_size
    return training


def taken(training: TrainingEnvironment) -> dict[str, float]:
    return training.counter.measures(training.counter.take())


def run_until_an_episode_ends(training: TrainingEnvironment):
    for _ in range(20):
        observation, rewards, dones, extras = training.step(torch.zeros(training.num_envs, training.num_actions))
        if dones.any():
            return observation, rewards, dones, extras
    raise AssertionError("no episode ended")


@pytest.mark.parametrize(
    ("ending", "is_time_out"), [("success", True), ("timeout", True), ("failure", False), ("error", False)]
)
def test_only_what_is_lost_is_worth_nothing_from_then_on(ending, is_time_out):
    training = env_slots(ScriptedEnvironment(4, endings=(ending,)))
    observation, _, dones, extras = run_until_an_episode_ends(training)
    assert extras["time_outs"].equal(dones & is_time_out)
    assert observation["policy"].isfinite().all()


def test_an_env_slot_that_ends_shows_the_next_episode_at_once():
    environment = ScriptedEnvironment(1, endings=("failure",))
    training = env_slots(environment)
    observation, *_ = run_until_an_episode_ends(training)
    second = Episode(job="training", episode_index=1, seed=3)
    start = environment.draw_conditions(second.conditions_generator())["point.start"]
    assert observation["policy"][0].tolist() == pytest.approx(start)
    assert training.episode_length_buf.tolist() == [0]


def test_env_slots_begin_as_if_in_the_middle_so_that_not_all_end_at_once():
    training = env_slots(ScriptedEnvironment(2, endings=("timeout",)))
    training.episode_length_buf[:] = torch.tensor([7, 0])
    _, _, dones, extras = training.step(torch.zeros(2, 3))
    assert dones.tolist() == [True, False]
    assert extras["time_outs"].tolist() == [True, False]
    assert taken(training)["Train/num_episodes"] == 0, "an episode that was cut short is none"


def test_ranks_of_other_seeds_begin_other_episodes():
    first, second = (env_slots(ScriptedEnvironment(2), seed=seed) for seed in (3, 4))
    assert not first.get_observations()["policy"].equal(second.get_observations()["policy"])


def test_the_env_slots_of_a_group_begin_alike_and_groups_do_not():
    training = env_slots(ScriptedEnvironment(6), group_size=3)
    for _ in range(3):
        seen = training.restart()["policy"]
        assert [seen[0].equal(other) for other in seen] == [True, True, True, False, False, False]
        # Episodes that end and begin in between, one by one, must not put the groups out of step.
        run_until_an_episode_ends(training)


def test_an_env_slot_that_is_called_solved_and_goes_on_is_no_time_out():
    environment = ScriptedEnvironment(3, endings=("timeout",))
    step = environment.step
    environment.step = lambda action: dataclasses.replace(step(action), success=torch.ones(3, dtype=torch.bool))
    training = env_slots(environment)
    for _ in range(8):
        _, _, dones, extras = training.step(torch.zeros(3, 3))
        assert extras["time_outs"].equal(dones)


def test_an_episode_that_began_as_if_in_the_middle_counts_for_nothing_however_it_ends():
    training = env_slots(ScriptedEnvironment(64, endings=("failure",)))
    torch.manual_seed(0)
    training.begin_in_the_middle()
    late = int((training.episode_length_buf > 0).sum())
    # Episodes have 3 to 8 steps, so that each env slot ends its first one meanwhile.
    ended = sum(int(training.step(torch.zeros(64, 3))[2].sum()) for _ in range(8))
    told = taken(training)
    assert 0 < late < 64
    assert told["Train/num_episodes"] == ended - late
    assert told["Train/mean_episode_length"] >= 3
    assert told["Train/lost_rate"] == 1.0


def test_outputs_can_be_shares_of_the_actions_bounds():
    environment = ScriptedEnvironment(1, endings=("timeout",))
    training = env_slots(environment, scaling=ActionScaling.WITHIN_BOUNDS)
    before = training.get_observations()["policy"].clone()
    after, *_ = training.step(torch.tensor([[1.0, -5.0, 0.0]]))
    assert (after["policy"] - before)[0].tolist() == pytest.approx([0.2, -0.1, 0.05], abs=1e-6)


def test_a_group_without_terms_is_a_vector_without_numbers():
    environment = ScriptedEnvironment(2)
    environment.observation_spec = {"policy": {"position": ArraySpec(shape=(3,))}, "critic": {}}
    observe = environment._observe
    environment._observe = lambda: {**observe(), "critic": {}}
    training = env_slots(environment)
    assert training.get_observations()["critic"].shape == (2, 0)
    observation, *_ = training.step(torch.zeros(2, 3))
    assert observation["critic"].shape == (2, 0)


def test_no_picture_is_drawn_because_no_network_looks_at_one():
    seeing, blind = (build("reach", num_envs=3, enable_cameras=enabled) for enabled in (True, False))
    with closing(env_slots(seeing)) as with_cameras, closing(env_slots(blind)) as without:
        for training in (with_cameras, without):
            # Past the end of the first episodes, and then all begin anew.
            training.begin_in_the_middle()
            training.episode_length_buf[:] = training.max_episode_length - 2
        for _ in range(4):
            seen, *_ = with_cameras.step(torch.zeros(3, with_cameras.num_actions))
            assert seen["policy"].equal(without.step(torch.zeros(3, without.num_actions))[0]["policy"])
        assert with_cameras.restart()["policy"].equal(without.restart()["policy"])
        assert set(with_cameras.get_observations().keys()) == {"policy"}
    assert seeing.pictures_drawn == 0


def refused(*words: str) -> list[str]:
    """Return the problems of a training's settings: key and message."""
    with pytest.raises(ConfigError) as raised:
        check_agent(small_config(*words))
    return [f"{problem.key}: {problem.message}" for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("words", "key", "told"),
    [
        (["algorithm.gama=0.9"], "algorithm.gama", "'gamma'"),
        (["actor.hidden_dim=[8]"], "actor.hidden_dim", "'hidden_dims'"),
        (["algorithm.gamma=much"], "algorithm.gamma", "float"),
        (["algorithm.class_name=PPPO"], "algorithm.class_name", "'PPPO'"),
        (["algorithm.class_name=no.such:Thing"], "algorithm.class_name", "'no.such:Thing'"),
        (["algorithm.multi_gpu_cfg={}"], "algorithm.multi_gpu_cfg", "PPO"),
        (["algorithm.num_mini_batches=-4"], "algorithm.num_mini_batches", "-4"),
        (["algorithm.num_mini_batches=0"], "algorithm.num_mini_batches", "got 0"),
        (["algorithm.num_learning_epochs=0"], "algorithm.num_learning_epochs", "got 0"),
        (["algorithm.schedule=adaptve"], "algorithm.schedule", "'adaptive'"),
        (["algorithm.gamma=2"], "algorithm.gamma", "0 to 1"),
        (["actor.hidden_dims=[]"], "actor.hidden_dims", "got []"),
        (["critic.hidden_dims=[0]"], "critic.hidden_dims", "got [0]"),
        (["algorithm.class_name=GRPO", "algorithm.group_size=3"], "algorithm.group_size", "use 2 or 4"),
        (["actor.distribution_cfg=null"], "actor.distribution_cfg", "distribution_cfg"),
    ],
)
def test_settings_with_which_nothing_would_be_learned_are_told_before_anything_is_built(words, key, told):
    found = refused(*(f"agent.{word}" for word in words))
    assert any(problem.startswith(f"agent.{key}: ") and told in problem for problem in found), found


def test_all_problems_are_told_at_once_and_a_class_of_another_package_is_none():
    assert len(refused("agent.algorithm.gama=0.9", "agent.critic.size=3", "agent.algorithm.num_mini_batches=5")) == 3
    check_agent(small_config("agent.algorithm.class_name=rsl_rl.algorithms:PPO"))


def test_samples_that_would_never_be_learned_from_are_refused():
    (problem,) = refused("agent.algorithm.num_mini_batches=5")
    for part in ("agent.algorithm.num_mini_batches: ", "8 env slots x 16 steps = 128", "3 would never", "use 4 or 8"):
        assert part in problem
    words = ("agent.actor.class_name=RNNModel", "agent.actor.distribution_cfg.class_name=GaussianDistribution")
    (problem,) = refused("num_envs=6", *words)
    assert "6 env slots of a recurrent policy" in problem
    assert "2 would never" in problem


def test_a_group_of_observations_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"agent.obs_groups.actor: .*'polcy'; did you mean"):
        small_learner("agent.obs_groups.actor=[polcy]")


# Starts that training draws together are those of the episodes, drawn one by one with numpy's own seeding.


SEED = 2**40 + 3


class OneByOne(Episode):
    """An episode whose streams numpy seeds, each on its own."""

    def conditions_generator(self) -> np.random.Generator:
        return np.random.default_rng(episode_seed_sequence(self.seed, Stream.CONDITIONS, self.episode_index))

    def variation_generator(self, variation: str) -> np.random.Generator:
        sequence = episode_seed_sequence(self.seed, Stream.VARIATION, self.episode_index, variation)
        return np.random.default_rng(sequence)


def drawn_one_by_one(environment: Environment, index: int) -> Conditions:
    episode = OneByOne(job="training", episode_index=index, seed=SEED)
    return environment.vary_conditions(environment.draw_conditions(episode.conditions_generator()), episode)


def in_training(environment: Environment, num_drawn: int = 0) -> TrainingEnvironment:
    """Return the environment in training, before the next start that a test asks for."""
    training = env_slots(environment, seed=SEED)
    training.num_drawn = num_drawn
    return training


def assert_starts_are_those_of_the_episodes(environment: Environment) -> None:
    starts = in_training(environment)
    drawn = [conditions for count in (20, 1, 3, 6) for conditions in starts.next_conditions(count)]
    assert drawn == [drawn_one_by_one(environment, index) for index in range(30)]
    for conditions in drawn:
        parts = [part for value in conditions.values() for part in (value if isinstance(value, tuple) else (value,))]
        assert {type(part) for part in parts} <= {float, int, str}, "this is no JSON"
    environment.close()


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_environment_starts_as_its_episodes_do(name):
    assert_starts_are_those_of_the_episodes(build(name))
    if name in ALL_ENVIRONMENTS:
        assert_starts_are_those_of_the_episodes(build_varied(name, everything(name)))


def test_starts_go_on_from_where_a_checkpoint_left_them():
    environment = build("reach")
    starts = in_training(environment, num_drawn=2**32 - 2)
    assert starts.next_conditions(4) == [drawn_one_by_one(environment, 2**32 - 2 + each) for each in range(4)]


def mask(*env_ids: int) -> torch.Tensor:
    return torch.tensor([env_id in env_ids for env_id in range(3)])


NONE = mask()
PAID = Step(
    observation={},
    reward=torch.ones(3),
    terminated=NONE,
    truncated=NONE,
    success=NONE,
    diverged=NONE,
    metrics={"distance_m": torch.zeros(3)},
)


def step(reward: float = 1.0, *, metric: float = 0.0, **changed: torch.Tensor | None) -> Step:
    numbers = {"reward": torch.full((3,), reward), "metrics": {"distance_m": torch.full((3,), metric)}}
    return dataclasses.replace(PAID, **numbers, **changed)


@pytest.fixture
def counter() -> EpisodeCounter:
    return EpisodeCounter(3, torch.device("cpu"))


def statistics_taken(counter: EpisodeCounter) -> dict[str, float]:
    return {name.rpartition("/")[2]: value for name, value in counter.measures(counter.take()).items()}


def test_an_episode_counts_with_the_whole_of_its_rewards_and_steps(counter):
    counter.add(step(1.0), NONE, NONE)
    counter.add(step(2.0, terminated=mask(0), success=mask(0), metric=0.5), mask(0), NONE)
    counter.add(step(4.0, terminated=mask(0, 1)), mask(0, 1), NONE)
    told = statistics_taken(counter)
    assert told == {
        "num_episodes": 3,
        "mean_reward": pytest.approx((3 + 4 + 7) / 3),
        "mean_episode_length": pytest.approx((2 + 1 + 3) / 3),
        "success_rate": pytest.approx(1 / 3),
        "lost_rate": pytest.approx(2 / 3),
        "distance_m": pytest.approx(0.5 / 3),
    }


def test_what_was_taken_does_not_count_again(counter):
    counter.add(step(terminated=mask(0)), mask(0), NONE)
    assert statistics_taken(counter)["num_episodes"] == 1
    assert statistics_taken(counter) == {"num_episodes": 0}


def test_an_env_slot_that_was_stopped_in_the_middle_begins_from_nothing_and_counts_for_nothing(counter):
    counter.add(step(5.0), NONE, mask(2))
    counter.add(step(1.0, terminated=mask(2)), mask(2), NONE)
    told = statistics_taken(counter)
    assert (told["num_episodes"], told["mean_reward"], told["mean_episode_length"]) == (1, 1.0, 1.0)


def test_an_env_slot_that_broke_down_is_lost_has_not_succeeded_and_its_numbers_spoil_nothing(counter):
    counter.add(step(math.nan, diverged=mask(1), metric=math.nan), mask(1), NONE)
    told = statistics_taken(counter)
    assert (told["lost_rate"], told["mean_reward"], told["success_rate"]) == (1.0, 0.0, 0.0)
    counter.add(step(terminated=mask(0), success=mask(0, 1), diverged=mask(1), metric=2.0), mask(0, 1), NONE)
    told = statistics_taken(counter)
    assert (told["distance_m"], told["success_rate"], told["lost_rate"]) == (2.0, 0.5, 0.5)


def test_a_metric_or_success_is_the_mean_of_the_episodes_that_have_it(counter):
    counter.add(step(terminated=mask(0), metric=math.nan, success=None), mask(0), NONE)
    assert not {"distance_m", "success_rate"} & statistics_taken(counter).keys()
    counter.add(step(terminated=mask(0), metric=math.nan), mask(0), NONE)
    counter.add(step(terminated=mask(1), metric=3.0), mask(1), NONE)
    told = statistics_taken(counter)
    assert (told["num_episodes"], told["distance_m"]) == (2, 3.0)
