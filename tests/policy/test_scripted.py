"""The scripted policy on every task that it has a plan for."""

import json
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.scripted import ScriptedPolicy, ScriptedPolicyCfg
from tests.environments.building import ALL_ENVIRONMENTS, build, play
from tests.fakes import CoinConfig, CoinEnvironment
from tests.fakes_environment import ScriptedEnvironment, episodes
from tests.policy.playing import actions_of

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
    with pytest.raises(ConfigError, match=r"speed.*got 3"):
        resolve_policy_class("scripted").from_dict({"speed": 3})


def test_a_task_without_a_plan_is_refused_before_anything_is_built(tmp_path, capsys):
    job = {"name": "a", "policy_type": "scripted", "arena_env_args": {"environment": "cartpole"}, "num_episodes": 1}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [job]}))
    assert main(["validate", str(path)]) == 2
    assert "'cartpole'" in capsys.readouterr().err


# Policies that need no observation.


def test_zero_action_takes_no_options_and_gives_zeros_for_every_env_slot():
    policy_class = resolve_policy_class("zero_action")
    assert torch.equal(policy_class.from_dict({}).get_action(ScriptedEnvironment(4), {}), torch.zeros(4, 3))
    with pytest.raises(ConfigError, match="gain: ZeroActionPolicy"):
        policy_class.from_dict({"gain": 1})


def actions(num_envs: int, *, seed: int = 7, bounds: ArraySpec | None = None) -> dict[int, torch.Tensor]:
    environment = ScriptedEnvironment(num_envs)
    environment.action_spec = bounds or environment.action_spec
    return actions_of(resolve_policy_class("random_action").from_dict({}), environment, episodes(20, seed=seed))


def test_an_episode_draws_from_stream_1_of_its_seed_in_order():
    """The bounds of the actions are -1 and 2."""
    stream = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1, 5)))
    action = actions(3)[5]
    expected = -1 + 3 * stream.random((len(action), 3))
    torch.testing.assert_close(action, torch.from_numpy(expected).float())


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1, 2, (-1, 2)),
        (-inf, inf, (-1, 1)),
        (5, inf, (5, 7)),
        (-inf, -5, (-7, -5)),
    ],
)
def test_actions_fill_their_bounds_and_with_one_lie_on_its_right_side(low, high, expected):
    bounds: dict[str, Any] = {} if low is None else {"low": (low,) * 3, "high": (high,) * 3}
    drawn = torch.cat(list(actions(1, bounds=ArraySpec(shape=(3,), **bounds)).values()))
    width = expected[1] - expected[0]
    assert expected[0] <= drawn.min() < drawn.max() <= expected[1]
    assert drawn.max() - drawn.min() > 0.8 * width
    assert abs(float(drawn.mean()) - sum(expected) / 2) < 0.1 * width
