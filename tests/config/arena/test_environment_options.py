import pytest

from isaaclab_arena.config.arena import in_own_options
from isaaclab_arena.errors import ConfigError


def test_an_environment_of_another_package_gets_the_options_that_it_declares():
    options = {"pick_up_object": "cube", "hdr": "hall", "object_set": ["a", "b"]}
    assert in_own_options(options, {"pick_up_object", "hdr", "object_set", "object"}, name="theirs") == (options, {})


def test_what_is_picked_up_is_the_object_and_where_to_is_the_destination():
    own, renamed = in_own_options(
        {"pick_up_object": "cube", "destination_location": "bowl"}, {"object", "destination"}, name="sorting"
    )
    assert own == {"object": "cube", "destination": "bowl"}
    assert renamed == {"object": "pick_up_object", "destination": "destination_location"}


def test_everything_that_cannot_be_given_is_named_at_once():
    with pytest.raises(ConfigError) as refused:
        in_own_options({"pick_up_object": "cube", "destination_location": "bowl", "hdr": "hall"}, {"x"}, name="reach")
    assert [problem.key for problem in refused.value.problems] == ["pick_up_object", "destination_location", "hdr"]


def test_an_option_is_not_given_twice():
    with pytest.raises(ConfigError, match="pick_up_object: is also given as object"):
        in_own_options({"pick_up_object": "cube", "object": "can"}, {"object"}, name="lift_object")
    with pytest.raises(ConfigError, match="is also given as object"):
        in_own_options({"pick_up_object": "cube", "object_set": ["can"]}, {"object"}, name="lift_object")
