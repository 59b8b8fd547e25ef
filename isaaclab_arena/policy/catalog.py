"""The names of policies, and how a ``policy_type`` becomes a class."""

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, overload

from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.in_memory import function_policy_class
from isaaclab_arena.registry import Registry

_OTHER_POLICIES = {
    "isaaclab_arena_openpi": (
        "asks a server of openpi; policy_type: openpi_remote does that here, with remote_host, remote_port, images and "
        "states (docs/bring_your_policy/openpi.md)"
    )
}
"""Packages of policies of Isaac Lab Arena that are not needed here, each with its replacement."""


POLICIES = Registry(
    "policy",
    {
        "zero_action": "isaaclab_arena.policy.zero_action_policy:ZeroActionPolicy",
        "random_action": "isaaclab_arena.policy.random_action:RandomActionPolicy",
        "lerobot": "isaaclab_arena.policy.lerobot.policy:LeRobotPolicy",
        "libero_expert": "isaaclab_arena.policy.experts:LiberoExpertPolicy",
        "metaworld_expert": "isaaclab_arena.policy.experts:MetaWorldExpertPolicy",
        "robosuite_expert": "isaaclab_arena.policy.experts:RobosuiteExpertPolicy",
        "replay": "isaaclab_arena.policy.replay:ReplayPolicy",
        "rsl_rl": "isaaclab_arena.policy.rsl_rl:RslRlPolicy",
        "scripted": "isaaclab_arena.policy.scripted:ScriptedPolicy",
    },
    entry_point_group="isaaclab_arena.policies",
)

PolicyClass = TypeVar("PolicyClass", bound=type[PolicyBase])


@overload
def register_policy(policy_class: PolicyClass) -> PolicyClass: ...


@overload
def register_policy(*, cfg_type: type | None = None) -> Callable[[PolicyClass], PolicyClass]: ...


def register_policy(policy_class: Any = None, *, cfg_type: type | None = None) -> Any:
    """Register a policy class under its ``name``; a class decorator, as in Isaac Lab Arena, with or without arguments.

    Args:
        policy_class: The class.
        cfg_type: Class of its options, instead of ``config_class``.

    Raises:
        ValueError: If the class has no name, or the name is taken.
    """

    def register(decorated: Any) -> Any:
        if not decorated.name:
            raise ValueError(f"{decorated.__name__} needs a class attribute 'name' to be registered")
        if cfg_type is not None:
            decorated.config_class = cfg_type
        POLICIES.register(decorated.name, decorated)
        return decorated

    return register if policy_class is None else register(policy_class)


def resolve_policy_class(policy_type: str, *, may_import: bool = True) -> type[PolicyBase]:
    """Return the class of a job's ``policy_type``.

    Args:
        policy_type: A registered name, or a dotted path ``package.module.Class`` (``package.module:Class`` too),
            of a class or of a function of the observation. Importing a module runs its code.
        may_import: Whether a dotted path may be imported; registered names always are.

    Raises:
        ConfigError: If there is no such policy, or the named object is no policy class.
    """
    if policy_type in POLICIES or ("." not in policy_type and ":" not in policy_type):
        found = POLICIES.get(policy_type)
    elif not may_import:
        raise ConfigError(
            f"'{policy_type}' is a dotted path, whose module would have to be imported; --no_import allows registered "
            f"names only: {', '.join(POLICIES.names())}"
        )
    else:
        module_name, _, attribute = policy_type.replace(":", ".").rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            instead = _OTHER_POLICIES.get(module_name.partition(".")[0])
            if instead is not None:
                raise ConfigError(f"'{policy_type}' of Isaac Lab Arena {instead}") from error
            raise ConfigError(
                f"cannot import '{module_name}' of policy '{policy_type}': {type(error).__name__}: {error}"
            ) from error
        if not hasattr(module, attribute):
            raise ConfigError(f"'{module_name}' has no '{attribute}'{did_you_mean(attribute, dir(module))}")
        found = getattr(module, attribute)
    if isinstance(found, FunctionType):
        return function_policy_class(found)
    if not (isinstance(found, type) and issubclass(found, PolicyBase)):
        raise ConfigError(
            f"'{policy_type}' is no policy: it must be a class derived from PolicyBase or a function of the observation"
        )
    return found
