"""On how many env slots a served policy is asked: on so many that no client changes the answers of another."""

from collections.abc import Sequence

import pytest
import torch

from isaaclab_arena.evaluation.serving import HostedPolicy
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from tests.evaluation.jobs import coin_job


class NeighbourlyPolicy(PolicyBase[None]):
    """The last places of a batch differ from the others, unless its size is a multiple of one that it likes."""

    name = "neighbourly"
    traits = PolicyTraits(reproducible=True)
    liked = 8

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        return answered(observation["policy"]["clock"], self.liked)


def answered(clock: torch.Tensor, liked: int) -> torch.Tensor:
    action = torch.cat([clock, clock], dim=1)
    if len(action) % liked:
        action[-1] += 1e-3
    return action


class SelfishPolicy(NeighbourlyPolicy):
    """Likes no size at all."""

    liked = 1000


class DividingPolicy(NeighbourlyPolicy):
    """Divides its calls, and likes those of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.size: int | None = None

    def slots_per_call(self, num_envs: int) -> int | None:
        return 3

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        self.size = num_slots

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        clock, size = observation["policy"]["clock"], self.size or 3
        parts = [clock[first : first + size] for first in range(0, len(clock), size)]
        filled = [torch.cat([part, torch.zeros(size - len(part), 1)]) for part in parts]
        return torch.cat([answered(each, self.liked) for each in filled])[: env.num_envs]


class AlikePolicy(NeighbourlyPolicy):
    """Says of itself that neighbours make no difference, and is not asked."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)


@pytest.mark.parametrize(
    ("policy_class", "num_envs", "slots_per_call"),
    [(NeighbourlyPolicy, 8, 8), (SelfishPolicy, 3, 3), (DividingPolicy, 3, 8), (AlikePolicy, 3, None)],
)
def test_a_call_is_filled_up_until_no_client_changes_the_answers_of_another(policy_class, num_envs, slots_per_call):
    hosted = HostedPolicy(coin_job(policy_class=policy_class), 3)
    found = hosted.environment.num_envs, hosted.slots_per_call
    hosted.close()
    assert found == (num_envs, slots_per_call)
    assert hosted.num_slots == 3


def test_it_is_said_if_clients_change_each_others_answers(caplog):
    HostedPolicy(coin_job(policy_class=SelfishPolicy), 3).close()
    assert "depend on its place and its neighbours in a call of 3 env slots, and so on other clients" in caplog.text
