import dataclasses

import pytest
import torch

from isaaclab_arena.environments import catalog
from isaaclab_arena.environments.catalog import CUBE, EMBODIMENTS, ENVIRONMENTS, OBJECTS
from isaaclab_arena.errors import ConfigError
from tests.environments.building import ALL_ENVIRONMENTS, build, refusal


@pytest.fixture
def objects():
    """The catalog of objects; what a test registers is gone after it."""
    with OBJECTS.restored_afterwards() as catalog:
        yield catalog


def test_the_catalogs_list_what_there_is():
    assert set(ALL_ENVIRONMENTS) <= set(ENVIRONMENTS.names())
    assert "panda" in EMBODIMENTS.names()
    assert {"cube", "cylinder", "can"} <= set(OBJECTS.names())
    assert catalog.ENVIRONMENTS.kind == "environment"


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_defaults_pass_the_check(name):
    builder = ENVIRONMENTS.get(name)
    builder.check(builder.config_class())


def test_options_are_frozen():
    config = ENVIRONMENTS.get("lift_object").config_class()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.object = "can"


def test_all_unknown_names_are_reported_at_once_with_suggestions():
    problems = refusal("lift_object", embodiment="pandda", object="cylnder", action_mode="ee_dleta").problems
    assert [problem.key for problem in problems] == ["embodiment", "object", "action_mode"]
    assert [problem.message.partition("; ")[2] for problem in problems] == [
        "did you mean 'panda'?",
        "did you mean 'cylinder'?",
        "did you mean 'ee_delta'?",
    ]


@pytest.mark.parametrize("value", [None, 3, ["cube"]])
def test_a_name_of_the_wrong_type_is_an_unknown_name(value):
    assert refusal("lift_object", object=value).problems[0].key == "object"


def test_an_object_wider_than_the_gripper_is_refused_with_the_reason(objects):
    objects.register("crate", dataclasses.replace(CUBE, name="crate", grasp_width=0.2))
    (problem,) = refusal("lift_object", object="crate").problems
    assert problem.key == "object"
    assert problem.message == "object 'crate' is 0.200 m wide, but the gripper of 'panda' takes at most 0.072 m"


def test_an_object_larger_than_the_bin_is_refused_with_the_reason(objects):
    objects.register("plank", dataclasses.replace(CUBE, name="plank", footprint_radius=0.2))
    (problem,) = refusal("pick_and_place", object="plank").problems
    assert "object 'plank' is 0.40 m across and does not fit into the bin" in problem.message


def test_a_users_own_object_can_be_lifted(objects):
    objects.register("brick", dataclasses.replace(CUBE, name="brick", words="small brick"))
    env = build("lift_object", object="brick")
    assert env.task_description == "pick up the small brick and lift it"
    assert set(env.state()["rigid_object"]) == {"brick"}


def test_build_checks_too():
    builder = ENVIRONMENTS.get("reach")
    with pytest.raises(ConfigError, match="no embodiment called 'sawyer'"):
        builder.build(builder.config_class(embodiment="sawyer"), num_envs=1, device=torch.device("cpu"), num_threads=1)
