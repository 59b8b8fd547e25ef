"""An environment as Gymnasium sees it, vectorised or single."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv, ObservationForm, SingleEnv
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.gym_ids import make_single_env
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.specs import ArraySpec
from tests.fakes import CoinConfig, CoinEnvironment


def coins(num_envs: int = 4) -> EnvironmentVectorEnv:
    return EnvironmentVectorEnv(CoinEnvironment(CoinConfig(), num_envs))


def drawn(env: EnvironmentVectorEnv | SingleEnv, seed: int, *indices: int) -> list:
    """Conditions of episodes of a job."""
    episodes = [Episode(job="any", episode_index=index, seed=seed) for index in indices]
    return [env.environment.draw_conditions(episode.conditions_generator()) for episode in episodes]


def clocks(observation) -> list[float]:
    return observation["policy"]["clock"][:, 0].tolist()


def test_nothing_is_reset_unless_it_is_asked_for_and_a_masked_reset_leaves_the_others():
    env = coins()
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.reset(seed=0)
    for _ in range(11):
        env.step(np.zeros((4, 2)))
    observation, _, terminated, _, _ = env.step(np.zeros((4, 2)))
    assert set(clocks(observation)) == {10.0, 12.0}
    assert not terminated.any()
    observation, info = env.reset(seed=[None, 7, None, None], options={"reset_mask": np.array([0, 1, 0, 0], bool)})
    assert [info["conditions"]] == [{1: each} for each in drawn(env, 7, 0)]
    assert [clock == 0.0 for clock in clocks(observation)] == [False, True, False, False]


def test_one_seed_gives_the_episodes_of_a_job_in_turn():
    env = coins()
    _, info = env.reset(seed=3)
    assert list(info["conditions"].values()) == drawn(env, 3, 0, 1, 2, 3)
    _, info = env.reset(options={"reset_mask": [False, True, False, False]})
    assert [info["conditions"]] == [{1: each} for each in drawn(env, 3, 4)]
    single = SingleEnv(coins(1))
    told = [single.reset(seed=seed)[1]["conditions"] for seed in (3, None, None, 3)]
    assert told == drawn(single, 3, 0, 1, 2, 0)


def test_success_and_the_end_of_an_episode_are_told_also_of_a_single_one():
    many, single = coins(64), SingleEnv(coins(1))
    many.reset(seed=0)
    single.reset(seed=0)
    for _ in range(9):
        many.step(np.zeros((64, 2)))
        single.step(np.zeros(2))
    _, reward, terminated, truncated, info = many.step(np.zeros((64, 2)))
    *_, told = single.step(np.zeros(2))
    assert reward.shape == (64,)
    assert 0 < terminated.sum() < 64
    assert (info["success"] == terminated).all()
    assert not truncated.any()
    assert told["success"] is bool(terminated[0])
    assert single.metadata["render_fps"] == 10
    with pytest.raises(ValueError, match="has 2"):
        SingleEnv(coins(2))


def test_terms_outside_of_policy_and_cameras_are_named_with_their_group_and_single_numbers_have_a_dimension():
    environment = CoinEnvironment(CoinConfig(), 2)
    number, place = ArraySpec(shape=()), ArraySpec(shape=(3,))
    environment.observation_spec = {"policy": {"clock": number}, "critic": {"clock": place}, "reward": number}
    spaces = EnvironmentVectorEnv(environment, observations=ObservationForm.DICT).single_observation_space
    assert isinstance(spaces, gymnasium.spaces.Dict)
    assert {name: space.shape for name, space in spaces.items()} == {
        "clock": (1,),
        "critic_clock": (3,),
        "reward": (1,),
    }


def test_double_precision_is_shown_as_such_and_a_misspelt_option_is_told():
    environment = CoinEnvironment(CoinConfig(), 2)
    environment.observation_spec = {"policy": {"clock": ArraySpec(shape=(1,), dtype=torch.float64)}}
    assert EnvironmentVectorEnv(environment).observation_space.sample()["policy"]["clock"].dtype == np.float64
    with pytest.raises(ConfigError, match=r"object"):
        make_single_env("lift_object", object="cubee")
