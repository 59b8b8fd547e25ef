"""The policy that plays recorded actions again."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.errors import ConfigError, PolicyError, StorageError, first_line
from isaaclab_arena.interfaces.connections import Connections, Description, set_entries
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, in_words
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.storage.episodes import (
    find_recordings,
    index_episodes,
    read_actions,
    read_attributes,
    read_env_args,
)
from isaaclab_arena.storage.episodes import in_words as demos_in_words
from isaaclab_arena.storage.layout import demo_index, demo_name

WAY_OUT = "policy_config_dict.episodes: present plays those that are there, one after the other"
"""The advice for recordings with gaps."""

_KEY = "replay_file_path"


@dataclass(frozen=True)
class ReplayPolicyCfg(PolicyCfg):
    """Options of `ReplayPolicy`.

    Attributes:
        replay_file_path: A recording, a directory of recordings, or a pattern such as ``out/dataset_lift_rank*.hdf5``.
        episode_name: The recorded episode to play in every episode, for example ``demo_3``; None plays in each
            episode the recorded one of the same index.
        episodes: Which recorded episodes to play one after the other, from the job's episode 0 on: their indices, or
            ``present`` for all that there are, ascending.
        device: Where actions are kept until they are played, None for the environment's device.
    """

    replay_file_path: str
    episode_name: str | None = None
    episodes: Literal["present"] | tuple[int, ...] | None = None
    device: str | None = None


OptionsT = TypeVar("OptionsT")


class RecordedActions(PolicyBase[OptionsT]):
    """Plays a sequence of actions in each episode, in as many env slots as there are; a subclass defines `_sequence`.

    An episode ends with the step of its last action, unless the environment ends it before.
    """

    traits = PolicyTraits(reproducible=True, batch_invariant=True, pictures="none")
    device: torch.device | None = None  # where actions wait, None for the environment's

    def __init__(self, config: OptionsT | None = None) -> None:
        super().__init__(config)
        self._actions = torch.zeros(0, 0, 0)
        self._lengths = torch.zeros(0, dtype=torch.int64)
        self._positions = torch.zeros(0, dtype=torch.int64)

    @abstractmethod
    def _sequence(self, env: Environment, episode: Episode) -> np.ndarray:
        """Return an episode's actions, (num_steps, action_dim); PolicyError if there are none that can be played."""

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Load the actions of the episodes that begin; PolicyError if some are missing or do not fit."""
        if len(self._lengths) != env.num_envs or self._actions.shape[2:] != env.action_spec.shape:
            device = self.device or env.device
            self._actions = torch.zeros((env.num_envs, 1, *env.action_spec.shape), device=device)
            self._lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
            self._positions = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
        for start in starts:
            actions = self._sequence(env, start.episode)
            # The longest sequence decides the width of the table of actions.
            missing = len(actions) - self._actions.shape[1]
            if missing > 0:
                shape = (len(self._actions), missing, *self._actions.shape[2:])
                self._actions = torch.cat([self._actions, torch.zeros(shape, device=self._actions.device)], dim=1)
            self._actions[start.env_id, : len(actions)] = torch.as_tensor(actions, dtype=torch.float32)
            self._lengths[start.env_id] = len(actions)
            self._positions[start.env_id] = 0

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Play the named env slots' actions from the first one again; with None, nothing until episodes start."""
        if env_ids is None:
            self._lengths.zero_()
        elif len(self._positions):
            self._positions[env_ids.to(self._positions.device)] = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return each env slot's next recorded action, (num_envs, action_dim); past the end the last one again."""
        del observation
        # Env slots without a started episode get zeros.
        if len(self._lengths) != env.num_envs:
            return torch.zeros((env.num_envs, *env.action_spec.shape), device=env.device)
        steps = torch.minimum(self._positions, (self._lengths - 1).clamp(min=0))
        action = self._actions[torch.arange(env.num_envs, device=steps.device), steps]
        self._positions += 1
        return action.to(env.device)

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the rest of the recorded sequence."""
        return self._actions[env_id, int(self._positions[env_id]) : int(self._lengths[env_id])]

    def finished(self) -> torch.Tensor | None:
        """Mask the env slots whose sequence has been played to its end. Shape: (num_envs,), bool."""
        return (self._lengths > 0) & (self._positions >= self._lengths)


class RecordedSet(RecordedActions[OptionsT]):
    """Plays recorded sequences by their index; a subclass sets `played`, `only` and `device`, and defines `_read`."""

    played: Mapping[int, int]  # index of the recorded sequence for each episode of the job
    only: int | None  # the sequence that is played in every episode, None if each plays its own

    @abstractmethod
    def _read(self, env: Environment, index: int) -> np.ndarray:
        """Return a recorded sequence, (num_steps, action_dim); PolicyError or StorageError if it cannot be played."""

    @abstractmethod
    def _missing(self, episode_index: int) -> str:
        """Return the message that there is nothing to play in an episode."""

    @property
    def first(self) -> int:
        """The first sequence that is played."""
        return next(iter(self.played.values())) if self.only is None else self.only

    def num_episodes(self) -> int | None:
        """Return the number of recorded sequences that are played, 1 if the same one is played in every episode."""
        return len(self.played) if self.only is None else 1

    def can_play(self, episode_index: int) -> bool:
        """Return True if a recorded sequence is there for an episode of the job."""
        return self.only is not None or episode_index in self.played

    def _sequence(self, env: Environment, episode: Episode) -> np.ndarray:
        wanted = episode.episode_index
        if not self.can_play(wanted):
            raise PolicyError(self._missing(wanted))
        try:
            return self._read(env, self.played[wanted] if self.only is None else self.only)
        except StorageError as error:
            raise PolicyError(str(error)) from error


class ReplayPolicy(RecordedSet[ReplayPolicyCfg]):
    """Plays the ``actions`` of a recording, in as many environments as there are."""

    # ConfigError: the recording or the device does not exist, or the recording lacks the requested episodes.
    name: ClassVar[str] = "replay"

    def __init__(self, config: ReplayPolicyCfg) -> None:
        super().__init__(config)
        # The file of each recorded episode, by index.
        self._files = files = index_episodes(find_recordings(config.replay_file_path, key=_KEY), key=_KEY)
        self.played = {}
        self.only = None if config.episode_name is None else demo_index(config.episode_name)
        if config.episode_name is None:
            self.played = played_episodes(config.episodes, files, source=config.replay_file_path, name=demo_name)
        elif config.episodes is not None:
            raise ConfigError("is given too, and plays one in every episode; give one of them", key="episode_name")
        elif self.only not in files:
            message = f"'{config.replay_file_path}' holds no '{config.episode_name}'; it holds {demos_in_words(files)}"
            raise ConfigError(message, key="episode_name")
        self.device = checked_device(config.device)

    @classmethod
    def check_options(cls, config: ReplayPolicyCfg) -> None:
        """Refuse a recording that cannot be played, before simulation; ConfigError with ``key`` of the option."""
        policy = cls(replace(config, device=None))
        file, index = policy._files[policy.first], policy.first
        try:
            actions = read_actions(file, index)
        except StorageError as error:
            raise ConfigError(str(error), key=_KEY) from error
        if len(actions) == 0:
            raise ConfigError(f"the actions of {demo_name(index)} in {file} have shape {actions.shape}", key=_KEY)
        checked_device(config.device)

    @classmethod
    def check_fit(cls, config: ReplayPolicyCfg, env: Environment) -> Connections:
        """Return the connections with an environment; ConfigError if its actions have another size."""
        # Nothing is played here, so no GPU is needed.
        policy = cls(replace(config, device=None))
        try:
            policy._read(env, policy.first)
        except PolicyError as error:
            raise ConfigError(str(error), key=_KEY) from error
        return policy.connections(env)

    @classmethod
    def description(cls, config: ReplayPolicyCfg) -> Description:
        """Return the facts that the recordings state; see `PolicyBase.description`."""
        policy = cls(replace(config, device=None))
        file = policy._files[policy.first]
        attributes = read_attributes(file, policy.first)
        seed = attributes.get("placement_seed", attributes.get("seed"))
        try:
            environment = read_env_args(file)
        except StorageError:
            # Other programs write other contents there.
            environment = {}
        return Description(
            source=str(file),
            environment=environment,
            seed=seed if isinstance(seed, int) else None,
            episodes=policy.played if policy.only is None else None,
            holds=f"{len(policy._files)} episodes, {in_words(policy._files)}",
            way_out=WAY_OUT,
        )

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the recordings that are played; see `PolicyBase.content_sources`."""
        files = find_recordings(options[_KEY], key=_KEY)
        return ContentSources(files={f"{_KEY} {file.name}": file for file in files})

    def connections(self, env: Environment) -> Connections:
        """Return the connections of the recorded actions; see `PolicyBase.connections`."""
        file = self._files[self.first]
        control_dt = read_attributes(file, self.first).get("control_dt")
        return Connections(
            actions=set_entries(env),
            source=str(file),
            control_hz=1 / control_dt if isinstance(control_dt, float) and control_dt > 0 else None,
        )

    def _read(self, env: Environment, index: int) -> np.ndarray:
        file = self._files[index]
        actions = read_actions(file, index)
        if actions.shape[1:] != env.action_spec.shape or len(actions) == 0:
            raise PolicyError(
                f"the actions of {demo_name(index)} in {file} have shape {actions.shape}; "
                f"the environment takes (num_steps, action_dim) = (1 or more, {env.action_spec.shape[0]})"
            )
        return actions

    def _missing(self, episode_index: int) -> str:
        is_chosen = self.config.episodes is not None
        lacking = f"nothing for episode {episode_index}" if is_chosen else f"no episode {episode_index}"
        return f"'{self.config.replay_file_path}' holds {lacking}; it holds {demos_in_words(self._files)}"


