from typing import Any

import pytest

from isaaclab_arena.config.schema import JobConfig, PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.policy_client import refuse_unshareable
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena_gr00t.policy.openpi_remote_policy import OpenpiRemotePolicy
from tests.fakes import ShrugPolicy
from tests.fakes_network import ServablePolicy


def refused(
    *,
    policy_class: type[PolicyBase] = ServablePolicy,
    num_envs: int = 4,
    options: tuple[str, ...] = ("policy_device",),
    given: dict[str, str] | None = None,
    **server: Any,
) -> list[str]:
    config = PolicyServerConfig(shared=ServerScope.NODE, **server)
    job = JobConfig(
        index=0,
        name="a",
        environment="reach",
        policy_type="mine",
        num_envs=num_envs,
        policy_config_dict=given or {},
        policy_server=config,
    )
    try:
        refuse_unshareable(policy_class, job, options=options)
    except ConfigError as error:
        return [f"{problem.key}: {problem.message}" for problem in error.problems]
    return []


def test_a_policy_whose_network_is_apart_can_be_shared():
    assert refused() == []
    assert refused(device="cuda:1", max_batch=4) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"policy_class": ShrugPolicy},
            "policy_server: policy 'mine' has no network that ranks can share; leave policy_server out. These can have",
        ),
        (
            {"policy_class": OpenpiRemotePolicy, "options": ()},
            "policy_server: policy 'mine' asks a server of its own, which all ranks share already",
        ),
        ({"num_envs": 5, "max_batch": 4}, "policy_server.max_batch: 5 env slots of a rank do not fit into 4"),
        ({"device": "gpu"}, "policy_server.device: must be cpu, cuda or cuda:<index>, got 'gpu'"),
        ({"device": "cuda", "options": ()}, "policy_server.device: policy 'mine' has no option policy_device"),
        ({"given": {"policy_device": "cpu"}}, "policy_config_dict.policy_device: is where a rank's own network runs"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_its_key(changes, said):
    (problem,) = refused(**changes)
    assert problem.startswith(said)


def test_who_cannot_be_shared_is_told_who_can():
    (problem,) = refused(policy_class=ShrugPolicy)
    assert "These can have one: gr00t_closedloop, lerobot, rsl_rl, and classes with" in problem
