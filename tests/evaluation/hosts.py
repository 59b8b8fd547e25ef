"""Policies that remember, and hosts of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.serving import HostedPolicy, HostSession, PolicyHost
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.evaluation.jobs import coin_job


class CountingPolicy(PolicyBase[None]):
    """Answers with the number of the step in the episode, and with what the clock shows plus the episode's noise."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self.noise: dict[int, np.random.Generator] = {}
        self.words: list[str] = []

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        for start in starts:
            self.steps[start.env_id] = 0
            self.noise[start.env_id] = start.episode.policy_generator()
            self.words.append(start.language_instruction)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            del self.steps[env_id]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.counted(env, observation, sorted(self.steps))

    def counted(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        action = torch.zeros(env.num_envs, *env.action_spec.shape)
        for env_id in env_ids:
            self.steps[env_id] += 1
            clock = float(observation["policy"]["clock"][env_id])
            if clock < 0:
                raise ValueError("the clock runs backwards")
            action[env_id] = torch.tensor([self.steps[env_id], clock + self.noise[env_id].random()])
        return action


class CountingTogetherPolicy(CountingPolicy):
    """Lets env slots wait, and remembers for how many it was asked in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        self.asked.append(len(env_ids))
        return self.counted(env, observation, env_ids)


def showing(clock: float) -> dict[str, dict[str, np.ndarray]]:
    return {"policy": {"clock": np.array([clock], np.float32), "heads": np.zeros(1, np.float32)}}


def played(session: HostSession, episode_index: int, clocks: Sequence[float], words: str | None = None) -> list:
    """Return the actions of an episode of which a session shows the clock."""
    session.start_episode(Episode(job="coins", episode_index=episode_index, seed=3), words)
    return [session.act(showing(clock)).action.tolist() for clock in clocks]


@contextmanager
def hosting(asked: type[PolicyBase] | Job, num_slots: int = 4, **options) -> Iterator[PolicyHost]:
    """Host a policy of coins, or that of a job."""
    job = asked if isinstance(asked, Job) else coin_job(policy_class=asked)
    host = PolicyHost(HostedPolicy(job, num_slots), **options)
    try:
        yield host
    finally:
        host.close()
