"""Refuse jobs whose policy cannot be in a policy server, before anything runs."""

import re
from collections.abc import Collection

from isaaclab_arena.config.schema import JobConfig, PolicyServerConfig
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import AsksNetwork
from isaaclab_arena.policy.catalog import POLICIES, resolve_policy_class

DEVICE_OPTION = "policy_device"

_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
_NAMES_A_DEVICE = (DEVICE_OPTION, "policy_device_id", "device")


def refuse_unshareable(policy_class: type[PolicyBase], job: JobConfig, *, options: Collection[str] | None) -> None:
    """Refuse a job whose policy cannot be in a policy server, or not in the one that it asks for.

    Args:
        policy_class: Class of the policy.
        job: The job; without a policy server nothing is refused.
        options: Names of the policy's options, None where it takes any.

    Raises:
        ConfigError: With every problem.
    """
    server = job.policy_server
    if server is None:
        return
    problems = _of_server(server, job.num_envs)
    if not issubclass(policy_class, AsksNetwork):
        problems.append(Problem(f"policy '{job.policy_type}' {_why_not(policy_class)}", key="policy_server"))
    elif server.device is not None and DEVICE_OPTION not in (options or ()):
        message = f"policy '{job.policy_type}' has no option {DEVICE_OPTION}; leave it out"
        problems.append(Problem(message, key="policy_server.device"))
    problems += [
        Problem("is where a rank's own network runs; say policy_server.device", key=f"policy_config_dict.{name}")
        for name in _NAMES_A_DEVICE
        if job.policy_config_dict.get(name) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _why_not(policy_class: type[PolicyBase]) -> str:
    reason = "has no network that ranks can share"
    if policy_class.is_remote is not PolicyBase.is_remote:
        reason = "asks a server of its own, which all ranks share already"
    able = [name for name in POLICIES.names() if _can_be_shared(name)]
    return (
        f"{reason}; leave policy_server out. These can have one: {', '.join(able)}, and classes with the methods of "
        "isaaclab_arena.interfaces.policy_traits.AsksNetwork"
    )


def _can_be_shared(name: str) -> bool:
    try:
        return issubclass(resolve_policy_class(name), AsksNetwork)
    except ConfigError:
        # Of a package that is not installed.
        return False


def _of_server(server: PolicyServerConfig, num_envs: int) -> list[Problem]:
    problems = []
    if server.max_batch < num_envs:
        message = f"{num_envs} env slots of a rank do not fit into {server.max_batch}; give {num_envs} or more"
        problems.append(Problem(message, key="policy_server.max_batch"))
    if server.device is not None and _DEVICE.fullmatch(server.device) is None:
        message = f"must be cpu, cuda or cuda:<index>, got '{server.device}'"
        problems.append(Problem(message, key="policy_server.device"))
    return problems
