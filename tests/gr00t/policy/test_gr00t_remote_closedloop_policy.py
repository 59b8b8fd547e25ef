"""The closed loop whose model is behind a server."""

from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicy
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment, LimbPolicy, write_policy_yaml
from tests.gr00t.servers import NetworkPolicy, serving
from tests.policy.playing import refused


def remote_options(yaml_path: str, port: int, **options) -> dict[str, Any]:
    return {
        "policy_config_yaml_path": yaml_path,
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "timeout_s": 5.0,
        "wait_for_server_s": 2.0,
        **options,
    }


def remote_policy(yaml_path: str, port: int, **options) -> Gr00tRemoteClosedloopPolicy:
    return Gr00tRemoteClosedloopPolicy.from_dict(remote_options(yaml_path, port, **options))


class TestConformance(PolicyConformance):
    policy_class = Gr00tRemoteClosedloopPolicy
    answers_alike = True

    @pytest.fixture(autouse=True)
    def serve(self, tmp_path):
        with serving(NetworkPolicy()) as server:
            self.options = remote_options(write_policy_yaml(tmp_path), server.port)
            yield

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


def test_a_served_model_acts_exactly_as_one_in_this_process(tmp_path):
    yaml_path = write_policy_yaml(tmp_path)
    here = LimbEnvironment(2)
    rollout(here, LimbPolicy(ClosedloopPolicyArgs(policy_config_yaml_path=yaml_path)), episodes(4), [])
    there, served = LimbEnvironment(2), NetworkPolicy()
    with serving(served) as server:
        policy = remote_policy(yaml_path, server.port)
        assert policy.is_remote
        assert not policy.traits.reproducible
        policy.reset()
        policy.check_environment(there)
        result = rollout(there, policy, episodes(4), [])
        policy.close()
        policy.close()
    assert result.finished_episodes == 4
    assert torch.equal(torch.stack(here.actions), torch.stack(there.actions))
    assert served.resets == 1
    assert sum(served.batch_sizes[1:]) < 2 * len(there.actions)


class Talker(NetworkPolicy):
    """Says something else."""

    def __init__(self, *, modalities: Any = None, action: Any = None) -> None:
        super().__init__()
        self.modalities = super().get_modality_config() if modalities is None else modalities
        self.action = action

    def get_modality_config(self) -> Any:
        return self.modalities

    def get_action(self, observation: Any, options: Any = None) -> Any:
        return self.action


@pytest.mark.parametrize("modalities", [{}, {"video": 3}, [1], "text"])
def test_a_server_that_does_not_say_what_it_takes_is_refused(tmp_path, modalities):
    with serving(Talker(modalities=modalities)) as server, pytest.raises(PolicyError, match="does not describe"):
        remote_policy(write_policy_yaml(tmp_path), server.port)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("dance", "no arrays of actions"),
        ([], "no arrays of actions"),
        ([{"arm": [1, 2]}, {}], "no arrays of actions"),
        ([{"arm": np.zeros((1, 6, 2), np.float32)}, {}], "no action 'leg'"),
        ([{key: np.zeros((1, 2, 2), np.float32) for key in ("arm", "leg", "hand")}, {}], "has shape"),
    ],
)
def test_actions_that_do_not_fit_are_named(tmp_path, action, says):
    with serving(Talker(action=action)) as server:
        policy = remote_policy(write_policy_yaml(tmp_path), server.port)
        with pytest.raises(PolicyError, match=says):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


@pytest.mark.parametrize(
    ("options", "key"), [({"scheduler": "synced_batch"}, "scheduler"), ({"remote_port": 0}, "remote_port")]
)
def test_an_option_that_cannot_be_is_named(tmp_path, options, key):
    with refused(key):
        remote_policy(write_policy_yaml(tmp_path), 5555, **options)
