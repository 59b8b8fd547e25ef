"""Every task on MuJoCo-Warp against MuJoCo: the same conditions, the same actions, nearly the same states.

On a machine that has never compiled a scene's kernels each takes half a minute, so one scene is always tested and the
others are where slow tests are asked for.
"""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS, build, solved, start

NUM_ENVS = 3
SLOW = pytest.mark.slow

# After one control step there is nothing but single precision. Later a contact that begins a step earlier or later
# moves things by what they move in a step, and rewards that count contacts differ.
LATER_TOLERANCE = 2e-2
BOTH = ((1, 2e-3), (50, LATER_TOLERANCE))


def built(name: str, **options) -> ArenaEnvironment:
    return build(name, num_envs=NUM_ENVS, **options)


def actions(env: ArenaEnvironment, num_steps: int) -> list[torch.Tensor]:
    """Return small, slow actions around what holds still."""
    generator = np.random.default_rng(7)
    low, high = np.asarray(env.action_spec.low), np.asarray(env.action_spec.high)
    middle, span = (low + high) / 2, (high - low) / 2
    drawn = generator.uniform(-0.2, 0.2, size=(num_steps // 10 + 1, NUM_ENVS, len(low)))
    return [torch.from_numpy(middle + span * drawn[step // 10]).float() for step in range(num_steps)]


def driven(env: ArenaEnvironment, num_steps: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Observations and solved env slots after so many steps."""
    start(env)
    *_, last = (env.step(action) for action in actions(env, num_steps))
    seen = last.observation["policy"]
    assert isinstance(seen, Mapping)
    return {name: torch.as_tensor(value) for name, value in seen.items()}, solved(last)


def assert_same(name: str, num_steps: int, tolerance: float, **options) -> None:
    seen, success = driven(built(name, backend="warp", **options), num_steps)
    expected, expected_success = driven(built(name, backend="mujoco", **options), num_steps)
    assert seen.keys() == expected.keys()
    for term in seen:
        np.testing.assert_allclose(
            seen[term].numpy(), expected[term].numpy(), atol=tolerance, rtol=tolerance, err_msg=term
        )
    assert torch.equal(success, expected_success)


@pytest.mark.parametrize(("num_steps", "tolerance"), BOTH)
def test_lifting_looks_the_same_on_both(num_steps, tolerance):
    assert_same("lift_object", num_steps, tolerance)


@SLOW
@pytest.mark.parametrize(("num_steps", "tolerance"), BOTH)
@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_task_is_nearly_the_same_on_both(name, num_steps, tolerance):
    assert_same(name, num_steps, tolerance)
