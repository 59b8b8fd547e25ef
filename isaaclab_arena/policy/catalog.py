"""How a ``policy_type`` becomes a class, a function a policy class, and an object in memory a policy that is lent."""

import functools
import hashlib
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, overload

import numpy as np
import torch

from isaaclab_arena.config.options import UNKNOWN, ContentSources
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.paths import beside
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
        "random_action": "isaaclab_arena.policy.zero_action_policy:RandomActionPolicy",
        "lerobot": "isaaclab_arena.policy.lerobot_policy:LeRobotPolicy",
        "libero_expert": "isaaclab_arena.policy.scripted:LiberoExpertPolicy",
        "metaworld_expert": "isaaclab_arena.policy.scripted:MetaWorldExpertPolicy",
        "mean_action": "isaaclab_arena.policy.replay:MeanActionPolicy",
        "openpi_remote": "isaaclab_arena.remote.openpi:OpenpiRemotePolicy",
        "robosuite_expert": "isaaclab_arena.policy.scripted:RobosuiteExpertPolicy",
        "replay": "isaaclab_arena.policy.replay:ReplayPolicy",
        "rsl_rl": "isaaclab_arena.policy.rsl_rl:RslRlPolicy",
        "scripted": "isaaclab_arena.policy.scripted:ScriptedPolicy",
        "vla_eval_remote": "isaaclab_arena.remote.vla_eval:VlaEvalRemotePolicy",
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
    if policy_class is None:
        return functools.partial(register_policy, cfg_type=cfg_type)
    if not policy_class.name:
        raise ValueError(f"{policy_class.__name__} needs a class attribute 'name' to be registered")
    if cfg_type is not None:
        policy_class.config_class = cfg_type
    POLICIES.register(policy_class.name, policy_class)
    return policy_class


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
        if ".py" in policy_type and (instead := _of_a_file(policy_type)) is not None:
            raise ConfigError(f"'{policy_type}' {instead}")
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
            own = [name for name in dir(module) if not name.startswith("_")]
            raise ConfigError(f"'{module_name}' has no '{attribute}'{did_you_mean(attribute, own)}")
        found = getattr(module, attribute)
    if isinstance(found, FunctionType):
        return function_policy_class(found)
    if not (isinstance(found, type) and issubclass(found, PolicyBase)):
        raise ConfigError(
            f"'{policy_type}' is not a policy: neither a class of PolicyBase nor a function of the observation"
        )
    return found


def _of_a_file(policy_type: str) -> str | None:
    """Return the way out for a policy that is named by its file, ``policies/mine.py:act``; None if it is not."""
    file, _, attribute = policy_type.partition(":")
    path = Path(file)
    if path.suffix != ".py":
        return None
    if not path.is_file():
        return f"names a file, and there is no '{file}'{beside(path)}"
    module = ".".join(path.with_suffix("").parts).lstrip(".")
    here = "" if path.parent == Path() else ", from the directory that holds its first folder"
    return f"names a file; write its module: {module}:{attribute or 'FUNCTION'}{here}"


# Compute the identity of a policy object or function: a hash of its parameters and its state.

STATE = "state in memory"
"""The name of an object's parameters and state in a policy's content."""

_DEEPEST = 12
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
"""Attributes of every module: its mode, its hooks, and the parts that its state contains already."""
_SPELLED = (str, bytes, int, float, complex, type(None), Enum, Path, torch.device, torch.dtype, torch.Size, np.generic)

_TOLD_BY_THE_LOOP = "task_description"


def state_hash(value: Any) -> str | None:
    """Return the SHA-256 of an object's content and a function's references; None if a part is opaque."""
    digest, seen = hashlib.sha256(), set[int]()
    try:
        for piece in _pieces(value, seen, 0):
            digest.update(piece)
    except _OpaqueError:
        return None
    return digest.hexdigest()


class _OpaqueError(Exception):
    """A part whose content is unknown."""


