"""The base class of every policy: Isaac Lab Arena's, so that classes written for it run unchanged."""

import dataclasses
import inspect
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces import policy_options
from isaaclab_arena.interfaces.connections import Connections, StatesConnections
from isaaclab_arena.interfaces.content import UNKNOWN, ContentSources, sources_in_options
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy_options import DeclaredOptions, add_config_arguments, config_from_arguments
from isaaclab_arena.interfaces.policy_traits import (
    ActsInSome,
    AnnouncesPictures,
    AnswersChunks,
    PlaysChunks,
    PolicyTraits,
    StatesModel,
)

_TRAITS = frozenset(field.name for field in dataclasses.fields(PolicyTraits))


class PolicyCfg:
    """Base of a policy's options, which are a dataclass, frozen or not.

    It is no dataclass itself: of a frozen one only frozen ones may derive, and of a plain one only plain ones.
    """


PolicyCfgT = TypeVar("PolicyCfgT")


class PolicyBase(ABC, Generic[PolicyCfgT]):
    """Maps observations of a batch to actions of a batch.

    A policy is built once per rank with ``PolicyClass.from_dict(policy_config_dict)`` and serves one environment at a
    time. The loop calls ``set_task_description`` first. It calls ``start_episodes``, which by default calls ``reset``,
    for env slots in which an episode begins, and ``get_action`` once per control step.

    A policy may also offer the protocols of `isaaclab_arena.interfaces.policy_traits`, and ``foreign_code``, see
    `isaaclab_arena.interfaces.content.LoadsCode`.

    Attributes:
        name: Name under which the policy is registered.
        config_class: Dataclass of the policy's options. It need not be named if it is the parameter of the base,
            ``PolicyBase[MyCfg]``. None for a policy that declares its options otherwise, or takes none.
        traits: The promises of the class. An object may set other traits than its class.
    """

    name: ClassVar[str] = ""
    config_class: ClassVar[type | None] = None
    traits: PolicyTraits = PolicyTraits()

    # Classes of Arena's first release call no constructor of their base.
    task_description: str | None = None

    def __init__(self, config: PolicyCfgT | None = None) -> None:
        # A class that takes options is always built with them.
        self.config: PolicyCfgT = typing.cast("PolicyCfgT", config)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _TRAITS & cls.__dict__.keys():
            raise ConfigError(f"{cls.__name__}.{name} has no effect; say traits = PolicyTraits({name}=...) instead")
        parameter = _parameter_of_base(cls)
        parameter = typing.get_origin(parameter) or parameter
        is_class = isinstance(parameter, type) and parameter not in (types.NoneType, Any)
        if is_class and "config_class" not in cls.__dict__:
            cls.config_class = parameter

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Build the policy from a job's ``policy_config_dict``.

        Raises:
            ConfigError: If an option is unknown, missing or of another type; ``key`` names it.
        """
        declared = declared_options(cls)
        policy = declared.build(declared.read(config_dict, owner=cls.__name__))
        if not isinstance(policy, cls):
            # An inherited method may build the base class, and then the results would be another policy's.
            found = type(policy).__name__
            raise ConfigError(f"{cls.__name__}.from_args must return a {cls.__name__}, it returned a {found}")
        return policy

    @classmethod
    def add_args_to_parser(cls, parser: Any) -> Any:
        """Add the policy's options to a script's ``argparse.ArgumentParser`` and return it, as in Isaac Lab Arena.

        These are the options of its config class, each under its own name, unless the parser has that name already.
        This program's own command lines need it only of classes that override it.

        Args:
            parser: The parser that gets the options.
        """
        return add_config_arguments(parser, cls.config_class)

    @classmethod
    def from_args(cls, args: Any) -> Self:
        """Build the policy from the namespace of a script's parser, as in Isaac Lab Arena.

        Args:
            args: ``argparse.Namespace`` with, among others, the options of `add_args_to_parser`.

        Raises:
            ConfigError: If an option is missing.
        """
        if cls.config_class is None:
            return cls()
        return cls(config_from_arguments(cls.config_class, args))

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, such as a file that is wrong, before anything is simulated.

        Args:
            config: An instance of ``config_class``.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """

    @classmethod
    def check_fit(cls, config: Any, env: Environment) -> Connections | None:
        """Refuse options that cannot work in an environment, before anything is simulated.

        It is asked for environments that are built in a few milliseconds, and must not take much longer itself;
        `check_environment` is asked in any case, when both are built.

        Args:
            config: An instance of ``config_class`` that `check_options` has accepted.
            env: The environment with one env slot, never reset; only its specs are to be read.

        Returns:
            The policy's connections, None if they are known only when it is built.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the files and packages that determine the policy's behaviour, so that it can be known by content.

        By default the files and directories that options ending in ``_path`` or ``_file`` name. The source of the
        class, of its bases and of their imports from beside them counts anyway.

        Args:
            options: The options of `from_dict`. Nothing is read or built to answer.
        """
        return sources_in_options(options)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that the policy cannot act in; called when both are built, before the first step.

        Raises:
            ConfigError: With every misfit.
        """

    @abstractmethod
    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every env slot.

        Args:
            env: The environment, for its spaces and device.
            observation: Nested dict of tensors, batched by environment; see `Environment`.

        Returns:
            Shape: (num_envs, action_dim).
        """

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the episodes of the named env slots.

        Args:
            env_ids: Env slots, None for all. Shape: (n,), int64.
        """

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Prepare for the episodes that begin; by default `reset` of their env slots.

        Override it to use the episode's identity: its own random stream, or its recording.
        """
        env_ids = torch.tensor([start.env_id for start in starts], dtype=torch.int64)
        self.reset(env_ids.to(env.device, non_blocking=True))

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Called when the episodes of some env slots have ended; they rest until `start_episodes` names them again."""

    def finished(self) -> torch.Tensor | None:
        """Return True for each env slot in which the policy has finished, None for a policy that never finishes.

        The loop ends such an episode after the step that the last action caused. Shape: (num_envs,), bool.
        """
        return None

    def set_task_description(self, task_description: str | None) -> str | None:
        """Give the policy its instruction, and return the one that it will follow."""
        self.task_description = task_description
        return task_description

    def has_length(self) -> bool:
        """Whether the policy itself gives the length of a run."""
        return self.is_recording()

    def is_recording(self) -> bool:
        """The first name of `has_length` in Isaac Lab Arena."""
        return False

    def length(self) -> int | None:
        """Number of control steps of a run of this policy, if it `has_length`."""
        return None

    def num_episodes(self) -> int | None:
        """Number of episodes that the policy can play, for policies that hold a set of them."""
        return None

    @property
    def is_remote(self) -> bool:
        """Whether the policy's network runs in another process."""
        return False

    def can_play(self, episode_index: int) -> bool:
        """Whether the policy has something to do in an episode; asked before any episode of a job begins."""
        del episode_index
        return True

    def close(self) -> None:
        """Release the policy's resources. May be called more than once."""


