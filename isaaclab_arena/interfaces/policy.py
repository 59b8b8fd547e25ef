"""The base class of every policy, Isaac Lab Arena's, so that classes written for it run unchanged; its promises."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, cast, get_args, get_origin

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, Problem, UnannouncedPictureError
from isaaclab_arena.interfaces import policy_options
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.content import UNKNOWN, ContentSources, sources_in_options
from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.interfaces.specs import CAMERAS, ChunkTraits, Continuation, Pictures, pictures_of


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
        settle_policy_class(cls)

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


# The abilities of a policy class. Nothing else asks where a class defines a method.

# A base's statements about its ``get_action`` do not hold for another one, and must not bypass it.
_OF_GET_ACTION = ("traits", "pictures_to_see", "act_in_some", "planned", "chunks", "connections")
# These abilities need several methods.
_TOGETHER = (("chunks", "look", "chunk_traits"), ("network", "asking"), ("slots_per_call", "fill_calls_up_to"))


def settle_policy_class(policy_class: Any) -> None:
    """Settle a class that derives from `PolicyBase`: its config class, withdrawn methods, offers and traits."""
    for name in {each.name for each in fields(PolicyTraits)} - {"pictures", "remote"}:
        value = policy_class.__dict__.get(name, MISSING)
        # A class may also call something of its own ``metrics``.
        is_own = not isinstance(value, tuple) or not any(isinstance(each, Metric) for each in value)
        if value is not MISSING and not (name == "metrics" and is_own):
            what = f"{policy_class.__name__}.{name}"
            raise ConfigError(f"{what} has no effect; say traits = PolicyTraits({name}=...) instead")

    # ``MyCfg`` of a class that derives from ``PolicyBase[MyCfg]``, also through others.
    parameter = _parameter(policy_class)
    parameter = get_origin(parameter) or parameter
    is_class = isinstance(parameter, type) and parameter not in (type(None), Any)
    if is_class and "config_class" not in policy_class.__dict__:
        policy_class.config_class = parameter

    # A method that a class sets to None gets the default back: it is not offered.
    for name in [name for name, value in vars(policy_class).items() if value is None]:
        if callable(getattr(PolicyBase, name, None)):
            setattr(policy_class, name, vars(PolicyBase)[name])

    # The attributes of `PolicyBase` that the class has of its own, as far as they hold for its ``get_action``.
    # ``network`` is a name that policies use for their own attributes, so the base has no method of that name.
    names = [*(name for name in vars(PolicyBase) if not name.startswith("_")), "network", "asking"]
    below = [vars(each) for each in policy_class.__mro__[: policy_class.__mro__.index(PolicyBase)]]
    depth = {name: next((number for number, each in enumerate(below) if name in each), len(below)) for name in names}
    offers = {name for name in names if depth[name] < len(below)}
    offers -= {name for name in offers if below[depth[name]][name] is vars(PolicyBase).get(name)}
    offers -= {name for name in _OF_GET_ACTION if depth[name] > depth["get_action"]}
    for together in _TOGETHER:
        offers -= set() if offers.issuperset(together) else set(together)
    policy_class.offers = frozenset(offers)

    traits = policy_class.traits
    if "traits" not in offers and traits.pictures != "all":
        # A base's statement about pictures holds for its own `get_action`.
        traits = replace(traits, pictures="all")
    if not traits.remote and any(each.traits.remote for each in policy_class.__bases__ if issubclass(each, PolicyBase)):
        traits = replace(traits, remote=True)
    if traits is not policy_class.traits:
        policy_class.traits = traits


def _parameter(policy_class: type) -> Any:
    # Only the class's own bases count: it inherits the value of others anyway.
    for each in policy_class.__dict__.get("__orig_bases__", ()):
        origin, arguments = get_origin(each), get_args(each)
        if origin is PolicyBase:
            return arguments[0]
        if isinstance(origin, type) and issubclass(origin, PolicyBase):
            inner, parameters = _parameter(origin), getattr(origin, "__parameters__", ())
            if inner in parameters:
                return arguments[parameters.index(inner)]
    return None


# Pictures that readers announce: those that a policy asks for, and the form in which a reader gets them.


def announced_pictures(policy: PolicyBase, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
    """Return the env slots at whose pictures a policy looks next, None for all."""
    if "pictures_to_see" in policy.offers:
        return policy.pictures_to_see(env, starting)
    return () if policy.traits.pictures == "none" else None


def shown_to(policy: PolicyBase, env: Environment, observation: Observation) -> Observation:
    """Return an observation with its pictures in the form of a policy's traits."""
    if CAMERAS not in observation:
        return observation
    shown, form = dict(observation[CAMERAS]), policy.traits.pictures
    for camera, each in shown.items():
        if form == "announced":
            shown[camera] = pictures_of(each)
        elif isinstance(each, Pictures) and form == "all" and "pictures_to_see" not in policy.offers:
            # It announces nothing, so an env slot without a picture does not act.
            shown[camera] = each.frames.new_zeros((env.num_envs, *each.frames.shape[1:]))
            shown[camera][list(each.env_ids)] = each.frames
    return {**observation, CAMERAS: shown}