def _pieces(value: Any, seen: set[int], depth: int) -> Iterator[bytes]:
    yield type(value).__qualname__.encode()
    if isinstance(value, _SPELLED):
        yield repr(value).encode()
    elif isinstance(value, torch.Tensor):
        try:
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        except (RuntimeError, ValueError, TypeError) as error:
            # A sparse tensor, for example, or a parameter of a lazy module, which has no values yet.
            raise _OpaqueError from error
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield content.tobytes()
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise _OpaqueError
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, (type, ModuleType)):
        yield value.__name__.encode()
    elif id(value) not in seen:
        seen.add(id(value))
        # Deeper structures count as opaque, so that the recursion has an end.
        if depth == _DEEPEST:
            raise _OpaqueError
        for name, part in _parts(value):
            yield name.encode()
            yield from _pieces(part, seen, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object in an order that does not depend on the time of its creation."""
    if isinstance(value, Mapping):
        yield from sorted(((repr(name), part) for name, part in value.items()), key=lambda named: named[0])
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), part) for index, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield "set", sorted(map(repr, value))
    elif isinstance(value, torch.nn.Module):
        yield "layers", str(value)
        yield from sorted(value.state_dict().items())
        yield from sorted((name, each) for name, each in vars(value).items() if name not in _OF_EVERY_MODULE)
    elif isinstance(value, MethodType):
        yield "method", value.__name__
        yield "object", value.__self__
    elif isinstance(value, FunctionType):
        code = value.__code__
        yield "code", code.co_code
        yield "constants", [each for each in code.co_consts if isinstance(each, _SPELLED)]
        yield "defaults", [value.__defaults__, value.__kwdefaults__]
        # Names of imported things stand for sources, which count by themselves.
        named = inspect.getclosurevars(value)
        yield from sorted({**named.globals, **named.nonlocals}.items())
    elif hasattr(value, "__dict__"):
        yield from sorted((name, each) for name, each in vars(value).items() if name != _TOLD_BY_THE_LOOP)
    else:
        raise _OpaqueError


def name_of_lent(policy: Callable[..., Any] | Any) -> str:
    """Return the qualified name of a function, or of an object's class: ``my_package.train.act``."""
    named = policy if isinstance(policy, (FunctionType, MethodType, type)) else type(policy)
    return f"{named.__module__}.{named.__qualname__}"


# Policies that are one function of the observation, named in a job by ``package.module:function``.

OBSERVATION = "observation"
"""The name of a function's first parameter, by which it says that it is a policy."""


class FunctionPolicy(PolicyBase):
    """Acts like a function from the observation to the actions."""

    traits = PolicyTraits(
        plan_because="a function cannot state PolicyTraits(reproducible=True); write a class if it is deterministic"
    )

    def __init__(self, function: Callable[[Observation], Any]) -> None:
        # See `Environment` for the observation. The answer is a tensor or an array of shape (num_envs, action_dim).
        super().__init__()
        self._function = function

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the function's actions."""
        del env
        return self._function(observation)


@functools.cache
def function_policy_class(function: FunctionType) -> type[PolicyBase]:
    """Return a policy class that acts like a function; the parameters after ``observation`` are its options."""
    # ConfigError: the first parameter has another name, or an option cannot be given by name.
    path = f"{function.__module__}.{function.__name__}"
    first, *others = inspect.signature(function).parameters.values() or (None,)
    if first is None or first.name != OBSERVATION:
        raise ConfigError(
            f"'{path}' is not a policy: the first parameter of a function that acts is called '{OBSERVATION}', and "
            "the others are its options"
        )
    unnamed = [each.name for each in others if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if unnamed:
        raise ConfigError(f"'{path}' takes options without names ('{unnamed[0]}'); name each option")

    # The other parameters become the fields of a dataclass.
    annotations = typing.get_type_hints(function, include_extras=True)
    # A default such as a list belongs to the function, which also shares it between its calls.
    fields = [
        (
            each.name,
            annotations.get(each.name, Any),
            field() if each.default is each.empty else field(default_factory=lambda each=each: each.default),
        )
        for each in others
    ]
    name = f"{function.__name__}_options"
    options_class = make_dataclass(name, fields, bases=(PolicyCfg,), frozen=True, kw_only=True)

    class NamedFunctionPolicy(FunctionPolicy):
        config_class = options_class

        def __init__(self, config: Any) -> None:
            options = {each.name: getattr(config, each.name) for each in others}
            super().__init__(functools.partial(function, **options))
            self.config = config

    # A run identifies its policy by the source of the class, which here is the function's.
    NamedFunctionPolicy.__name__ = NamedFunctionPolicy.__qualname__ = function.__name__
    NamedFunctionPolicy.__module__ = function.__module__
    return NamedFunctionPolicy


# Objects with Isaac Lab Arena's methods, modules and functions, which the caller made and lends to an evaluation.


class ObjectPolicy(PolicyBase):
    """Acts like an object with Isaac Lab Arena's methods that is no `PolicyBase`."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        # The object has ``get_action``, and optionally ``reset``, ``set_task_description`` and ``pictures_to_see``.
        self._policy = policy

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the object's actions."""
        return self._policy.get_action(env, observation)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that the object announces, None for all without such a method."""
        return getattr(self._policy, "pictures_to_see", super().pictures_to_see)(env, starting)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the episode state of the named env slots, if the object can."""
        getattr(self._policy, "reset", super().reset)(env_ids)

    def set_task_description(self, task_description: str | None) -> str | None:
        """Give the object its instruction, and return the instruction that it will follow."""
        return getattr(self._policy, "set_task_description", super().set_task_description)(task_description)


@dataclass(frozen=True, kw_only=True)
class LentPolicy:
    """A policy object that an evaluation uses in place of one that it builds; its owner closes it."""

    policy: PolicyBase
    content: ContentSources  # at the time of lending


def lent_policy(policy: Any) -> LentPolicy:
    """Return an object, a module or a function as a policy that is lent; ConfigError if it cannot act."""
    if isinstance(policy, PolicyBase):
        lent = policy
    elif callable(getattr(policy, "get_action", None)):
        lent = ObjectPolicy(policy)
    elif callable(policy):
        lent = FunctionPolicy(policy)
    else:
        message = (
            f"an object of type {type(policy).__name__} is not a policy: give a registered name, a class path, a "
            "class, an object with get_action, a torch module, or a function observation -> action"
        )
        raise ConfigError(message, key="policy")

    # The content that decides its actions: the function's module or those of the object's classes, and its state.
    # Nothing is changed or called.
    function: Any = policy.__func__ if isinstance(policy, MethodType) else policy
    owner: Any = policy.__self__ if isinstance(policy, MethodType) else policy
    names = [function.__module__] if isinstance(function, FunctionType) else []
    names += [each.__module__ for each in type(owner).__mro__]
    content = ContentSources(
        modules=tuple(dict.fromkeys(name for name in names if name)),
        stated={STATE: state_hash(policy) or UNKNOWN},
    )
    return LentPolicy(policy=lent, content=replace(content, unknown=("server",)) if lent.is_remote else content)


@contextmanager
def modules_at_rest(policy: Any) -> Iterator[None]:
    """Put the modules of a policy object into evaluation mode for a ``with`` block; a function is left alone."""
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
