"""What a builder makes, on a table and on a floor."""

import dataclasses

import numpy as np
import pytest
import torch

from isaaclab_arena.cli.listing import catalog_text
from isaaclab_arena.environments.catalog import CUBE, ENVIRONMENTS, OBJECTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import VIEWPORT
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    FLOOR_ENVIRONMENTS,
    build,
    build_on_the_floor,
    episode,
    refusal,
    start,
)
from tests.environments.comparing import assert_the_same, random_actions, tensors_of


@pytest.fixture
def objects():
    """The catalog of objects; what a test registers is gone after it."""
    with OBJECTS.restored_afterwards() as catalog:
        yield catalog


@pytest.mark.parametrize("object_name", ["cylnder", None, 3, ["cube"]])
def test_all_unknown_names_are_reported_at_once_with_suggestions(object_name):
    problems = refusal("lift_object", embodiment="pandda", object=object_name, action_mode="ee_dleta").problems
    assert [problem.key for problem in problems] == ["embodiment", "object", "action_mode"]
    assert "'panda'" in problems[0].message
    assert ("'cylinder'" in problems[1].message.partition(";")[2]) == (object_name == "cylnder")


@pytest.mark.parametrize(
    ("task", "changes", "size"),
    [("lift_object", {"grasp_width": 0.2}, "0.072 m"), ("pick_and_place", {"footprint_radius": 0.2}, "0.40 m across")],
)
def test_an_object_too_large_for_the_gripper_or_the_bin_is_refused_with_the_reason(objects, task, changes, size):
    objects.register("crate", dataclasses.replace(CUBE, name="crate", **changes))
    (problem,) = refusal(task, object="crate").problems
    assert problem.key == "object"
    assert size in problem.message


def test_a_users_own_object_can_be_lifted(objects):
    objects.register("brick", dataclasses.replace(CUBE, name="brick", words="small brick"))
    env = build("lift_object", object="brick")
    assert env.task_description == "pick up the small brick and lift it"
    assert set(env.state()["rigid_object"]) == {"brick"}


def test_build_checks_too():
    builder = ENVIRONMENTS.get("reach")
    with pytest.raises(ConfigError, match="no embodiment called 'sawyer'"):
        builder.build(builder.config_class(embodiment="sawyer"), num_envs=1, device=torch.device("cpu"), num_threads=1)


ALL = pytest.mark.parametrize("name", FLOOR_ENVIRONMENTS)


@ALL
def test_an_env_slot_is_the_same_to_the_last_bit_in_any_batch_and_on_any_number_of_threads(name):
    alone, many = build_on_the_floor(name), build_on_the_floor(name, num_envs=9, num_threads=2)
    start(many)
    alone.reset(torch.tensor([0]), [many.draw_conditions(episode(6).conditions_generator())])
    for action in random_actions(many, 20):
        seen = {name: value[6:7] for name, value in tensors_of(many.step(action)).items()}
        assert_the_same([seen], [tensors_of(alone.step(action[6:7]))])


@ALL
def test_an_environment_stepped_in_inference_mode_goes_on_outside_of_it(name):
    env = build(name, num_envs=2)
    still = torch.zeros(env.action_space.shape)
    with torch.inference_mode():
        start(env)
        step = env.step(still)
    snapshot = env.snapshot()
    assert snapshot is not None
    assert not step.reward.is_inference()
    env.step(still.clone().requires_grad_())
    start(env, [1])
    with torch.inference_mode():
        env.restore_snapshot(snapshot)
    start(env)
    assert not any(value.requires_grad for value in env.step(still).observation["policy"].values())


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_it_says_what_it_asks_for_and_when_it_is_solved_and_is_listed(name):
    summary, env = ENVIRONMENTS.get(name).summary(), build(name)
    assert summary.instruction
    assert summary.success.startswith("Solved when ")
    assert name in ALL_ENVIRONMENTS or "Lost when " in summary.success
    assert (summary.episode_length, summary.episode_s) == (
        env.max_episode_length,
        pytest.approx(env.max_episode_length * env.control_dt),
    )
    assert env.provenance()["embodiment"] in summary.embodiments
    assert name in catalog_text(ENVIRONMENTS)


def test_the_viewport_follows_a_robot_that_walks_away():
    env = build_on_the_floor("velocity_go1", viewport_width=48, viewport_height=36)
    assert env.filmable == (VIEWPORT,)
    start(env)
    here = env.film([0], [VIEWPORT])[VIEWPORT].astype(int)
    env.backend.qpos[0, 0] += 20.0
    there = env.film([0], [VIEWPORT])[VIEWPORT].astype(int)
    assert here.std() > 20
    assert np.abs(here[:, :20] - there[:, :20]).mean() < 3
    assert np.abs(here - there).mean() < 25


def test_only_objects_that_work_are_named():
    assert {"plate", "bin"}.isdisjoint(ENVIRONMENTS.get("lift_object").summary().objects)
    assert {"plate", "bin", "cube"} <= set(ENVIRONMENTS.get("push_to_goal").summary().objects)
    assert ENVIRONMENTS.get("reach").summary().objects == ()
