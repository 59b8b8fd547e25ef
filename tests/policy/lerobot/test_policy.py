from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.policy.lerobot.policy import LeRobotPolicy
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog
from tests.gr00t.fakes import LimbEnvironment
from tests.policy.lerobot.policies import options_for, saved


@contextmanager
def made(directory: Path, **options: Any) -> Iterator[LeRobotPolicy]:
    policy = LeRobotPolicy.from_dict(options_for(directory, **options))
    yield policy
    policy.close()


def played(policy: LeRobotPolicy, num_envs: int, count: int = 5) -> dict[int, torch.Tensor]:
    """Return the actions of each episode that a policy plays, by its index."""
    log = ActionLog()
    episodes = [Episode(job="limb", episode_index=index, seed=7) for index in range(count)]
    rollout(LimbEnvironment(num_envs), policy, episodes, [log, Notebook()])
    return log.actions


@pytest.mark.parametrize("kind", ["act", "diffusion", "unheard_of"])
def test_an_episode_is_the_same_whichever_others_share_its_calls(tmp_path, kind):
    with made(saved(tmp_path / "policy", kind, n_obs_steps=2)) as policy:
        alone = played(policy, 1)
        policy.fill_calls_up_to(3)
        together = played(policy, 3)
    assert alone.keys() == together.keys() == set(range(5))
    for index, actions in alone.items():
        assert torch.allclose(actions, together[index], atol=1e-6), index
