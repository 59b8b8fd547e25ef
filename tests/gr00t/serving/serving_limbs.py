"""Policies of the limb environment behind servers in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.serving.hosted_policy import HostedPolicy
from isaaclab_arena.evaluation.serving.policy_host import PolicyHost
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena_gr00t.serving.observation_mapping import mapping_of
from isaaclab_arena_gr00t.serving.served_job import ServedJob
from tests.gr00t.fakes import LimbEnvironment

SEED = 7


@dataclass(frozen=True)
class LimbConfig:
    """Options of the environment: none."""


class LimbBuilder:
    """Builds `LimbEnvironment` the way a registered environment is built."""

    config_class = LimbConfig

    def check(self, config: Any) -> None: ...

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


class WalkPolicy(PolicyBase[None]):
    """Walks at random from where the joints are, by the words and the pictures, and remembers how far it went."""

    name = "walk"
    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def __init__(self) -> None:
        super().__init__()
        self.noise: dict[int, np.random.Generator] = {}
        self.words: dict[int, str] = {}
        self.gone: dict[int, np.ndarray] = {}

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        for start in starts:
            self.noise[start.env_id] = start.episode.policy_generator()
            self.words[start.env_id] = start.language_instruction
            self.gone[start.env_id] = np.zeros(5)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        action = torch.zeros(env.num_envs, 5)
        for env_id in self.gone.keys() & set(env_ids):
            shown = sum(float(values[env_id].double().sum()) for values in observation["policy"].values())
            seen = sum(float(values[env_id].double().mean()) / 255 for values in observation["camera_obs"].values())
            self.gone[env_id] += self.noise[env_id].normal(size=5) + shown + seen + len(self.words[env_id])
            action[env_id] = torch.from_numpy(np.sin(self.gone[env_id]))
        return action


def limb_job(policy_class: type[PolicyBase] = WalkPolicy) -> Job:
    config = JobConfig(
        index=0, name="limbs", environment="limbs", environment_args={}, policy_type="walk", num_envs=2, seed=SEED,
        num_episodes=1,
    )  # fmt: skip
    return Job(
        config=config,
        builder=LimbBuilder(),
        environment_config=LimbConfig(),
        policy_class=policy_class,
        policy_options={},
    )


@contextmanager
def served(
    num_slots: int = 4,
    *,
    policy_class: type[PolicyBase] = WalkPolicy,
    images: dict[str, str] | None = None,
    states: dict[str, Sequence[str]] | None = None,
) -> Iterator[tuple[ServedJob, PolicyHost]]:
    """Yield a served job and its host."""
    policy = HostedPolicy(
        limb_job(policy_class), num_slots, shown=lambda spec: mapping_of(spec, images, states).shown()
    )
    host = PolicyHost(policy)
    mapping = mapping_of(policy.observation_spec, images, states)
    try:
        yield ServedJob(policy=policy, mapping=mapping, contents={}), host
    finally:
        host.close()
