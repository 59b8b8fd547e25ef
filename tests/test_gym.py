"""Environments by the ids that `isaaclab_arena.gym` registers, and the forms of their observations."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import batch_space

import isaaclab_arena as arena
import isaaclab_arena.gym
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.gym import environment_id

IDS = [environment_id(name) for name in ENVIRONMENTS.names()]


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_finds_nothing_wrong_with_a_task(name):
    env = gymnasium.make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A joint has bounds, and observations have none.
        warnings.filterwarnings("ignore", message=".*(infinity|symmetric and normalized)")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "space"),
    [
        ("isaaclab_arena.gym:arena/LiftObject-v0", {"object": "can"}, gymnasium.spaces.Box),
        ("arena/Environment-v0", {"environment": "gym:Pendulum-v1"}, gymnasium.spaces.Box),
        ("arena/Reach-v0", {"enable_cameras": True, "camera_size": 16}, gymnasium.spaces.Dict),
    ],
)
def test_options_of_the_environment_decide_what_is_observed(name, options, space):
    env = gymnasium.make(name, **options)
    assert type(env.observation_space) is space
    observation, info = env.reset(seed=4)
    assert observation in env.observation_space
    if "object" in options:
        assert any(each.startswith("can") for each in info["conditions"])
    if isinstance(env.observation_space, gymnasium.spaces.Dict):
        kinds = {box.dtype for box in env.observation_space.spaces.values()}
        assert kinds == {np.dtype(np.uint8), np.dtype(np.float32)}
    env.close()


@pytest.mark.parametrize("observations", ["flat", "dict", "nested"])
def test_several_env_slots_are_one_vector_environment(observations):
    env = gymnasium.make_vec("arena/Reach-v0", num_envs=3, observations=observations)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.observation_space == batch_space(env.single_observation_space, 3)
    assert env.action_space == batch_space(env.single_action_space, 3)
    assert env.reset(seed=0)[0] in env.observation_space
    observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    assert reward.shape == terminated.shape == truncated.shape == (3,)
    env.close()


def test_flat_is_what_policies_see_side_by_side():
    nested, flat = (arena.make("reach", num_envs=2, observations=form) for form in ("nested", "flat"))
    terms = nested.reset(seed=3)[0]["policy"]
    expected = np.concatenate([terms[name].reshape(2, -1) for name in sorted(terms)], axis=1)
    assert np.array_equal(flat.reset(seed=3)[0], expected)
    nested.close()
    flat.close()


def test_an_unknown_form_is_named():
    with pytest.raises(arena.ConfigError, match=r"observations: .*'flt'.* 'flat'"):
        gymnasium.make("arena/Reach-v0", observations="flt")


def test_stable_baselines3_trains_without_a_wrapper():
    ppo = pytest.importorskip("stable_baselines3").PPO
    for policy, observations in (("MlpPolicy", "flat"), ("MultiInputPolicy", "dict")):
        env = gymnasium.make("arena/Cartpole-v0", observations=observations)
        ppo(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(total_timesteps=16)
        env.close()