@dataclass(frozen=True)
class MeanActionPolicyCfg(PolicyCfg):
    """Options of `MeanActionPolicy`.

    Attributes:
        replay_file_path: The recordings, as for `ReplayPolicyCfg`.
    """

    replay_file_path: str


class MeanActionPolicy(PolicyBase[MeanActionPolicyCfg]):
    """Returns the mean action of a recording, over all steps of all its episodes, in every step."""

    name: ClassVar[str] = "mean_action"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, pictures="none")

    def __init__(self, config: MeanActionPolicyCfg) -> None:
        super().__init__(config)
        files = index_episodes(find_recordings(config.replay_file_path, key=_KEY), key=_KEY)
        self._mean = np.concatenate([read_actions(file, index) for index, file in files.items()]).mean(axis=0)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the recordings that are read; see `PolicyBase.content_sources`."""
        return ReplayPolicy.content_sources(options)

    def check_environment(self, env: Environment) -> None:
        """Refuse actions of another size, and choices, which have no mean; ConfigError."""
        if env.action_spec.choices is not None:
            raise ConfigError("the actions are choices, which have no mean", key=_KEY)
        if self._mean.shape != env.action_spec.shape:
            message = f"the recorded actions have shape {self._mean.shape}, the environment's {env.action_spec.shape}"
            raise ConfigError(message, key=_KEY)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the mean action of every env slot. Shape: (num_envs, action_dim)."""
        del observation
        return torch.as_tensor(self._mean, dtype=torch.float32, device=env.device).expand(env.num_envs, -1)


def played_episodes(
    chosen: Literal["present"] | Sequence[int] | None, there: Iterable[int], *, source: str, name: Callable[[int], str]
) -> dict[int, int]:
    """Map each episode of a job to a recorded one; ConfigError if one is missing or named twice."""
    # ``chosen`` is the option ``episodes``; None plays the recorded episode of the same index. ``there`` is ascending.
    # ``source`` and ``name`` are for messages.
    found = tuple(there)
    if chosen is None:
        return {index: index for index in found}
    wanted = found if chosen == "present" else tuple(chosen)
    missing = [index for index in wanted if index not in found]
    if missing:
        message = f"'{source}' holds no {name(missing[0])}; it holds {in_words(found, name)}"
        raise ConfigError(message, key="episodes")
    if not wanted or len({*wanted}) < len(wanted):
        raise ConfigError(f"must name recorded episodes, each once, got {list(wanted)}", key="episodes")
    return dict(enumerate(wanted))


def checked_device(name: str | None) -> torch.device | None:
    """Return a device that torch can use, None for None; ConfigError at the option ``device`` for any other."""
    try:
        return None if name is None else torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        message = f"cannot use device '{name}': {first_line(error)}; leave it out to use the environment's"
        raise ConfigError(message, key="device") from error