def seen_by(reader: str, cameras: Mapping[str, torch.Tensor | Pictures], announced: np.ndarray) -> dict[str, Pictures]:
    """Return the pictures that a reader has announced, of those that there are. Shape of the mask: (num_envs,)."""
    seen = {}
    for camera, shown in cameras.items():
        drawn = pictures_of(shown)
        frames, places = drawn.frames, np.flatnonzero(announced[list(drawn.env_ids)])
        if len(places) == 0:
            frames = frames[:0]
        elif len(places) < len(frames):
            frames = frames[torch.from_numpy(places).to(frames.device, non_blocking=True)]
        seen[camera] = Pictures(tuple(drawn.env_ids[place] for place in places), frames, camera, reader)
    return seen


def refuse_misread(error: AttributeError) -> None:
    """Raise `UnannouncedPictureError` if a reader took `Pictures` for the tensor of all env slots."""
    shown = error.obj
    if isinstance(shown, Pictures):
        raise UnannouncedPictureError(
            f"{shown.reader} looks at '{shown.camera}' as a tensor of all env slots without having announced it; "
            "docs/how_to/cameras.md says how pictures are announced, and read by env slot"
        ) from error


# Networks, which a policy asks in this process or in another one.

Entries: TypeAlias = Mapping[str, np.ndarray | Sequence[str]]
"""The entries of one question to a network, by name: arrays whose first dimension counts the entries, and texts, one
for each example."""


class Network(Protocol):
    """A network that keeps nothing from one call to the next: each answer follows from its entry alone.

    A policy's memory of an episode is no part of it, nor is a noise stream: a seed is part of the example.
    """

    @property
    def about(self) -> Mapping[str, Any]:
        """The facts about the network for a policy, in plain JSON values.

        ``slots_per_call`` is the number of entries in each call, None if the server may choose it.
        """
        ...

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the answers by name; the first dimension of each counts the entries."""
        ...


class NetworkElsewhere(Protocol):
    """Stands for a `Network` in another process, which several askers share."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The facts about the network; see `Network`."""
        ...

    @property
    def max_batch(self) -> int:
        """The number of entries that the process answers together at most."""
        ...

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        """Return the answers by name.

        Args:
            entries: Any number of entries.
            slots_per_call: Entries in each call of the network. Calls are filled up with entries of other askers, and
                if there are none, with copies.

        Raises:
            PolicyLostError: If the process takes too long, or is lost again and again over this query.
            DistributedError: If the rank that ran the process is gone.
            PolicyError: If the network cannot answer.
        """
        ...

    def close(self) -> None:
        """Announce that no question follows for now."""
        ...


# Methods of `PolicyBase` that a class defines together, for annotations.


class PlaysChunks(Protocol):
    """A policy that knows some of an env slot's next actions already."""

    def planned(self, env_id: int) -> torch.Tensor:
        """See `PolicyBase.planned`."""
        ...


class AnswersChunks(Protocol):
    """A policy whose chunks of actions can be played by its caller."""

    def chunk_traits(self) -> ChunkTraits:
        """See `PolicyBase.chunk_traits`."""
        ...

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """See `PolicyBase.look`."""
        ...

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """See `PolicyBase.chunks`."""
        ...


class AsksNetwork(Protocol):
    """A policy class whose network is apart from its memory, so that ranks can share one in a policy server."""

    def network(self) -> Network:
        """Return the network that this policy has loaded."""
        ...

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> Self:
        """Return a policy with a memory of its own that loads no network; ``options`` are those of `from_dict`."""
        ...
