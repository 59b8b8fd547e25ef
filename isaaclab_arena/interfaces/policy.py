"""The base class of every policy, Isaac Lab Arena's, so that classes written for it run unchanged; its promises."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import torch

from isaaclab_arena.config.options import UNKNOWN, ContentSources, sources_in_options
from isaaclab_arena.errors import Problem
from isaaclab_arena.interfaces import offers, policy_options
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.specs import ChunkTraits, Continuation


@dataclass(frozen=True, kw_only=True)
class PolicyTraits:
    """Statements of a policy's author that cannot be measured."""

    # An episode's actions follow from its observations and its own random stream alone. Results then promise the same
    # bits after any other job and on any rank, unless a probe with made-up observations shows the contrary.
    reproducible: bool = False
    # The reason why a policy is not reproducible, in one line and with the way out; None if there is nothing to say.
    plan_because: str | None = None
    # The action in an env slot is the same to the last bit for any content and number of other env slots.
    # A network's is not. So it is asked on a batch that is filled up; with ``--deterministic``, always on one size.
    batch_invariant: bool = False
    # One object can serve environments of any ``num_envs``, one after the other. Consecutive jobs then share it.
    serves_any_num_envs: bool = False
    # The options ``policy_device`` and ``policy_device_id`` name a device of this machine, which is checked first.
    uses_own_device: bool = True
    # The form of each camera's term in the group ``camera_obs``. ``all``: a tensor of all env slots. ``announced``:
    # `Pictures` of the env slots that ``pictures_to_see`` named. ``none``: it never looks, and nothing is drawn for it.
    pictures: Literal["all", "announced", "none"] = "all"
    # The policy's network runs in another process, which other programs may ask too; derived classes inherit this.
    remote: bool = False
    sees_pictures: bool = True  # the first name of ``pictures``: False is ``none``
    metrics: tuple[Metric, ...] = ()  # the declared ones among the numbers of `episode_metrics`

    def __post_init__(self) -> None:
        if not self.sees_pictures and not isinstance(self.sees_pictures, _Derived):
            object.__setattr__(self, "pictures", "none")
        object.__setattr__(self, "sees_pictures", _Derived(self.pictures != "none"))


class _Derived(int):
    """A truth value that follows from another, so that `replace`, which passes it on, does not say it."""


class PolicyCfg:
    """Base of a policy's options, a dataclass, frozen or not; it is none itself, so that both kinds may derive."""


PolicyCfgT = TypeVar("PolicyCfgT")