def declared_options(policy_class: type[PolicyBase]) -> DeclaredOptions:
    """Return the options that a policy class declares in any of the supported ways.

    Raises:
        ConfigError: If its constructor needs parameters that nothing declares.
    """
    has_own_parser = overrides(policy_class, "from_args")
    return policy_options.declared_options(
        policy_class, config_class=policy_class.config_class, has_own_parser=has_own_parser
    )


def stated_model(policy: PolicyBase) -> str | None:
    """Return the model that a policy's server states; None for a policy that asks no server."""
    if isinstance(policy, StatesModel):
        return policy.stated_model()
    return UNKNOWN if policy.is_remote else None


def overrides(policy_class: type[PolicyBase], name: str) -> bool:
    """Whether a policy class defines a method of `PolicyBase` anew, as whatever kind of method."""
    return inspect.getattr_static(policy_class, name) is not inspect.getattr_static(PolicyBase, name)


def announced_pictures(policy: PolicyBase, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
    """Return the env slots at whose pictures a policy says it looks next, None for all; see `AnnouncesPictures`."""
    announces = isinstance(policy, AnnouncesPictures)
    if not _knows_how_it_acts(policy, "pictures_to_see" if announces else "traits"):
        return None
    return policy.pictures_to_see(env, starting) if announces else None if policy.traits.sees_pictures else ()


def acts_in_some(policy: PolicyBase) -> bool:
    """Whether a policy can act in some env slots while others wait; see `ActsInSome`."""
    return isinstance(policy, ActsInSome) and _knows_how_it_acts(policy, "act_in_some")


def plans_of(policy: PolicyBase) -> PlaysChunks | None:
    """Return a policy that can tell its next actions as `PlaysChunks`, None for any other policy."""
    return policy if isinstance(policy, PlaysChunks) and _knows_how_it_acts(policy, "planned") else None


def connections_of(policy: PolicyBase, env: Environment) -> Connections | None:
    """Return a policy's connections to an environment, None if it cannot tell them; see `StatesConnections`."""
    if isinstance(policy, StatesConnections) and _knows_how_it_acts(policy, "connections"):
        return policy.connections(env)
    return None


def chunks_of(policy: PolicyBase) -> AnswersChunks | None:
    """Return a policy that can be asked for chunks as `AnswersChunks`, None for any other policy."""
    return policy if isinstance(policy, AnswersChunks) and _knows_how_it_acts(policy, "chunks") else None


def _knows_how_it_acts(policy: PolicyBase, name: str) -> bool:
    """Whether the class's attribute holds for its ``get_action``, which a class below may override."""
    speaker, looker = (
        next(number for number, each in enumerate(type(policy).__mro__) if attribute in each.__dict__)
        for attribute in (name, "get_action")
    )
    return speaker <= looker


def _parameter_of_base(policy_class: type) -> Any:
    """Return the value of `PolicyCfgT` in a class: ``MyCfg`` if derived from ``PolicyBase[MyCfg]``; else None."""
    # Only the class's own bases count: it inherits the value of others anyway.
    for base in policy_class.__dict__.get("__orig_bases__", ()):
        origin, arguments = typing.get_origin(base), typing.get_args(base)
        if origin is PolicyBase:
            return arguments[0]
        if isinstance(origin, type) and issubclass(origin, PolicyBase):
            inner, parameters = _parameter_of_base(origin), getattr(origin, "__parameters__", ())
            if inner in parameters:
                return arguments[parameters.index(inner)]
    return None
