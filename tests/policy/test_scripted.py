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
from isaaclab_arena.policy.action_chunking import ActionChunkingState, ActionChunkScheduler, ChunkPlayer
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.scripted import ArmMotion, ScriptedPolicy, ScriptedPolicyCfg
from tests.environments.building import ALL_ENVIRONMENTS, build, play, start
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


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("along", [-1.0, 1.0])
def test_no_step_goes_beyond_the_limits_of_a_joint(axis, along):
    env = build("reach", embodiment="so101")
    start(env)
    motion = ArmMotion(env.robot, env.backend)
    goal = torch.zeros(1, 3).double(), torch.zeros(1, 3).double(), torch.tensor([0.05]).double()
    goal[0][0, axis] = along
    joints, free = env.backend.qpos[0, motion.positions].clone(), motion.joint_targets(*goal)
    assert ((free - joints).abs() > 1e-3).any()
    motion.low, motion.high = joints - 1e-3, joints + 1e-3
    assert ((motion.joint_targets(*goal) - joints).abs() <= 1e-3 + 1e-9).all()


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


NUM_ENVS, LENGTH, WIDTH = 3, 2, 1


def fresh() -> ChunkPlayer:
    return ChunkPlayer.empty(NUM_ENVS, chunk_length=LENGTH, action_dim=WIDTH)


def test_env_slots_may_have_chunks_of_different_lengths():
    def counting(*firsts_and_lengths: tuple[float, int]) -> list[torch.Tensor]:
        return [torch.arange(first, first + length)[:, None] for first, length in firsts_and_lengths]

    chunks = fresh().restarted(torch.tensor([0, 1, 2])).refilled(
        torch.tensor([0, 1, 2]), counting((10.0, 1), (20.0, 3), (30.0, 2))
    )  # fmt: skip
    assert [chunks.planned(slot).flatten().tolist() for slot in range(3)] == [[10.0], [20, 21, 22], [30, 31]]
    played = []
    for _ in range(5):
        needing = chunks.needs_chunk().nonzero().flatten()
        if len(needing):
            chunks = chunks.refilled(needing, counting(*[(100.0 * (len(played) + 1), 4)] * len(needing)))
        action, chunks = chunks.popped()
        played.append(action.flatten().tolist())
    assert played == [[10, 20, 30], [200, 21, 31], [201, 22, 300], [202, 400, 301], [203, 401, 302]]


def scheduler(**changes) -> ActionChunkScheduler:
    sizes = {"num_envs": NUM_ENVS, "action_chunk_length": LENGTH, "action_horizon": 3, "action_dim": WIDTH}
    return ActionChunkScheduler(**{**sizes, "device": "cpu", **changes})


def counting(first: int) -> torch.Tensor:
    """Return a network's answer for all env slots: ``first``, ``first + 1`` and so on."""
    return torch.arange(first, first + 3, dtype=torch.float32)[None, :, None].expand(NUM_ENVS, -1, WIDTH)


def never() -> torch.Tensor:
    raise AssertionError("no env slot needs a chunk")


def test_a_scheduler_asks_only_when_an_env_slot_has_played_its_chunk():
    chunks = scheduler()
    played = [chunks.get_action(fetch)[0].item() for fetch in (lambda: counting(10), never, lambda: counting(20))]
    assert played == [10.0, 11.0, 20.0]
    assert chunks.current_action_index.tolist() == [1] * NUM_ENVS


def test_env_slots_that_are_reset_take_a_new_chunk_and_the_others_go_on_with_theirs():
    chunks = scheduler()
    chunks.get_action(lambda: counting(10))
    chunks.reset(torch.tensor([1]))
    assert chunks.env_requires_new_chunk.tolist() == [False, True, False]
    assert chunks.current_action_index.tolist() == [1, -1, 1]
    assert chunks.get_action(lambda: counting(20)).flatten().tolist() == [11.0, 20.0, 11.0]
    chunks.reset()
    assert chunks.env_requires_new_chunk.all()
    chunks.get_action(lambda: counting(30))
    chunks.reset(slice(0, 2))
    assert chunks.env_requires_new_chunk.tolist() == [True, True, False]


def test_a_scheduler_has_its_earlier_name_and_precision_and_refuses_what_does_not_fit():
    assert ActionChunkingState is ActionChunkScheduler
    assert scheduler(dtype=torch.float64).get_action(lambda: counting(0)).dtype == torch.float64
    with pytest.raises(ValueError, match=r"action_chunk_length is 4"):
        scheduler(action_chunk_length=4)
    for wrong, told in ((counting(0)[:, :1], r"\(3, 1, 1\)"), (counting(0)[:1], r"\(1, 3, 1\)")):
        with pytest.raises(PolicyError, match=told):
            scheduler().get_action(lambda wrong=wrong: wrong)


HORIZON = 4


def averaging(by: float, num_envs: int = 2) -> ChunkPlayer:
    return ChunkPlayer.empty(num_envs, chunk_length=HORIZON, action_dim=3, averaging=by)


def as_in_act(made: list[np.ndarray], by: float) -> np.ndarray:
    """Return the action of the present step as the paper has it, from the chunks of one env slot, oldest first."""
    about_now = [chunk[age] for age, chunk in enumerate(reversed(made[-HORIZON:]))][::-1]
    weights = np.exp(-by * np.arange(len(about_now)))
    return (np.array(about_now) * (weights / weights.sum())[:, None]).sum(axis=0)


@pytest.mark.parametrize("by", [0.0, 0.01, 3.0])
def test_an_action_is_the_weighted_mean_of_all_that_was_predicted_for_its_step(by):
    generator = np.random.default_rng(0)
    player, made = averaging(by).restarted(torch.tensor([0, 1])), ([], [])
    for step in range(9):
        if step == 5:  # the second env slot begins another episode
            player, made = player.restarted(torch.tensor([1])), (made[0], [])
        assert player.needs_chunk().all()
        chunks = generator.normal(size=(2, HORIZON, 3)).astype(np.float32)
        player = player.refilled(torch.tensor([0, 1]), torch.from_numpy(chunks))
        for env_id in range(2):
            made[env_id].append(chunks[env_id])
        action, player = player.popped()
        expected = np.stack([as_in_act(made[env_id], by) for env_id in range(2)])
        np.testing.assert_allclose(action.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_an_env_slot_held_before_its_episode_does_not_come_through():
    player = averaging(0.01, 1).restarted(torch.tensor([0]))
    player = player.refilled(torch.tensor([0]), torch.full((1, HORIZON, 3), torch.nan)).popped()[1]
    player = player.restarted(torch.tensor([0])).refilled(torch.tensor([0]), torch.ones(1, HORIZON, 3))
    assert torch.equal(player.popped()[0], torch.ones(1, 3))
