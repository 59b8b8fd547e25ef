import pytest
import torch

import isaaclab_arena as arena


def test_a_vector_environment_is_made_with_options_as_in_a_job():
    env = arena.make("lift_object", num_envs=2, object="can", seed=3, device="cpu")
    observation, info = env.reset()
    assert observation in env.observation_space
    assert env.environment.device == torch.device("cpu")
    assert len(info["conditions"]) == env.num_envs == 2
    env.close()


def test_a_misspelt_option_is_told():
    with pytest.raises(arena.ConfigError, match="no object called 'cubee'; did you mean 'cube'"):
        arena.make("lift_object", object="cubee")
