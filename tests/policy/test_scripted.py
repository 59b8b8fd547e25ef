"""The scripted policy on every task that it has a plan for."""

import json
from typing import Any

import pytest
import torch

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.scripted import ScriptedPolicy, ScriptedPolicyCfg, Symmetry, hand_down
from isaaclab_arena.sim.math import rotate
from tests.environments.building import IN_SOME_ACTION_MODE, build, play
from tests.fakes import CoinConfig, CoinEnvironment

TASKS = (
    ("reach", {}),
    ("lift_object", {"object": "cube"}),
    ("lift_object", {"object": "cylinder"}),
    ("lift_object", {"object": "can"}),
    ("pick_and_place", {"object": "cube"}),
    ("pick_and_place", {"object": "cylinder"}),
    ("pick_and_place", {"object": "can"}),
    ("open_drawer", {}),
    ("push_to_goal", {"object": "cube"}),
    ("push_to_goal", {"object": "can"}),
    ("press_button", {}),
    ("stack", {}),
    ("close_drawer", {}),
    ("open_microwave", {}),
    ("pick_by_colour", {}),
    ("sort_two", {}),
)


@pytest.mark.parametrize("mode", ["joint_position", "ee_delta"])
@pytest.mark.parametrize(("name", "options"), TASKS)
def test_it_solves_every_task_in_both_action_modes(name, options, mode):
    records = play(build(name, num_envs=8, action_mode=mode, **options), ScriptedPolicy(), 8, seed=7).records
    assert sum(record.outcome is Outcome.SUCCESS for record in records.values()) >= 7


@pytest.mark.parametrize(("name", "mode"), IN_SOME_ACTION_MODE)
def test_episodes_end_in_the_same_bits_for_any_number_of_environments_and_threads(name, mode):
    alone = play(build(name, num_envs=1, action_mode=mode), ScriptedPolicy(), 6)
    for num_envs, num_threads in ((4, 2), (16, 2)):
        batched = play(build(name, num_envs=num_envs, num_threads=num_threads, action_mode=mode), ScriptedPolicy(), 6)
        assert batched.states == alone.states
        for index, record in alone.records.items():
            assert batched.records[index].length == record.length
            assert batched.records[index].episode_return == record.episode_return
            assert batched.records[index].metrics == record.metrics


def test_an_environment_that_calls_something_else_its_backend_is_refused():
    environment: Any = CoinEnvironment(CoinConfig(), num_envs=1)
    environment.backend = "of its own"
    with pytest.raises(ConfigError, match="shows none"):
        ScriptedPolicy.check_fit(ScriptedPolicyCfg(), environment)


def test_one_policy_serves_environments_of_different_sizes_in_turn():
    policy = ScriptedPolicy()
    first = play(build("reach", num_envs=3), policy, 3).records
    second = play(build("reach", num_envs=2), policy, 3).records
    assert [first[index].length for index in range(3)] == [second[index].length for index in range(3)]


def test_an_environment_without_a_simulation_is_refused():
    with pytest.raises(PolicyError, match="drives an arm in a simulation, and this environment shows none"):
        ScriptedPolicy().get_action(CoinEnvironment(CoinConfig(), 2), {})


def test_an_environment_without_a_plan_is_refused_by_name():
    env = build("reach")
    env.task_name = "reach_twice"
    with pytest.raises(PolicyError, match="no plan for 'reach_twice'; it has plans for reach, "):
        ScriptedPolicy().get_action(env, {})


def test_a_speed_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="speed must be above 0 and at most 1, got 3"):
        resolve_policy_class("scripted").from_dict({"speed": 3})


def test_half_speed_takes_longer():
    slow, fast = (
        play(build("reach"), ScriptedPolicy.from_dict({"speed": speed}), 1).records[0] for speed in (0.5, 1.0)
    )
    assert slow.length > fast.length


def test_the_hand_comes_down_along_the_sides_of_a_box_with_the_smallest_turn():
    yaw = torch.tensor([0.3, 1.4, -2.0, 3.0], dtype=torch.float64)
    zero = torch.zeros_like(yaw)
    hand = hand_down(torch.stack((torch.cos(yaw / 2), zero, zero, torch.sin(yaw / 2)), dim=-1), Symmetry.QUARTER_TURNS)
    approach = rotate(hand, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(4, 3))
    fingers = rotate(hand, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(4, 3))
    torch.testing.assert_close(approach, torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64).expand(4, 3))
    turn = torch.atan2(fingers[:, 0], -fingers[:, 1])
    quarter_turns = (yaw - turn) / (torch.pi / 2)
    torch.testing.assert_close(quarter_turns, quarter_turns.round())
    assert bool((turn.abs() <= torch.pi / 4 + 1e-9).all())


def test_a_task_without_a_plan_is_refused_before_anything_is_built(tmp_path, capsys):
    job = {"name": "a", "policy_type": "scripted", "arena_env_args": {"environment": "cartpole"}, "num_episodes": 1}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [job]}))
    assert main(["validate", str(path)]) == 2
    assert "the scripted policy has no plan for 'cartpole'; it has plans for reach" in capsys.readouterr().err
