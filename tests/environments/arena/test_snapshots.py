"""Snapshots of an environment: what goes on from one is what would have gone on."""

import pytest
import torch

from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment
from isaaclab_arena.interfaces.environment import Observation, Step
from tests.environments.building import FLOOR_ENVIRONMENTS, build, build_on_the_floor, episode, start
from tests.environments.variations.varying import build_varied

NUM_ENVS = 3
BEFORE, AFTER = 7, 9


def built(name: str) -> ArenaEnvironment:
    if name in FLOOR_ENVIRONMENTS:
        return build_on_the_floor(name, num_envs=NUM_ENVS)
    return build(name, num_envs=NUM_ENVS)


def actions_of(env: ArenaEnvironment) -> torch.Tensor:
    """Return random actions for all steps of a test. Shape: (BEFORE + AFTER, num_envs, action_dim)."""
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(env.action_spec.low), torch.tensor(env.action_spec.high)
    return low + (high - low) * torch.rand(BEFORE + AFTER, NUM_ENVS, *env.action_spec.shape, generator=generator)


def go_on(env: ArenaEnvironment, actions: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Make steps, the fourth of which starts a new episode in env slot 1."""
    seen = []
    for index, action in enumerate(actions):
        seen.append(tensors_of(env.step(action)))
        if index == 3:
            conditions = env.draw_conditions(episode(40).conditions_generator())
            seen.append(flat(env.reset(torch.tensor([1]), [conditions])))
    return seen


def flat(observation: Observation) -> dict[str, torch.Tensor]:
    return {f"{group}.{name}": value for group, part in observation.items() for name, value in part.items()}


def tensors_of(step: Step) -> dict[str, torch.Tensor]:
    assert step.success is not None
    masks = {"terminated": step.terminated, "truncated": step.truncated, "success": step.success}
    return {**flat(step.observation), "reward": step.reward, "diverged": step.diverged, **masks, **step.metrics}


@pytest.mark.parametrize("name", ["reach", "push_to_goal", "close_drawer", *FLOOR_ENVIRONMENTS])
def test_training_goes_on_from_a_snapshot_as_if_nothing_had_happened(name):
    env, other = built(name), built(name)
    actions = actions_of(env)
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
    for seen, again in zip(expected, go_on(other, actions[BEFORE:]), strict=True):
        assert seen.keys() == again.keys()
        for key, value in seen.items():
            assert torch.equal(again[key], value), key


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
