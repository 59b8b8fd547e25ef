"""What environments show and what steps give, flat, to be compared bit for bit."""

from collections.abc import Mapping, Sequence

import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.nested import leaves


def random_actions(env: ArenaEnvironment, steps: int) -> torch.Tensor:
    """Return actions within their bounds. Shape: (steps, num_envs, action_dim)."""
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(env.action_spec.low), torch.tensor(env.action_spec.high)
    return low + (high - low) * torch.rand(steps, env.num_envs, *env.action_spec.shape, generator=generator)


def flat(tree: Mapping[str, object]) -> dict[str, torch.Tensor]:
    return {".".join(path): value for path, value in leaves(tree)}


def tensors_of(step: Step) -> dict[str, torch.Tensor]:
    assert step.success is not None
    masks = {"terminated": step.terminated, "truncated": step.truncated, "success": step.success}
    return {**flat(step.observation), "reward": step.reward, "diverged": step.diverged, **masks, **step.metrics}


def assert_the_same(found: Sequence[Mapping[str, torch.Tensor]], wanted: Sequence[Mapping[str, torch.Tensor]]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.keys() == want.keys()
        for name, value in want.items():
            torch.testing.assert_close(got[name].cpu(), value.cpu(), rtol=0, atol=0, equal_nan=True, msg=name)
