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
from tests.environments.building import ALL_ENVIRONMENTS, build, play
from tests.fakes import CoinConfig, CoinEnvironment

OBJECTS = (("lift_object", "cylinder"), ("pick_and_place", "can"), ("push_to_goal", "can"))
IN_HAND_STEPS = ("lift_object", "open_drawer", "stack", "push_to_goal")
"""Tasks of every kind of contact, which the other action mode has to serve."""

PLAYED = (
    *((name, {}) for name in ALL_ENVIRONMENTS),
    *((name, {"object": thing}) for name, thing in OBJECTS),
    *((name, {"action_mode": "ee_delta"}) for name in IN_HAND_STEPS),
)
ALONE_TOO = (
    *((name, {}) for name in ("stack", "open_drawer", "push_to_goal", "press_button")),
    ("lift_object", {"action_mode": "ee_delta"}),
)


@pytest.mark.parametrize(("name", "options"), PLAYED)
def test_it_solves_every_task_with_the_same_bits_for_any_number_of_environments_and_threads(name, options):
    # With a third episode, an env slot begins anew while the other goes on.
    number = 3 if (name, options) in ALONE_TOO else 2
    together = play(build(name, num_envs=2, num_threads=2, **options), ScriptedPolicy(), number, seed=7)
    assert [record.outcome for record in together.records.values()] == [Outcome.SUCCESS] * number
    if (name, options) in ALONE_TOO:
        alone = play(build(name, **options), ScriptedPolicy(), number, seed=7)
        assert together.states == alone.states
        for index, record in alone.records.items():
            other = together.records[index]
            assert (other.length, other.episode_return, other.metrics) == (
                record.length,
                record.episode_return,
                record.metrics,
            )


def test_one_policy_serves_environments_of_different_sizes_in_turn():
    policy = ScriptedPolicy()
    first, second = (play(build("reach", num_envs=num_envs), policy, 3).records for num_envs in (3, 2))
    assert [first[index].length for index in range(3)] == [second[index].length for index in range(3)]


def test_an_environment_without_a_simulation_or_a_plan_is_refused():
    coin: Any = CoinEnvironment(CoinConfig(), num_envs=1)
    with pytest.raises(PolicyError, match="does not have"):
        ScriptedPolicy().get_action(coin, {})
    coin.backend = "of its own"
    with pytest.raises(ConfigError, match="does not have"):
        ScriptedPolicy.check_fit(ScriptedPolicyCfg(), coin)
    env = build("reach")
    env.task_name = "reach_twice"
    with pytest.raises(PolicyError, match=r"'reach_twice'.* reach, "):
        ScriptedPolicy().get_action(env, {})


def test_half_speed_takes_longer_and_a_speed_that_makes_no_sense_is_refused():
    slow, fast = (
        play(build("reach"), ScriptedPolicy.from_dict({"speed": speed}), 1).records[0] for speed in (0.5, 1.0)
    )
    assert slow.length > fast.length
    with pytest.raises(ConfigError, match=r"speed .* got 3"):
        resolve_policy_class("scripted").from_dict({"speed": 3})


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
    assert "no plan for 'cartpole'" in capsys.readouterr().err
