"""An environment as Gymnasium sees it, vectorised or single."""

import pytest

from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv, SingleEnv
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.gym_ids import make_single_env
from isaaclab_arena.interfaces.episode import Episode
from tests.fakes import CoinConfig, CoinEnvironment


def coins(num_envs: int = 4) -> EnvironmentVectorEnv:
    return EnvironmentVectorEnv(CoinEnvironment(CoinConfig(), num_envs))


def drawn(env: EnvironmentVectorEnv | SingleEnv, seed: int, *indices: int) -> list:
    """Conditions of episodes of a job."""
    episodes = [Episode(job="any", episode_index=index, seed=seed) for index in indices]
    return [env.environment.draw_conditions(episode.conditions_generator()) for episode in episodes]


def test_one_seed_gives_the_episodes_of_a_job_in_turn():
    env = coins()
    _, info = env.reset(seed=3)
    assert list(info["conditions"].values()) == drawn(env, 3, 0, 1, 2, 3)
    _, info = env.reset(options={"reset_mask": [False, True, False, False]})
    assert [info["conditions"]] == [{1: each} for each in drawn(env, 3, 4)]
    single = SingleEnv(coins(1))
    told = [single.reset(seed=seed)[1]["conditions"] for seed in (3, None, None, 3)]
    assert told == drawn(single, 3, 0, 1, 2, 0)


def test_a_misspelt_option_is_told():
    with pytest.raises(ConfigError, match=r"object"):
        make_single_env("lift_object", object="cubee")
