"""A GR00T model in a policy server answers as the same model in the rank's own process, whoever else asks."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from tests.fakes_environment import ActionLog, episodes
from tests.fakes_network import Desk
from tests.gr00t.fakes import DIMENSIONS, MODALITIES, LimbEnvironment, network_answer, write_policy_yaml


class RandomModel:
    """A model package's policy, whose last digits change with the size of a call."""

    honoured_options = ("noise_seeds",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def get_modality_config(self):
        return MODALITIES

    def get_dimensions(self):
        return DIMENSIONS

    def get_action(self, observation: dict[str, Any], options: dict[str, Any]):
        self.sizes.append(len(options["noise_seeds"]))
        return network_answer(observation, options["noise_seeds"]), {}


class ContinuingModel(RandomModel):
    """Its chunks lie between what they go on from and what they would be without."""

    honoured_options = ("noise_seeds", "continued")

    def get_action(self, observation: dict[str, Any], options: dict[str, Any]):
        actions, _ = super().get_action(observation, options)
        going_on = options["continued"]
        weights = np.asarray(going_on["weights"])[:, :, None]
        return {key: own + weights * (going_on["actions"][key] - own) for key, own in actions.items()}, {}


class NoisyModel(RandomModel):
    """Draws its noise without being told from which seeds."""

    honoured_options = ()


@pytest.fixture
def options(tmp_path) -> dict[str, str]:
    return {"policy_config_yaml_path": str(write_policy_yaml(tmp_path)), "policy_device": "cpu"}


def played(policy: PolicyBase, indices, num_envs: int) -> dict[int, bytes]:
    log = ActionLog()
    wanted = [each for each in episodes(6) if each.episode_index in indices]
    with torch.no_grad():
        rollout(LimbEnvironment(num_envs), policy, wanted, [log])
    policy.close()
    return {index: actions.numpy().tobytes() for index, actions in log.actions.items()}


def test_ranks_that_share_a_model_play_the_same_bits_as_one_with_its_own(options):
    own = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=RandomModel())
    alone = played(own, range(6), num_envs=3)

    model = RandomModel()
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=model).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [Gr00tClosedloopPolicy.asking(options, Desk(batcher, network)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    batcher.close()
    assert {index: actions for part in parts for index, actions in part.items()} == alone
    assert set(model.sizes) == {4}


def test_late_chunks_go_on_from_each_other_as_well_when_the_model_is_shared(options):
    def late(policy: Gr00tClosedloopPolicy) -> LatePolicy:
        assert policy.chunk_traits().can_continue
        return LatePolicy(policy, Delays(steps=((1, 1), (2, 1)), control_dt=0.1), Meanwhile.RTC, QueryTimes())

    own = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=ContinuingModel())
    alone = played(late(own), range(6), num_envs=3)
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=ContinuingModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [late(Gr00tClosedloopPolicy.asking(options, Desk(batcher, network))) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(played, ranks, [(0, 2, 4), (1, 3, 5)], [1, 2]))
    batcher.close()
    assert parts[0] | parts[1] == alone


def test_a_shared_model_that_cannot_go_on_from_actions_says_so(options):
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=RandomModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    assert not Gr00tClosedloopPolicy.asking(options, Desk(batcher, network)).chunk_traits().can_continue
    batcher.close()


def test_a_model_whose_noise_depends_on_its_neighbours_promises_the_plan_alone(options):
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=NoisyModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    policy = Gr00tClosedloopPolicy.asking(options, Desk(batcher, network))
    assert not policy.traits.reproducible
    assert "depends on the rows that share its query" in str(policy.traits.plan_because)
    batcher.close()
