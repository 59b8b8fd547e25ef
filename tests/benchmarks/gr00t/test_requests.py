import math

from benchmarks.gr00t.checkpoint import write_policy_yaml
from benchmarks.gr00t.requests import count_requests
from isaaclab_arena_gr00t.config import read_policy_config


def test_slots_are_asked_for_once_a_chunk(model_path, tmp_path):
    blind = write_policy_yaml(tmp_path / "blind.yaml", model_path, pov_cam_name_sim={})
    count, found = count_requests(blind, "lift_object", num_envs=3, num_episodes=7, per_query=4)
    chunk_length = read_policy_config(blind).action_chunk_length
    lengths = [record.length for record in found.records]
    assert len(set(lengths)) > 1
    assert count.slots_needed == sum(math.ceil(length / chunk_length) for length in lengths)
    assert count.slots_asked == 4 * count.queries
    assert count.slots_needed < count.slots_of_all <= 3 * count.queries
