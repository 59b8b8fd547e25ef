"""Policies that somebody else made and lends to an evaluation: objects, modules and functions."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, overrides
from isaaclab_arena.policy.function_policy import FunctionPolicy
from isaaclab_arena.policy.lent_content import content_of_lent

_SAID_BY_THE_CLASS = ("has_length", "is_recording", "num_episodes", "is_remote")


class ObjectPolicy(PolicyBase):
    """Acts as an object does that has Isaac Lab Arena's methods and is no `PolicyBase`.

    Args:
        policy: Has ``get_action(env, observation)``, and perhaps ``reset``, ``set_task_description`` and
            ``pictures_to_see``.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self._policy = policy

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return what the object answers."""
        return self._policy.get_action(env, observation)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that the object announces, None for all if it says nothing; see `AnnouncesPictures`."""
        return self._policy.pictures_to_see(env, starting) if hasattr(self._policy, "pictures_to_see") else None

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget what belongs to the episodes of the named env slots."""
        if hasattr(self._policy, "reset"):
            self._policy.reset(env_ids)

    def set_task_description(self, task_description: str | None) -> str | None:
        """Tell the object what to do, and return what it will follow."""
        if hasattr(self._policy, "set_task_description"):
            return self._policy.set_task_description(task_description)
        return super().set_task_description(task_description)


def lent_policy_class(policy: Any) -> type[PolicyBase]:
    """Return a class that stands for one policy object: whoever builds it gets that object, and does not close it.

    Args:
        policy: A `PolicyBase`, an object with ``get_action``, a module or a function.

    Raises:
        ConfigError: If it is none of them.
    """
    lent, content = _as_policy(policy), content_of_lent(policy)

    class LentPolicy(PolicyBase):
        traits = replace(lent.traits, is_lent=True)

        @classmethod
        def from_dict(cls, config_dict: Mapping[str, Any]) -> Any:
            del cls, config_dict
            return lent

        @classmethod
        def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
            del options
            return content

        def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
            return lent.get_action(env, observation)

    for name in _SAID_BY_THE_CLASS:
        if overrides(type(lent), name):
            setattr(LentPolicy, name, inspect.getattr_static(type(lent), name))
    return LentPolicy


def _as_policy(policy: Any) -> PolicyBase:
    if isinstance(policy, PolicyBase):
        return policy
    if callable(getattr(policy, "get_action", None)):
        return ObjectPolicy(policy)
    if callable(policy):
        return FunctionPolicy(policy)
    message = (
        f"an object of type {type(policy).__name__} is no policy: give a registered name, a class path, a class, an "
        "object with get_action, a torch module, or a function observation -> action"
    )
    raise ConfigError(Problem(message, key="policy"))


@contextmanager
def modules_at_rest(policy: Any) -> Iterator[None]:
    """Put the modules of a policy object into evaluation mode for the length of a ``with`` block.

    Args:
        policy: A module, or an object whose attributes are modules; a function is left alone.
    """
    held = vars(policy).values() if isinstance(policy, PolicyBase) or hasattr(policy, "get_action") else ()
    roots = [each for each in (policy, *held) if isinstance(each, torch.nn.Module)]
    modules = [module for root in roots for module in root.modules()]
    before = [module.training for module in modules]
    try:
        for root in roots:
            root.eval()
        yield
    finally:
        for module, was_training in zip(modules, before, strict=True):
            module.training = was_training
