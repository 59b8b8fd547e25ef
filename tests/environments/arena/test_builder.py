"""What a builder makes, on a table and on a floor."""

import dataclasses

import numpy as np
import pytest
import torch

from isaaclab_arena.cli.commands.listing import catalog_text
from isaaclab_arena.environments import catalog
from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.catalog import CUBE, EMBODIMENTS, ENVIRONMENTS, OBJECTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.policy.scripted import TASKS
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording.recorder import flatten
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    FLOOR_ENVIRONMENTS,
    build,
    build_on_the_floor,
    episode,
    leaf_specs,
    play,
    refusal,
    start,
)


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


ALL = pytest.mark.parametrize("name", FLOOR_ENVIRONMENTS)


def some_actions(env: FloorEnvironment, num_steps: int) -> torch.Tensor:
    """Return actions that are the same for equal env slots of any batch. Shape: (num_steps, num_envs, action_dim)."""
    size = env.action_spec.shape[0]
    waves = torch.sin(torch.arange(num_steps)[:, None, None] * 0.7 + torch.arange(size))
    return (waves * (1 + 0.1 * torch.arange(env.num_envs)[:, None])).float()


@ALL
def test_an_env_slot_is_the_same_to_the_last_bit_in_any_batch_and_on_any_number_of_threads(name):
    alone, many = build_on_the_floor(name), build_on_the_floor(name, num_envs=9, num_threads=2)
    start(many)
    alone.reset(torch.tensor([0]), [many.draw_conditions(episode(6).conditions_generator())])
    for action in some_actions(many, 60):
        seen, expected = many.step(action), alone.step(action[6:7])
        for term, value in expected.observation["policy"].items():
            assert torch.equal(seen.observation["policy"][term][6:7], value), term
        for field in ("reward", "terminated", "truncated", "success", "diverged"):
            assert torch.equal(getattr(seen, field)[6:7], getattr(expected, field)), field
        for metric, value in expected.metrics.items():
            torch.testing.assert_close(seen.metrics[metric][6:7], value, rtol=0, atol=0, equal_nan=True, msg=metric)


@ALL
def test_an_episode_replays_bit_for_bit_from_its_stored_start(name):
    env, replay = build_on_the_floor(name, num_envs=2), build_on_the_floor(name)
    start(env)
    conditions = env.draw_conditions(episode(1).conditions_generator())
    stored = env.episode_states([1])[0]
    replay.restore(torch.tensor([0]), [conditions], [stored])
    for action in some_actions(env, 25):
        seen, again = env.step(action), replay.step(action[1:])
        assert torch.equal(seen.reward[1:], again.reward)
    assert np.array_equal(
        replay.episode_states([0])[0]["integration_state"], env.episode_states([1])[0]["integration_state"]
    )


@ALL
def test_acting_at_random_solves_nothing_and_breaks_no_physics(name):
    records = play(build_on_the_floor(name, num_envs=4), RandomActionPolicy(), 4).records
    assert {record.outcome for record in records.values()} <= {"failure", "timeout"}


@ALL
def test_a_nan_action_is_an_error_of_its_env_slot_alone(name):
    env = build_on_the_floor(name, num_envs=3)
    start(env)
    action = torch.zeros(env.action_space.shape)
    action[1] = torch.nan
    step = env.step(action)
    assert step.diverged.tolist() == [False, True, False]
    assert torch.isfinite(step.reward).all()
    start(env, [1])
    assert not env.step(torch.zeros(env.action_space.shape)).diverged.any()


@ALL
def test_an_environment_stepped_in_inference_mode_goes_on_outside_of_it(name):
    env = build_on_the_floor(name, num_envs=2)
    with torch.inference_mode():
        start(env)
        step = env.step(torch.zeros(env.action_space.shape))
    snapshot = env.snapshot()
    assert snapshot is not None
    assert not step.reward.is_inference()
    env.step(torch.zeros(env.action_space.shape, requires_grad=True))
    start(env, [1])
    with torch.inference_mode():
        env.restore_snapshot(snapshot)
    start(env)
    assert (
        not env.step(torch.zeros(env.action_space.shape))
        .observation["policy"][next(iter(leaf_specs(env)))]
        .requires_grad
    )


def test_the_state_of_a_walking_robot_moves_with_it():
    env = build_on_the_floor("velocity_go1", num_envs=2)
    start(env)
    env.backend.qvel[:, :3] = torch.tensor([0.3, 0.0, 0.1]).double()
    env.backend.qvel[:, 5] = 2.0
    robot = env.state()["articulation"]["robot"]
    shapes = {name: tuple(value.shape) for name, value in robot.items()}
    assert shapes == {
        "joint_position": (2, 12),
        "joint_velocity": (2, 12),
        "root_pose": (2, 7),
        "root_velocity": (2, 6),
    }
    assert torch.equal(robot["root_pose"], env.backend.joint_position("robot/free"))
    assert torch.equal(robot["root_velocity"], env.backend.free_velocity("robot/free"))
    parts = torch.cat(tuple(env.state_parts()), dim=1).numpy()
    made = env.state_of(parts)
    assert all(np.array_equal(made["articulation"]["robot"][field], value) for field, value in robot.items())


def test_a_cart_on_a_rail_has_a_root_that_stands():
    env = build_on_the_floor("cartpole", num_envs=2)
    start(env)
    robot = env.state()["articulation"]["robot"]
    assert robot["root_pose"][:, 2].tolist() == [1.2, 1.2]
    assert robot["root_velocity"].abs().max() == 0
    assert {path.rpartition("/")[2] for path, _ in flatten(env.state(), "")} == set(robot)


@ALL
def test_it_says_what_it_asks_for_and_is_listed(name):
    summary = ENVIRONMENTS.get(name).summary()
    assert summary.success.startswith("Solved when ")
    assert "Lost when " in summary.success
    assert summary.episode_length == build_on_the_floor(name).max_episode_length
    assert name in catalog_text(ENVIRONMENTS)
    assert build_on_the_floor(name).provenance()["embodiment"] in summary.embodiments


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


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_every_environment_says_what_it_asks_for_and_when_it_is_solved(name):
    summary = ENVIRONMENTS.get(name).summary()
    assert summary.instruction
    assert summary.success.startswith("Solved when ")
    assert summary.episode_length * 0.05 == pytest.approx(summary.episode_s)
    assert "panda" in summary.embodiments


def test_only_objects_that_work_are_named():
    assert {"plate", "bin"}.isdisjoint(ENVIRONMENTS.get("lift_object").summary().objects)
    assert {"plate", "bin", "cube"} <= set(ENVIRONMENTS.get("push_to_goal").summary().objects)
    assert ENVIRONMENTS.get("reach").summary().objects == ()


def test_the_list_shows_instruction_success_length_and_robots():
    text = catalog_text(ENVIRONMENTS)
    assert 'told     "press the red button"' in text
    assert "success  Solved when the hand has held the button down at its stop" in text
    assert "episode  at most 160 steps, 8 s" in text


def test_every_environment_has_a_plan():
    assert set(ALL_ENVIRONMENTS) == set(TASKS)
