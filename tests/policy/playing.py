"""Policies that play episodes, alone or on ranks that share a network, and what of their options is refused."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes
from tests.fakes_network import Desk


def play(policy: PolicyBase, number: int, num_envs: int = 4) -> tuple[dict[int, torch.Tensor], list[EpisodeRecord]]:
    """Have a policy play a number of episodes; return its actions by episode, and how they ended."""
    log, notebook = ActionLog(), Notebook()
    # Timeouts after 8 steps at most and 3 at least: a recording of 3 steps always ends first or at the same time.
    rollout(ScriptedEnvironment(num_envs, endings=("timeout",)), policy, episodes(number), [log, notebook])
    return log.actions, notebook.records


def actions_of(policy: PolicyBase, environment: Environment, wanted: Sequence[Episode]) -> dict[int, torch.Tensor]:
    """Have a policy play episodes, and return the actions of each by its index."""
    log = ActionLog()
    rollout(environment, policy, wanted, [log])
    return log.actions


def start(env_id: int, episode_index: int = 0, words: str = "") -> EpisodeStart:
    """Return the start of an episode in an env slot."""
    episode = Episode(job="push", episode_index=episode_index, seed=7)
    return EpisodeStart(env_id=env_id, episode=episode, conditions={}, language_instruction=words)


def job_of(policy_type: str, options: dict[str, Any], **changes: Any) -> JobConfig:
    """Return a job of one episode in ``reach``."""
    job = {"index": 0, "name": "a", "environment": "reach", "num_episodes": 1, **changes}
    return JobConfig(policy_type=policy_type, policy_config_dict=options, **job)


@contextmanager
def refused(*keys: str) -> Iterator[list[Problem]]:
    """Expect a ConfigError of problems with these keys; their list is filled at the end of the ``with`` block."""
    problems: list[Problem] = []
    with pytest.raises(ConfigError) as caught:
        yield problems
    problems.extend(caught.value.problems)
    assert [problem.key for problem in problems] == [*keys]


@contextmanager
def sharing(owner: Any, options: dict[str, Any], num_ranks: int) -> Iterator[list[Any]]:
    """Yield policies of ranks that share the network of one, and make sure that each leaves it when it is closed."""
    network = owner.network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    yield [type(owner).asking(options, Desk(batcher, network)) for _ in range(num_ranks)]
    assert batcher.num_askers == 0
    batcher.close()
    owner.close()


def check_ranks_play_as_one(
    alone: PolicyBase, ranks: Sequence[PolicyBase], make_environment: Callable[[int], Environment]
) -> None:
    """Make sure that six episodes have the same bits by one policy and by ranks that share its network."""

    def played(policy: PolicyBase, indices: Sequence[int], num_envs: int) -> dict[int, bytes]:
        wanted = [each for each in episodes(6) if each.episode_index in indices]
        with torch.no_grad():
            actions = actions_of(policy, make_environment(num_envs), wanted)
        policy.close()
        return {index: values.numpy().tobytes() for index, values in actions.items()}

    expected = played(alone, range(6), 3)
    with ThreadPoolExecutor(len(ranks)) as pool:
        shares = [range(first, 6, len(ranks)) for first in range(len(ranks))]
        parts = list(pool.map(played, ranks, shares, [2, 1, 2]))
    assert {index: actions for part in parts for index, actions in part.items()} == expected
    assert len({*expected.values()}) == 6
