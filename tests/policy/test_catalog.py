"""What the policies that ship say of themselves holds for how they act."""

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.action_chunking import ChunkPolicy
from isaaclab_arena.policy.catalog import POLICIES, resolve_policy_class


def test_isaac_lab_arenas_class_for_openpi_is_told_by_the_name_that_it_has_here():
    path = "isaaclab_arena_openpi.policy.pi0_remote_policy.Pi0RemotePolicy"
    with pytest.raises(ConfigError, match="policy_type: openpi_remote does that here, with remote_host, remote_port"):
        resolve_policy_class(path)


@pytest.mark.parametrize("name", POLICIES.names())
def test_a_policy_that_plays_chunks_tells_its_plans_and_answers_with_chunks(name):
    policy_class = POLICIES.get(name)
    if issubclass(policy_class, ChunkPolicy):
        assert policy_class.offers >= {"planned", "chunks", "act_in_some", "pictures_to_see", "connections"}
        assert policy_class.traits.pictures == "announced"
