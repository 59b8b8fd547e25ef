"""Environments as a training sees them."""

import dataclasses
import json
import math
from contextlib import closing

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, Stream, episode_seed_sequence
from isaaclab_arena.models import ActionScaler, ActionScaling
from isaaclab_arena.training.learner import EpisodeCounter, TrainingEnvironment, check_agent
from tests.environments.building import ALL_ENVIRONMENTS, build
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
def test_only_what_is_lost_is_worth_nothing_from_then_on_and_the_next_episode_is_shown_at_once(ending, is_time_out):
    environment = ScriptedEnvironment(1, endings=(ending,))
    training = env_slots(environment)
    observation, _, dones, extras = run_until_an_episode_ends(training)
    assert extras["time_outs"].equal(dones & is_time_out)
    second = Episode(job="training", episode_index=1, seed=3)
    start = environment.draw_conditions(second.conditions_generator())["point.start"]
    assert observation["policy"][0].tolist() == pytest.approx(start)
    assert training.episode_length_buf.tolist() == [0]


def test_an_env_slot_that_is_called_solved_and_goes_on_is_no_time_out():
    environment = ScriptedEnvironment(3, endings=("timeout",))
    step = environment.step
    environment.step = lambda action: dataclasses.replace(step(action), success=torch.ones(3, dtype=torch.bool))
    training = env_slots(environment)
    for _ in range(8):
        _, _, dones, extras = training.step(torch.zeros(3, 3))
        assert extras["time_outs"].equal(dones)


def test_an_episode_that_began_as_if_in_the_middle_is_cut_short_and_counts_for_nothing_however_it_ends():
    training = env_slots(ScriptedEnvironment(64, endings=("failure",)))
    torch.manual_seed(0)
    training.begin_in_the_middle()
    late = training.episode_length_buf > 0
    training.episode_length_buf[late.nonzero()[0]] = 7
    _, _, dones, extras = training.step(torch.zeros(64, 3))
    assert dones.tolist() == extras["time_outs"].tolist()
    assert dones[late.nonzero()[0]]
    # Episodes have 3 to 8 steps, so that each env slot ends its first one meanwhile.
    ended = int(dones.sum()) + sum(int(training.step(torch.zeros(64, 3))[2].sum()) for _ in range(7))
    told = taken(training)
    assert 0 < int(late.sum()) < 64
    assert told["Train/num_episodes"] == ended - int(late.sum())
    assert told["Train/mean_episode_length"] >= 3
    assert told["Train/lost_rate"] == 1.0


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


def test_outputs_can_be_shares_of_the_actions_bounds():
    environment = ScriptedEnvironment(1, endings=("timeout",))
    training = env_slots(environment, scaling=ActionScaling.WITHIN_BOUNDS)
    before = training.get_observations()["policy"].clone()
    after, *_ = training.step(torch.tensor([[1.0, -5.0, 0.0]]))
    assert (after["policy"] - before)[0].tolist() == pytest.approx([0.2, -0.1, 0.05], abs=1e-6)


def test_no_picture_is_drawn_because_no_network_looks_at_one():
    environment = build("reach", num_envs=3, enable_cameras=True)
    with closing(env_slots(environment)) as training:
        training.episode_length_buf[:] = training.max_episode_length - 2
        for _ in range(4):
            # Past the end of the first episodes, and then all begin anew.
            training.step(torch.zeros(3, training.num_actions))
        assert set(training.restart().keys()) == {"policy"}
    assert environment.pictures_drawn == 0