class PolicyBase(ABC, Generic[PolicyCfgT]):
    """Maps observations of a batch to actions of a batch; only `get_action` must be written.

    A policy is built once per rank with `from_dict` and serves one environment at a time. The loop calls
    `set_task_description` first, `start_episodes` for env slots in which an episode begins, and `get_action` once per
    control step. Every other method is a fact or an ability, with a default that says "none".
    """

    name: ClassVar[str] = ""  # under which the policy is registered
    # Dataclass of the policy's options, by default the parameter of the base, ``PolicyBase[MyCfg]``. None for a policy
    # that declares its options otherwise, or takes none.
    config_class: ClassVar[type | None] = None
    traits: PolicyTraits = PolicyTraits()  # the promises of the class; an object may set others
    # The methods that the class has of its own, and that hold for its `get_action`: a class that overrides it offers no
    # ability that its base has for another one.
    offers: ClassVar[frozenset[str]] = frozenset()
    # Classes of Arena's first release call no constructor of their base.
    task_description: str | None = None

    def __init__(self, config: PolicyCfgT | None = None) -> None:
        # A class that takes options is always built with them.
        self.config: PolicyCfgT = cast("PolicyCfgT", config)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        offers.settle_policy_class(cls, PolicyBase)

    # Before anything is simulated. ``config`` is an instance of ``config_class``. Each method raises `ConfigError` with
    # every problem, whose ``key`` names the option at fault.

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Build the policy from a job's ``policy_config_dict``."""
        declared = policy_options.declared_options(cls)
        return declared.build(declared.read(config_dict, owner=cls.__name__))

    @classmethod
    def add_args_to_parser(cls, parser: Any) -> Any:
        """Add an ``argparse`` option per field of the config class, as in Isaac Lab Arena, and return the parser."""
        return policy_options.with_arguments(parser, cls.config_class)

    @classmethod
    def from_args(cls, args: Any) -> Self:
        """Build the policy from the namespace of such a parser, as in Isaac Lab Arena."""
        return cls() if cls.config_class is None else cls(policy_options.config_in(args, cls.config_class))

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, such as a file that is wrong."""

    @classmethod
    def check_fit(cls, config: Any, env: Environment) -> Connections | None:
        """Refuse an environment by its specs, and return the connections with it, None if they are known later.

        Asked for environments that are built in milliseconds, with one env slot; `check_environment` in any case.
        """

    @classmethod
    def description(cls, config: Any) -> Description | None:
        """Return the statements of the policy's files about themselves, to compare them with the job; None for none."""

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the files and packages that decide about the policy, so that it is known by content; reads nothing.

        By default the files that options ending in ``_path`` or ``_file`` name. The source of the class counts anyway.
        """
        return sources_in_options(options)

    @classmethod
    def foreign_code(cls, config: Any) -> Sequence[Problem]:
        """Return a problem per option that names code which no package has announced; imports and runs nothing."""
        return ()

    # One environment and its episodes.

    def check_environment(self, env: Environment) -> None:
        """Refuse, by `ConfigError` with every misfit, an environment that was built and not stepped yet."""

    def connections(self, env: Environment) -> Connections | None:
        """Return the connections to an environment that `check_environment` has accepted, None if unknown."""

    def set_task_description(self, task_description: str | None) -> str | None:
        """Give the policy its instruction, and return the one that it will follow."""
        self.task_description = task_description
        return task_description

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Prepare for episodes that begin, each with its instruction and its own random stream; by default `reset`."""
        env_ids = [start.env_id for start in starts]
        self.reset(torch.tensor(env_ids, dtype=torch.int64).to(env.device, non_blocking=True))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the episodes of the named env slots, None for all. Shape: (n,), int64."""

    @abstractmethod
    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every env slot. Shape: (num_envs, action_dim).

        Args:
            env: The environment, for its spaces and device.
            observation: Nested dict of tensors, batched by environment; see `Environment`, and ``traits.pictures``.
        """

    def finished(self) -> torch.Tensor | None:
        """Return the mask of env slots whose episode ends after this action, None for none. Shape: (num_envs,)."""

    def episode_metrics(self, env_id: int) -> Mapping[str, float]:
        """Return numbers for the record of the episode that ends in an env slot; asked before `end_episodes`."""
        return {}

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Called when episodes have ended; their env slots rest until `start_episodes` names them again."""

    def has_length(self) -> bool:
        """Whether the policy itself gives the length of a run."""
        return self.is_recording()

    def is_recording(self) -> bool:
        """The first name of `has_length` in Isaac Lab Arena."""
        return False

    def length(self) -> int | None:
        """Return the number of control steps of a run of this policy, if it `has_length`."""

    def num_episodes(self) -> int | None:
        """Return the number of episodes that the policy can play, None unless it holds a set of them."""

    def can_play(self, episode_index: int) -> bool:
        """Whether the policy has something to do in an episode; asked before any episode of a job begins."""
        return True

    def close(self) -> None:
        """Release the policy's resources. May be called more than once."""

    # Abilities. A class has one if it defines the method; `AsksNetwork` describes ``network`` and ``asking``.

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots at whose pictures the next `get_action` looks, None for all; no others are shown.

        Asked before each ``reset`` of the environment, for the env slots ``starting``, and before each ``step``.
        """
        return () if self.traits.pictures == "none" else None

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as `get_action` does, and leave the memory of all env slots but ``env_ids`` as it is.

        In the other env slots the observation is zero, and the action means nothing.
        """
        raise NotImplementedError

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the actions that follow the last one after any observation. Shape: (n, action_dim), n may be 0."""
        raise NotImplementedError

    @classmethod
    def stated_chunks(cls, config: Any) -> ChunkTraits | None:
        """Return the facts about its chunks at best, before anything is loaded; None if unknown. See `chunk_traits`."""

    def chunk_traits(self) -> ChunkTraits:
        """Return the facts about its chunks, which the caller plays; `ConfigError` if only the policy can do so."""
        raise NotImplementedError

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take the observation of some env slots, in every control step that they make, before `chunks`."""
        raise NotImplementedError

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Return new chunks, which continue ``going_on``. Shape: (n, predicted, action_dim), float32, on the CPU."""
        raise NotImplementedError

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return the number of env slots in every call of the network, None if one call has all ``num_envs``."""

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Fill calls up to so many env slots from now on, at least `slots_per_call`; None for just that."""

    def with_own_memory(self) -> Self | None:
        """Return a policy with this one's network and a memory of its own; None if this object cannot be shared."""

    @property
    def is_remote(self) -> bool:
        """Whether the policy's network runs in another process."""
        return self.traits.remote

    def stated_model(self) -> str | None:
        """Return the model that the policy's server states, ``unknown`` if it states none, None without a server."""
        return UNKNOWN if self.is_remote else None
