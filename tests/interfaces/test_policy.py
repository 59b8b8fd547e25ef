from dataclasses import replace

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.policy import policy_base
from tests.fakes import ShrugPolicy


def test_the_import_path_of_arenas_classes_gives_the_same_base():
    assert (policy_base.PolicyBase, policy_base.PolicyCfg) == (PolicyBase, PolicyCfg)


@pytest.mark.parametrize("name", ["reproducible", "batch_invariant", "serves_any_num_envs", "uses_own_device"])
def test_a_trait_that_is_set_in_the_class_itself_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(ConfigError, match=rf"Old.{name} has no effect; say traits = PolicyTraits\({name}="):
        type("Old", (ShrugPolicy,), {name: True})


def test_a_base_without_promises_hides_none_of_those_of_a_base_beside_it():
    helper = type("Helper", (PolicyBase,), {"reset": ShrugPolicy.reset})
    promise = type("Promise", (PolicyBase,), {"traits": PolicyTraits(reproducible=True, pictures="none")})
    assert type("Both", (helper, promise), {"get_action": ShrugPolicy.get_action}).traits.reproducible


@pytest.mark.parametrize("none", [PolicyTraits(pictures="none"), PolicyTraits(sees_pictures=False)])
def test_promises_that_are_changed_see_the_pictures_that_the_change_names(none):
    assert not none.sees_pictures
    assert replace(none, reproducible=True) == PolicyTraits(reproducible=True, pictures="none")
    assert replace(none, pictures="all") == PolicyTraits()
    assert replace(PolicyTraits(), sees_pictures=False) == none


def test_a_class_may_call_something_of_its_own_metrics_but_declares_none_by_it():
    type("Own", (ShrugPolicy,), {"metrics": lambda _: {"loss": 0.0}})
    with pytest.raises(ConfigError, match=r"Old\.metrics has no effect"):
        type("Old", (ShrugPolicy,), {"metrics": (Metric(name="loss"),)})


def test_a_class_takes_an_offer_of_its_base_back_by_none():
    names = {"planned", "with_own_memory", "description"}
    able = type("Able", (ShrugPolicy,), {**dict.fromkeys(names, lambda *_: 1), "get_action": ShrugPolicy.get_action})
    unable = type("Unable", (able,), dict.fromkeys(names))
    assert able.offers >= names
    assert not names & type("Below", (unable,), {}).offers
    assert unable().with_own_memory() is None


def test_a_class_that_derives_from_one_that_asks_a_server_asks_one_too_with_promises_of_its_own():
    class Asks(ShrugPolicy):
        traits = PolicyTraits(remote=True)

    class Quiet(Asks):
        traits = PolicyTraits(reproducible=True, pictures="none")

    assert Quiet.traits == PolicyTraits(reproducible=True, pictures="none", remote=True)
    assert not ShrugPolicy.traits.remote