def refused(*words: str) -> list[str]:
    """Return the problems of a training's settings: key and message."""
    with pytest.raises(ConfigError) as raised:
        check_agent(small_config(*words))
    return [f"{problem.key}: {problem.message}" for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["algorithm.gama=0.9"], "'gamma'"),
        (["actor.hidden_dim=[8]"], "'hidden_dims'"),
        (["algorithm.gamma=much"], "float"),
        (["algorithm.class_name=PPPO"], "'PPPO'"),
        (["algorithm.class_name=no.such:Thing"], "'no.such:Thing'"),
        (["algorithm.multi_gpu_cfg={}"], "PPO"),
        (["algorithm.num_mini_batches=-4"], "-4"),
        (["algorithm.num_learning_epochs=0"], "got 0"),
        (["algorithm.schedule=adaptve"], "'adaptive'"),
        (["algorithm.gamma=2"], "0 to 1"),
        (["actor.hidden_dims=[]"], "got []"),
        (["critic.hidden_dims=[0]"], "got [0]"),
        (["algorithm.group_size=3", "algorithm.class_name=GRPO"], "use 2 or 4"),
        (["actor.distribution_cfg=null"], "distribution_cfg"),
    ],
)
def test_settings_with_which_nothing_would_be_learned_are_told_before_anything_is_built(words, told):
    found = refused(*(f"agent.{word}" for word in words))
    key = words[0].partition("=")[0]
    assert any(problem.startswith(f"agent.{key}: ") and told in problem for problem in found), found


def test_samples_that_would_never_be_learned_from_are_refused():
    words = ("agent.algorithm.num_mini_batches=5", "agent.algorithm.gama=0.9", "agent.critic.size=3")
    (problem,) = (each for each in refused(*words) if "num_mini_batches" in each)
    assert len(refused(*words)) == 3, "all problems are told at once"
    assert all(part in problem for part in ("8 env slots x 16 steps = 128", "3 would", "use 4 or 8"))
    words = ("agent.actor.class_name=RNNModel", "agent.actor.distribution_cfg.class_name=GaussianDistribution")
    (problem,) = refused("num_envs=6", *words)
    assert "6 env slots of" in problem
    check_agent(small_config("agent.algorithm.class_name=rsl_rl.algorithms:PPO"))


def test_a_group_of_observations_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"agent.obs_groups.actor: .*'polcy'"):
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


@pytest.mark.parametrize(("name", "num_drawn"), [("reach", 2**32 - 2), *((name, 0) for name in ALL_ENVIRONMENTS)])
def test_every_environment_starts_as_its_episodes_do_also_where_a_checkpoint_left_it(name, num_drawn):
    with closing(build_varied(name, everything(name))) as environment:
        starts = env_slots(environment, seed=SEED)
        starts.num_drawn = num_drawn
        drawn = [conditions for count in (5, 1, 3) for conditions in starts.next_conditions(count)]
        assert drawn == [drawn_one_by_one(environment, num_drawn + index) for index in range(9)]
        json.dumps(drawn)


def mask(*env_ids: int) -> torch.Tensor:
    return torch.tensor([env_id in env_ids for env_id in range(3)])


NONE = mask()


def step(reward: float = 1.0, *, metric: float = 0.0, **changed: torch.Tensor | None) -> Step:
    numbers = {"reward": torch.full((3,), reward), "metrics": {"distance_m": torch.full((3,), metric)}}
    masks = dict.fromkeys(("terminated", "truncated", "success", "diverged"), NONE)
    return Step(observation={}, **{**masks, **numbers, **changed})


@pytest.fixture
def counter() -> EpisodeCounter:
    return EpisodeCounter(3, torch.device("cpu"))


def statistics_taken(counter: EpisodeCounter) -> dict[str, float]:
    return {name.rpartition("/")[2]: value for name, value in counter.measures(counter.take()).items()}


def test_what_was_taken_does_not_count_again(counter):
    counter.add(step(1.0), NONE, NONE)
    counter.add(step(2.0, terminated=mask(0), success=mask(0), metric=0.5), mask(0), NONE)
    counter.add(step(4.0, terminated=mask(0, 1)), mask(0, 1), NONE)
    assert statistics_taken(counter) == {
        "num_episodes": 3,
        "mean_reward": pytest.approx((3 + 4 + 7) / 3),
        "mean_episode_length": pytest.approx((2 + 1 + 3) / 3),
        "success_rate": pytest.approx(1 / 3),
        "lost_rate": pytest.approx(2 / 3),
        "distance_m": pytest.approx(0.5 / 3),
    }
    assert statistics_taken(counter) == {"num_episodes": 0}


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
