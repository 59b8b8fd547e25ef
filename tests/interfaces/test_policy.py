import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.policy import policy_base
from tests.fakes import ShrugPolicy


def test_the_import_path_of_arenas_classes_gives_the_same_base():
    assert (policy_base.PolicyBase, policy_base.PolicyCfg) == (PolicyBase, PolicyCfg)


@pytest.mark.parametrize("name", ["reproducible", "batch_invariant", "serves_any_num_envs", "uses_own_device"])
def test_a_trait_that_is_set_in_the_class_itself_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(ConfigError, match=rf"Old.{name} has no effect; say traits = PolicyTraits\({name}="):
        type("Old", (ShrugPolicy,), {name: True})
