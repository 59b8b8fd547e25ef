"""Building environments made elsewhere and running episodes in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.options import read_options
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.env_slots import EnvSlots
from isaaclab_arena.environments.gym.environment import GymEnvironment
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout import EnvGroup, group_sizes, pipelined_rollout, rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import leaves
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.workers import spare_workers_kept
from tests.environments.gym.gym_fakes import ID
from tests.fakes import Notebook
from tests.preloaded.interpreter import preloaded_python

IN_WORKERS: Mapping[str, Any] = {
    "python": preloaded_python(),
    "environment_variables": {"PYTHONPATH": str(Path(__file__).parents[3])},
    "step_timeout_s": 20.0,
}
"""Options that run an environment in worker processes of this same interpreter."""


def build(name: str = f"gym:{ID}", *, num_envs: int = 1, **options: Any) -> GymEnvironment:
    """Check and build an environment, the fake one by default."""
    builder = ENVIRONMENTS.get(name)
    config = builder.config_class(**options)
    builder.check(config)
    return builder.build(config, num_envs=num_envs, device=torch.device("cpu"), num_threads=1)


def problems(name: str, **options: Any) -> str:
    """Return the refusal of an environment's options."""
    builder = ENVIRONMENTS.get(name)
    with pytest.raises(ConfigError) as caught:
        builder.check(read_options(builder.config_class, options, owner="environment"))
    return str(caught.value)


def assert_tasks_share_a_worker(task: str, other: str, conditions: Conditions, **options: Any) -> None:
    """Hold that tasks are played one after the other in one worker as in workers of their own."""

    def started(name: str) -> tuple[int, dict[str, bytes]]:
        environment = build(name, **options)
        shown = environment.reset(torch.tensor([0]), [conditions])
        assert isinstance(environment._slots, EnvSlots)
        process = environment._slots.workers[0].process
        assert process is not None
        found = process.pid, {".".join(path): each.numpy().tobytes() for path, each in leaves(shown)}
        environment.close()
        return found

    expected = started(task)[1]
    with spare_workers_kept():
        found = [started(name) for name in (task, other, task)]
    assert len({pid for pid, _ in found}) == 1
    assert found[0][1] == found[2][1] == expected != found[1][1]


class Trace(Observer):
    """Keeps what every finished episode observed and earned, by its index."""

    def __init__(self) -> None:
        self.steps: dict[int, list[tuple[bytes, float]]] = {}
        self._underway: dict[tuple[Environment, int], list[tuple[bytes, float]]] = {}

    def on_episode_start(self, environment, starts, observation) -> None:
        for start in starts:
            observed = observation["policy"]["obs"][start.env_id].numpy().tobytes()
            self._underway[environment, start.env_id] = [(observed, 0.0)]

    def on_step(self, environment, transition) -> None:
        for slot in torch.nonzero(transition.running).flatten().tolist():
            observed = transition.step.observation["policy"]["obs"][slot].numpy().tobytes()
            self._underway[environment, slot].append((observed, float(transition.step.reward[slot])))

    def on_episode_end(self, environment, record) -> None:
        self.steps[record.episode.episode_index] = self._underway.pop((environment, record.env_id))


def run(
    name: str = f"gym:{ID}",
    *,
    num_envs: int = 1,
    num_episodes: int = 6,
    policy: PolicyBase | None = None,
    observer: Observer | None = None,
    pipeline: int = 1,
    **options: Any,
) -> dict[int, Any]:
    """Run episodes in one group of env slots or several, and return their records by index."""
    environments = [build(name, num_envs=size, **options) for size in group_sizes(num_envs, pipeline)]
    notebook = Notebook()
    notebook.sees_pictures = False
    episodes = [Episode(job="gym", episode_index=index, seed=3) for index in range(num_episodes)]
    observers = [notebook, *([observer] if observer else [])]
    groups = [EnvGroup(environment=each, policy=policy or RandomActionPolicy()) for each in environments]
    try:
        if pipeline == 1:
            rollout(groups[0].environment, groups[0].policy, episodes, observers)
        else:
            pipelined_rollout(groups, episodes, observers)
    finally:
        for environment in environments:
            environment.close()
    return {record.episode.episode_index: record for record in notebook.records}
