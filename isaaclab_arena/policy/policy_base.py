"""The base class of every policy: Isaac Lab Arena's, so that classes written for it run unchanged."""

import inspect
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.content import ContentSources, sources_in_options
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.options.declared import DeclaredOptions
from isaaclab_arena.policy.options.parsed import add_config_arguments, config_from_arguments
from isaaclab_arena.policy.options.styles import declared_options
from isaaclab_arena.storage.contents import UNKNOWN


class PolicyCfg:
    """Base of a policy's options, which are a dataclass, frozen or not.

    It is no dataclass itself: of a frozen one only frozen ones may derive, and of a plain one only plain ones.
    """


PolicyCfgT = TypeVar("PolicyCfgT")


class PolicyBase(ABC, Generic[PolicyCfgT]):
    """Maps observations of a batch to actions of a batch.

    A policy is built once per rank, ``PolicyClass.from_dict(policy_config_dict)``, and serves one environment at a
    time. The loop calls, in this order: ``set_task_description``; then for rows that start an episode
    ``start_episodes`` (which by default calls ``reset``); then ``get_action`` once per control step.

    Attributes:
        name: Name under which the policy is registered.
        config_class: Dataclass of the policy's options. It need not be named where it is the parameter of the base,
            ``PolicyBase[MyCfg]``. None for a policy that declares its options otherwise, or takes none.
        reproducible: Whether an episode's actions follow from its observations and its own stream alone, so that the
            same job gives the same bits after any other job and on any rank. Nobody can check it, so it is for the
            author to say; the results then promise it, if asking it about made-up observations does not show the
            contrary. An object may say otherwise than its class.
        plan_because: Why an object that is not reproducible is not, in one line and with the way out; None where there
            is nothing more to say than that.
        batch_invariant: Whether the action of a row is the same, to the last bit, whatever the other rows hold and
            however many there are. A network's is not: its last digits change with the size of the batch, and on
            some processors with the place in it. A policy that does not say so is asked on a batch that is filled up
            to where places make no difference; with ``--deterministic``, always of one size.
        serves_any_num_envs: Whether one object can serve environments of any ``num_envs``, one after the other,
            whatever its option of that name says. Consecutive jobs that differ only there then share it.
        uses_own_device: Whether its options ``policy_device`` and ``policy_device_id`` name a device of this machine,
            which is then checked before anything runs. A policy that only asks a server may take them and not care.
    """

    name: ClassVar[str] = ""
    config_class: ClassVar[type | None] = None
    reproducible: bool = False
    plan_because: str | None = None
    batch_invariant: ClassVar[bool] = False
    serves_any_num_envs: ClassVar[bool] = False
    uses_own_device: ClassVar[bool] = True

    # Classes of Arena's first release call no constructor of their base.
    task_description: str | None = None

    def __init__(self, config: PolicyCfgT | None = None) -> None:
        # A class that takes options is always built with them.
        self.config: PolicyCfgT = typing.cast("PolicyCfgT", config)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parameter = _parameter_of_base(cls)
        parameter = typing.get_origin(parameter) or parameter
        is_class = isinstance(parameter, type) and parameter not in (types.NoneType, Any)
        if is_class and "config_class" not in cls.__dict__:
            cls.config_class = parameter

    @classmethod
    def declared_options(cls) -> DeclaredOptions:
        """Return what the class says its options are, in whichever way it does.

        Raises:
            ConfigError: If its constructor needs what nothing declares.
        """
        return declared_options(cls, config_class=cls.config_class, has_own_parser=overrides(cls, "from_args"))

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Build the policy from a job's ``policy_config_dict``.

        Raises:
            ConfigError: If an option is unknown, missing or of another type; ``key`` names it.
        """
        declared = cls.declared_options()
        policy = declared.build(declared.read(config_dict, owner=cls.__name__))
        if not isinstance(policy, cls):
            # What a class inherits may build its base, and then the results would be another policy's.
            found = type(policy).__name__
            raise ConfigError(f"{cls.__name__}.from_args must return a {cls.__name__}, it returned a {found}")
        return policy

    @classmethod
    def add_args_to_parser(cls, parser: Any) -> Any:
        """Add the policy's options to a script's ``argparse.ArgumentParser`` and return it, as in Isaac Lab Arena.

        Those of its config class, each under its own name, unless the parser has one of that name already. This
        program's own command lines need it only of classes that override it.

        Args:
            parser: What is added to.
        """
        return add_config_arguments(parser, cls.config_class)

    @classmethod
    def from_args(cls, args: Any) -> Self:
        """Build the policy from what a script's parser has read, as in Isaac Lab Arena.

        Args:
            args: ``argparse.Namespace`` with, among others, what `add_args_to_parser` has added.

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
    def check_fit(cls, config: Any, env: Environment) -> None:
        """Refuse options that cannot work in an environment, before anything is simulated.

        It is asked for environments that are built in a few milliseconds, and must not take much longer itself;
        `check_environment` is asked in any case, when both are built.

        Args:
            config: An instance of ``config_class`` that `check_options` has accepted.
            env: One row of the environment, never reset; only its specs are to be read.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """

    @classmethod
    def foreign_code(cls, config: Any) -> Sequence[Problem]:
        """Return one problem per option that names a program which would run in this process; none by default.

        Args:
            config: An instance of ``config_class``. Nothing is run to answer.
        """
        del config
        return ()

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the files and packages that decide what the policy does, so that it can be known by content.

        By default the files and folders that options ending in ``_path`` or ``_file`` name. The source of the class, of
        its bases and of what they import from beside them counts anyway.

        Args:
            options: What `from_dict` takes. Nothing is read or built to answer.
        """
        return sources_in_options(options)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that the policy cannot act in; called when both are built, before the first step.

        Raises:
            ConfigError: With everything that does not fit.
        """

    @abstractmethod
    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every row.

        Args:
            env: The environment, for its spaces and device.
            observation: Nested dict of tensors, batched by environment; see `Environment`.

        Returns:
            Shape: (num_envs, action_dim).
        """

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget what belongs to the episodes of the named rows.

        Args:
            env_ids: Rows, None for all. Shape: (n,), int64.
        """

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Prepare for the episodes that begin; by default `reset` of their rows.

        Override it to use the episode's identity: its own random stream, or its recording.
        """
        env_ids = torch.tensor([start.env_id for start in starts], dtype=torch.int64, device=env.device)
        self.reset(env_ids)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Told of rows whose episodes have ended; they rest unless `start_episodes` names them again."""

    def finished(self) -> torch.Tensor | None:
        """Return which rows have nothing more to do, None for a policy that always has.

        The loop ends such an episode after the step that the last action caused. Shape: (num_envs,), bool.
        """
        return None

    def set_task_description(self, task_description: str | None) -> str | None:
        """Tell the policy what to do, and return what it will follow."""
        self.task_description = task_description
        return task_description

    def with_own_memory(self) -> "PolicyBase | None":
        """Return a policy that shares this one's network and remembers other episodes, for the rows of another group.

        None, as by default, where it takes another policy, which is then built from the same options.
        """
        return None

    def rows_per_call(self, num_envs: int) -> int | None:
        """Return how many rows every call of the network has, for a policy that divides rows into calls of one size.

        None, as by default, for a policy whose rows are all asked for together.

        Args:
            num_envs: Rows of the environment as this policy sees it.
        """
        del num_envs
        return None

    def fill_calls_up_to(self, num_rows: int | None) -> None:
        """Take calls of another size from now on; only for a policy that has `rows_per_call`.

        Args:
            num_rows: Rows of every call, at least `rows_per_call`; None for just that.
        """

    def has_length(self) -> bool:
        """Whether the policy itself says how long a run is."""
        return self.is_recording()

    def is_recording(self) -> bool:
        """What Isaac Lab Arena called `has_length` at first."""
        return False

    def length(self) -> int | None:
        """Number of control steps of a run of this policy, where it `has_length`."""
        return None

    def num_episodes(self) -> int | None:
        """Number of episodes that the policy can play, for policies that hold a set of them."""
        return None

    @property
    def is_remote(self) -> bool:
        """Whether the policy's network runs in another process."""
        return False

    def stated_model(self) -> str | None:
        """What a policy server says of the model that it serves, ``unknown`` if it says nothing.

        None, as by default, for a policy that asks no server.
        """
        return UNKNOWN if self.is_remote else None

    def can_play(self, episode_index: int) -> bool:
        """Whether the policy has something to do in an episode; asked before any episode of a job begins."""
        del episode_index
        return True

    def close(self) -> None:
        """Release what the policy holds. May be called more than once."""


def overrides(policy_class: type[PolicyBase], name: str) -> bool:
    """Whether a policy class defines a method of `PolicyBase` anew, as whatever kind of method."""
    return inspect.getattr_static(policy_class, name) is not inspect.getattr_static(PolicyBase, name)


def _parameter_of_base(policy_class: type) -> Any:
    """Return what stands for `PolicyCfgT` in a class: ``MyCfg`` of one derived from ``PolicyBase[MyCfg]``.

    Only what the class itself says counts: what its bases say it inherits from them. None where it says nothing.
    """
    for base in policy_class.__dict__.get("__orig_bases__", ()):
        origin, arguments = typing.get_origin(base), typing.get_args(base)
        if origin is PolicyBase:
            return arguments[0]
        if isinstance(origin, type) and issubclass(origin, PolicyBase):
            inner, parameters = _parameter_of_base(origin), getattr(origin, "__parameters__", ())
            if inner in parameters:
                return arguments[parameters.index(inner)]
    return None
