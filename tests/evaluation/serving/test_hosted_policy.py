"""The policy of a job, as it acts in the env slots of clients."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError, UnannouncedPictureError
from isaaclab_arena.evaluation.serving import BegunEpisode, HostedPolicy, SlotAnswer, checked_observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import Pictures
from tests.evaluation.jobs import coin_job
from tests.evaluation.serving.hosts import CountingPolicy, CountingTogetherPolicy, showing


def hosted(policy_class: type[PolicyBase], words: str | None = None) -> "closing[HostedPolicy]":
    return closing(HostedPolicy(coin_job(policy_class=policy_class, language_instruction=words), 2))


def asked(policy: HostedPolicy, env_id: int, clock: float) -> SlotAnswer | Exception:
    return policy.act({env_id: checked_observation(showing(clock), policy.environment.observation_spec)})[env_id]


def begun(episode_index: int, instruction: str | None = None) -> BegunEpisode:
    return BegunEpisode(episode=Episode(job="coins", episode_index=episode_index, seed=3), instruction=instruction)


class BorrowingPolicy(CountingPolicy):
    """Has a network that others with a memory of their own may share."""

    networks_made = 0

    def __init__(self, network: object | None = None) -> None:
        super().__init__()
        if network is None:
            type(self).networks_made += 1
        self.network_of_all = network or object()

    def with_own_memory(self) -> "BorrowingPolicy":
        return type(self)(self.network_of_all)


def test_sessions_share_a_network_and_no_memory():
    made_before = BorrowingPolicy.networks_made
    with hosted(BorrowingPolicy) as policy:
        loaded = BorrowingPolicy.networks_made - made_before
        for env_id in (0, 1):
            policy.start(env_id, begun(env_id))
        steps = [
            answer.action[0] for env_id in (0, 1, 0) if isinstance(answer := asked(policy, env_id, 1.0), SlotAnswer)
        ]
        assert steps == [1, 1, 2]
        assert BorrowingPolicy.networks_made - made_before == loaded


class RashPolicy(CountingTogetherPolicy):
    """Knows what it does next, which is too much from the second step on."""

    def planned(self, env_id: int) -> torch.Tensor:
        return torch.full((2, 2), 1.0 if self.steps[env_id] < 2 else np.inf)


def test_a_chunk_that_is_not_finite_is_no_answer():
    with hosted(RashPolicy) as policy:
        assert policy.chunk_length == 3
        policy.start(1, begun(0))
        first, second = asked(policy, 1, 1.0), asked(policy, 1, 1.0)
    assert isinstance(first, SlotAnswer)
    assert isinstance(second, PolicyError)
    with pytest.raises(PolicyError, match="the policy's action holds NaN or infinity"):
        raise second


class MisreadingPolicy(CountingTogetherPolicy):
    """Takes the pictures of some env slots for a tensor, from the second step on."""

    def act_in_some(self, env, observation, env_ids):
        pictures: Any = Pictures((0,), torch.zeros(1, 2, 2, 3), "front", "the served policy")
        return super().act_in_some(env, observation, env_ids) if not self.steps[env_ids[0]] else pictures.float()


def test_a_client_is_told_which_pictures_the_policy_takes_for_those_of_all():
    with hosted(MisreadingPolicy) as policy:
        policy.start(1, begun(0))
        assert isinstance(asked(policy, 1, 1.0), SlotAnswer)
        answer = asked(policy, 1, 1.0)
    assert isinstance(answer, UnannouncedPictureError)
    assert str(answer).startswith("the served policy looks at 'front' as a tensor of all env slots")


def test_what_a_client_says_is_to_be_done_goes_before_what_the_job_says():
    with hosted(CountingTogetherPolicy, "roll it") as policy:
        policy.start(0, begun(0, "toss it"))
        policy.start(1, begun(1))
        assert isinstance(policy.policy, CountingTogetherPolicy)
        assert policy.policy.words[1:] == ["toss it", "roll it"]
