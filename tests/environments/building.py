"""Real environments for tests, started in the conditions of numbered episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment, FloorEnvironment, TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.nested import leaves

ALL_ENVIRONMENTS = (
    "reach",
    "lift_object",
    "pick_and_place",
    "open_drawer",
    "close_drawer",
    "open_microwave",
    "stack",
    "pick_by_colour",
    "sort_two",
    "push_to_goal",
    "push_cube",
    "press_button",
)

CPU = torch.device("cpu")

FLOOR_ENVIRONMENTS = ("cartpole", "velocity_go1", "walk_humanoid", "track_motion")
"""Those of robots that are not arms on a table."""

IN_SOME_ACTION_MODE = (*((name, "joint_position") for name in ALL_ENVIRONMENTS), ("lift_object", "ee_delta"))
"""Every environment once, and the other action mode once, for tests that play whole episodes."""


def build(
    name: str, *, num_envs: int = 1, num_threads: int = 1, device: torch.device = CPU, **options: Any
) -> TableEnvironment:
    """Build a registered environment."""
    builder = ENVIRONMENTS.get(name)
    config = builder.config_class(**options)
    return builder.build(config, num_envs=num_envs, device=device, num_threads=num_threads)


def build_on_the_floor(
    name: str, *, num_envs: int = 1, num_threads: int = 1, device: torch.device = CPU, **options: Any
) -> FloorEnvironment:
    """Build a registered environment of a robot."""
    builder = ENVIRONMENTS.get(name)
    config = builder.config_class(**options)
    return builder.build(config, num_envs=num_envs, device=device, num_threads=num_threads)


def refusal(name: str, **options) -> ConfigError:
    """Refusal of an environment's options."""
    builder = ENVIRONMENTS.get(name)
    with pytest.raises(ConfigError) as caught:
        builder.check(builder.config_class(**options))
    return caught.value


def episode(index: int, seed: int = 0) -> Episode:
    return Episode(job="test", episode_index=index, seed=seed)


def start(env: ArenaEnvironment, env_ids: Sequence[int] | None = None) -> Observation:
    """Start episode r in env slot r."""
    env_ids = range(env.num_envs) if env_ids is None else env_ids
    conditions = [env.draw_conditions(episode(env_id).conditions_generator()) for env_id in env_ids]
    return env.reset(torch.tensor(list(env_ids), device=env.device), conditions)


def leaf_specs(env: ArenaEnvironment) -> dict[str, ArraySpec]:
    """Return the specs of the terms of the group ``policy``."""
    group = env.observation_spec["policy"]
    assert not isinstance(group, ArraySpec)
    return {name: spec for name, spec in group.items() if isinstance(spec, ArraySpec)}


def solved(step: Step) -> torch.Tensor:
    """Return the success mask of an environment that measures success. Shape: (num_envs,)."""
    assert step.success is not None
    return step.success


def steps_of(env: ArenaEnvironment, action: torch.Tensor, num_steps: int) -> list[Step]:
    """Repeat an action."""
    return [env.step(action) for _ in range(num_steps)]


def hold_still(env: TableEnvironment) -> torch.Tensor:
    """Return the action that keeps a joint-position arm where it is told to be, the gripper open."""
    arm = env.backend.ctrl[:, env.action_mode.arm_controls]
    return torch.cat((arm, torch.full((env.num_envs, 1), 0.08, dtype=arm.dtype)), dim=1).float()


class EndStates(Observer):
    """Keeps each episode's record and the whole physics state it ended in."""

    def __init__(self) -> None:
        self.records: dict[int, EpisodeRecord] = {}
        self.states: dict[int, bytes] = {}

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        index = record.episode.episode_index
        self.records[index] = record
        (state,) = environment.episode_states([record.env_id])
        self.states[index] = state["integration_state"].tobytes()


def play(env: ArenaEnvironment, policy: PolicyBase, num_episodes: int, *, seed: int = 0) -> EndStates:
    """Run episodes to their end."""
    ends = EndStates()
    rollout(env, policy, [episode(index, seed) for index in range(num_episodes)], [ends])
    return ends


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
