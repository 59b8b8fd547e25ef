import numpy as np
import pytest

from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv, SingleEnv
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.gym_ids import make_single_env
from isaaclab_arena.interfaces.episode import Episode
from tests.fakes import CoinConfig, CoinEnvironment


def coin() -> SingleEnv:
    return SingleEnv(EnvironmentVectorEnv(CoinEnvironment(CoinConfig(), 1)))


def test_a_seed_begins_a_job_whose_episodes_come_in_turn():
    env = coin()
    told = [env.reset(seed=3)[1], env.reset()[1], env.reset()[1], env.reset(seed=3)[1]]
    expected = [
        env.environment.draw_conditions(Episode(job="any", episode_index=index, seed=3).conditions_generator())
        for index in (0, 1, 2, 0)
    ]
    assert [each["conditions"] for each in told] == expected


def test_an_episode_ends_and_tells_whether_it_succeeded():
    env = coin()
    env.reset(seed=0)
    terminated = truncated = False
    for _ in range(env.environment.max_episode_length):
        _, reward, terminated, truncated, info = env.step(np.zeros(2))
        assert isinstance(reward, float)
        assert info["success"] is terminated
        if terminated or truncated:
            break
    assert terminated or truncated


def test_more_env_slots_than_one_cannot_be_shown():
    with pytest.raises(ValueError, match="one env slot is shown, and the environment has 2"):
        SingleEnv(EnvironmentVectorEnv(CoinEnvironment(CoinConfig(), 2)))


def test_a_misspelt_option_is_told():
    with pytest.raises(ConfigError, match=r"object"):
        make_single_env("lift_object", object="cubee")
