"""A policy of LeRobot in a policy server answers as in a rank's own worker, beside other clients."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.errors import PolicyError, PolicyLostError
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.policy.lerobot_policy import LeRobotPolicy
from isaaclab_arena.workers import stop_kept_workers
from tests.fakes_environment import ActionLog
from tests.fakes_network import Desk
from tests.gr00t.fakes import LimbEnvironment
from tests.policy.lerobot.policies import REMEMBERING, options_for, saved


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    stop_kept_workers()


@contextmanager
def served(options: dict[str, Any], num_ranks: int) -> Iterator[list[LeRobotPolicy]]:
    """Yield the policies of ranks that share a process."""
    owner = LeRobotPolicy.from_dict(options)
    network = owner.network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    yield [LeRobotPolicy.asking(options, Desk(batcher, network)) for _ in range(num_ranks)]
    assert batcher.num_askers == 0
    batcher.close()
    owner.close()


def played(policy: LeRobotPolicy, indices: Sequence[int], num_envs: int) -> dict[int, bytes]:
    log = ActionLog()
    rollout(
        LimbEnvironment(num_envs), policy, [Episode(job="limb", episode_index=each, seed=7) for each in indices], [log]
    )
    policy.close()
    return {index: actions.numpy().tobytes() for index, actions in log.actions.items()}


@pytest.mark.parametrize("kind", ["diffusion", "unheard_of"])
def test_ranks_that_share_a_process_play_the_same_bits_as_one_with_its_own(tmp_path, kind):
    options = options_for(saved(tmp_path / "policy", kind, n_obs_steps=2), slots_per_call=4)
    alone = played(LeRobotPolicy.from_dict(options), range(6), num_envs=3)
    with served(options, num_ranks=3) as ranks, ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    assert {index: actions for part in parts for index, actions in part.items()} == alone
    assert len({*alone.values()}) == 6


@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_policy_that_remembers_does_so_for_each_rank_that_shares_it(tmp_path, kind):
    options = options_for(saved(tmp_path / "policy", kind, **REMEMBERING[kind]))
    alone = played(LeRobotPolicy.from_dict(options), range(6), num_envs=3)
    with served(options, num_ranks=3) as ranks, ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    assert {index: actions for part in parts for index, actions in part.items()} == alone


def test_a_memory_that_outgrows_what_a_server_takes_is_refused(tmp_path):
    options = options_for(saved(tmp_path, misbehaviour="grow", **REMEMBERING["act"]))
    played(LeRobotPolicy.from_dict(options), [0], num_envs=1)
    with served(options, num_ranks=1) as (policy,):
        with pytest.raises(
            PolicyError, match=r"remembers more in the course of an episode, .* leave policy_server out"
        ):
            played(policy, [0], num_envs=1)
        policy.close()


def test_a_process_that_falls_silent_is_lost_to_the_rank_too(tmp_path: Path):
    options = options_for(saved(tmp_path, misbehaviour="hang"), timeout_s=0.5)
    with served(options, num_ranks=1) as (policy,):
        with pytest.raises(PolicyLostError, match="did not answer within"):
            played(policy, [0], num_envs=1)
        policy.close()
