from pathlib import Path

from benchmarks.gr00t.checkpoint import PANDA_YAML
from isaaclab_arena_gr00t.config import checkpoint_problems, read_policy_config


def test_the_yaml_file_is_the_pandas_with_another_checkpoint(yaml, model_path):
    config, pandas = read_policy_config(yaml), read_policy_config(PANDA_YAML)
    assert checkpoint_problems(config.model_path) == []
    assert Path(config.model_path) == model_path
    assert config.pov_cam_name_sim == pandas.pov_cam_name_sim
    assert config.action_chunk_length == pandas.action_chunk_length
