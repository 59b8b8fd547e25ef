"""Snapshots of an environment: what goes on from one is what would have gone on."""

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from tests.environments.building import FLOOR_ENVIRONMENTS, build, build_on_the_floor, episode, start
from tests.environments.comparing import assert_the_same, flat, random_actions, tensors_of
from tests.environments.variations.varying import build_varied

NUM_ENVS = 3
BEFORE, AFTER = 7, 9


def built(name: str) -> ArenaEnvironment:
    if name in FLOOR_ENVIRONMENTS:
        return build_on_the_floor(name, num_envs=NUM_ENVS)
    return build(name, num_envs=NUM_ENVS)


def go_on(env: ArenaEnvironment, actions: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Make steps, the fourth of which starts a new episode in env slot 1."""
    seen = []
    for index, action in enumerate(actions):
        seen.append(tensors_of(env.step(action)))
        if index == 3:
            conditions = env.draw_conditions(episode(40).conditions_generator())
            seen.append(flat(env.reset(torch.tensor([1]), [conditions])))
    return seen


@pytest.mark.parametrize("name", ["reach", "push_to_goal", "close_drawer", *FLOOR_ENVIRONMENTS])
def test_training_goes_on_from_a_snapshot_as_if_nothing_had_happened(name):
    env, other = built(name), built(name)
    actions = random_actions(env, BEFORE + AFTER)
    start(env)
    # An env slot that ends within the steps after the snapshot, and one that rests.
    env._length[0] = env.max_episode_length - BEFORE - 5
    env._length[2] = env.max_episode_length - 2
    last = [env.step(action) for action in actions[:BEFORE]][-1]
    snapshot = env.snapshot()
    assert snapshot is not None
    kept = {key: value.clone() for key, value in snapshot.items()}
    expected = go_on(env, actions[BEFORE:])
    assert any(seen["truncated"][0] or seen["terminated"][0] for seen in expected if "truncated" in seen)
    observation = flat(other.restore_snapshot(kept))
    assert all(torch.equal(observation[key], value) for key, value in flat(last.observation).items())
    assert_the_same(go_on(other, actions[BEFORE:]), expected)


def test_a_snapshot_stays_as_it_was():
    env = build("reach", num_envs=2)
    start(env)
    snapshot = env.snapshot()
    assert snapshot is not None
    kept = {key: value.clone() for key, value in snapshot.items()}
    env.step(torch.zeros(2, 8))
    assert all(torch.equal(snapshot[key], value) for key, value in kept.items())


def test_a_broken_env_slot_is_still_broken_after_a_snapshot_and_starts_again():
    env, other = built("cartpole"), built("cartpole")
    start(env)
    env.step(torch.tensor([[0.0], [torch.nan], [0.0]]))
    snapshot = env.snapshot()
    assert snapshot is not None
    other.restore_snapshot(snapshot)
    assert other.backend.diverged.tolist() == [False, True, False]
    start(other, [1])
    assert not other.step(torch.zeros(3, 1)).diverged.any()


def test_cameras_and_variations_take_no_snapshots():
    assert build("reach", enable_cameras=True, camera_size=16).snapshot() is None
    assert build_varied("reach", {"light.intensity.enabled": True}).snapshot() is None
