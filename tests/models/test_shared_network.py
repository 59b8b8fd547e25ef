"""A network of this package in a policy server answers as in the rank's own process, whoever else asks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes
from tests.fakes_network import Desk
from tests.policy.checkpoints import write_checkpoint, write_torchscript


def played(policy: RslRlPolicy, indices: tuple[int, ...], num_envs: int) -> dict[int, bytes]:
    log = ActionLog()
    wanted = [each for each in episodes(6) if each.episode_index in indices]
    rollout(ScriptedEnvironment(num_envs, endings=("timeout",)), on_fixed_batch(policy, 4), wanted, [log])
    policy.close()
    return {index: actions.numpy().tobytes() for index, actions in log.actions.items()}


def checkpoint(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory))}


def drawn_from_a_recurrent_one(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory, recurrent=True)), "stochastic": True}


def exported(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_torchscript(directory / "policy.pt", 3, 3))}


@pytest.mark.parametrize("make_options", [checkpoint, drawn_from_a_recurrent_one, exported])
def test_ranks_that_share_a_network_play_the_same_bits_as_one_with_its_own(
    tmp_path, make_options: Callable[[Path], dict[str, Any]]
):
    options = {**make_options(tmp_path), "policy_device": "cpu"}
    alone = played(RslRlPolicy.from_dict(options), (0, 1, 2, 3, 4, 5), num_envs=3)
    assert len({*alone.values()}) == 6

    network = RslRlPolicy.from_dict(options).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [RslRlPolicy.asking(options, Desk(batcher, network)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool, torch.no_grad():
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    assert {index: actions for part in parts for index, actions in part.items()} == alone
    assert batcher.num_askers == 0
    batcher.close()


def test_a_server_that_is_lost_while_a_policy_meets_its_environment_is_no_misfit(tmp_path):
    class Gone(Desk):
        def ask(self, entries, *, slots_per_call):
            raise PolicyLostError("the server is gone")

    options = checkpoint(tmp_path)
    network = RslRlPolicy.from_dict(options).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    with pytest.raises(PolicyLostError, match="the server is gone"):
        RslRlPolicy.asking(options, Gone(batcher, network)).check_environment(ScriptedEnvironment(1))
    batcher.close()
