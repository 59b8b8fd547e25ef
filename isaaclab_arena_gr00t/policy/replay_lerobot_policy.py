"""A policy that replays the actions of a LeRobot dataset."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.episode_ranges import as_ranges
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, StorageError, first_line
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena_gr00t.data.files import layout
from isaaclab_arena_gr00t.data.modality_file import groups_of
from isaaclab_arena_gr00t.data.stored_dataset import StoredDataset, open_dataset
from isaaclab_arena_gr00t.data.stored_features import stored_features
from isaaclab_arena_gr00t.joint_files import read_joint_files
from isaaclab_arena_gr00t.joint_wiring import wired_action
from isaaclab_arena_gr00t.replay_config import (
    LerobotReplayConfig,
    ReplayLerobotPolicyArgs,
    read_replay_config,
)

# Below the program's own logger, so that it is in the log of the rank.
logger = logging.getLogger("isaaclab_arena.gr00t")

_RATE_TOLERANCE = 1e-3


@dataclass(kw_only=True)
class _Playing:
    """The trajectory of an env slot. Shape of ``actions``: (num_steps, action_dim)."""

    actions: torch.Tensor
    position: int = 0


class ReplayLerobotPolicy(PolicyBase[ReplayLerobotPolicyArgs]):
    """Replays the actions of a LeRobot dataset, in any number of env slots.

    An episode ends with the step of its trajectory's last action, unless the environment ends it before.

    Raises:
        ConfigError: If an option is wrong, or there is no dataset that can be replayed.
    """

    name: ClassVar[str] = "replay_lerobot"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)
    config_class: ClassVar[type | None] = ReplayLerobotPolicyArgs

    def __init__(self, config: ReplayLerobotPolicyArgs) -> None:
        super().__init__(config)
        self.args = config
        self.settings = read_replay_config(config)
        self.dataset = _dataset(config, self.settings)
        _check_args(config, self.dataset)
        self._joints = read_joint_files(self.settings)
        self._device = None if config.device is None else _checked_device(config.device)
        self._playing: dict[int, _Playing] = {}
        self._num_envs = 0

    @classmethod
    def check_options(cls, config: ReplayLerobotPolicyArgs) -> None:
        """Refuse a dataset that cannot be played, before anything is simulated.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """
        with _named_by_option(config):
            cls(config)

    @classmethod
    def check_fit(cls, config: ReplayLerobotPolicyArgs, env: Environment) -> None:
        """Refuse an environment that takes other actions than the dataset holds.

        Raises:
            ConfigError: With everything that does not fit, and ``key`` set to the option at fault.
        """
        with _named_by_option(config):
            cls(config).refuse_misfit(env)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the files of the dataset without its videos; see `PolicyBase.content_sources`."""
        args = ReplayLerobotPolicyArgs(**options)
        settings = read_replay_config(args)
        root = Path(settings.dataset_path).expanduser()
        files = {f"dataset_path {name}": root / name for name in ("meta", "data") if (root / name).exists()}
        paths = {
            "policy_config_yaml_path": args.yaml_path,
            "policy_joints_config_path": settings.policy_joints_config_path,
            "action_joints_config_path": settings.action_joints_config_path,
        }
        files |= {f"{key} {Path(path).name}": Path(path) for key, path in paths.items() if path}
        return ContentSources(files=files)

    def num_episodes(self) -> int | None:
        """Number of trajectories, 1 if one of them is played in every episode."""
        return len(self.dataset.episodes) if self.args.trajectory_index is None else 1

    def can_play(self, episode_index: int) -> bool:
        """Whether the dataset holds the episode, or one trajectory is replayed in all."""
        return self.args.trajectory_index is not None or episode_index in self.dataset.episodes

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that takes other actions than the dataset holds.

        Raises:
            ConfigError: With everything that does not fit.
        """
        self.refuse_misfit(env)
        rate = 1 / env.control_dt
        if abs(rate - self.dataset.fps) > _RATE_TOLERANCE * rate:
            logger.warning(
                "%s has %g control steps per second, the environment %g: it will move at another speed",
                self.dataset.root,
                self.dataset.fps,
                rate,
            )

    def refuse_misfit(self, env: Environment) -> None:
        """Refuse an environment that takes other actions, without logging anything; see `check_environment`."""
        index = self.args.trajectory_index
        first = min(self.dataset.episodes) if index is None else index
        try:
            actions = self._finite_actions(env, first)
        except StorageError as error:
            raise ConfigError(Problem(str(error), key="dataset_path")) from error
        if actions.shape[1:] != env.action_spec.shape:
            raise ConfigError(Problem(_misfit(self.dataset, actions, env), key="dataset_path"))

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Load the actions of the episodes that begin.

        Raises:
            PolicyError: If the dataset lacks an episode, or its actions do not fit the environment.
        """
        if env.num_envs != self._num_envs:
            self._playing, self._num_envs = {}, env.num_envs
        for start in starts:
            self._playing[start.env_id] = _Playing(actions=self._loaded(env, start))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Restart the trajectories of the named env slots; with None, replay nothing until episodes start."""
        if env_ids is None:
            self._playing = {}
            return
        for env_id in env_ids.tolist():
            if env_id in self._playing:
                self._playing[env_id].position = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next action of every env slot; past the end, repeat the last one.

        Returns:
            Shape: (num_envs, action_dim). Zeros in env slots where no episode has started.
        """
        del observation
        action = torch.zeros((env.num_envs, *env.action_spec.shape), device=self._device or env.device)
        if env.num_envs == self._num_envs:
            for env_id, playing in self._playing.items():
                action[env_id] = playing.actions[min(playing.position, len(playing.actions) - 1)]
                playing.position += 1
        return action.to(env.device)

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the rest of the trajectory; see `PlaysChunks`."""
        playing = self._playing[env_id]
        return playing.actions[playing.position :]

    def finished(self) -> torch.Tensor | None:
        """Return the env slots whose trajectory has been played to its end. Shape: (num_envs,), bool."""
        finished = torch.zeros(self._num_envs, dtype=torch.bool)
        for env_id, playing in self._playing.items():
            finished[env_id] = playing.position >= len(playing.actions)
        return finished

    def _loaded(self, env: Environment, start: EpisodeStart) -> torch.Tensor:
        index = start.episode.episode_index if self.args.trajectory_index is None else self.args.trajectory_index
        if index not in self.dataset.episodes:
            raise PolicyError(f"{self.dataset.root} has no trajectory {index}; it has {_in_words(self.dataset)}")
        try:
            actions = self._finite_actions(env, index)
        except StorageError as error:
            raise PolicyError(str(error)) from error
        if actions.shape[1:] != env.action_spec.shape or len(actions) == 0:
            raise PolicyError(_misfit(self.dataset, actions, env))
        return torch.as_tensor(actions[: self.args.max_steps], dtype=torch.float32, device=self._device or env.device)

    def _finite_actions(self, env: Environment, index: int) -> np.ndarray:
        actions = self._actions(env, index)
        if not np.isfinite(actions).all():
            file = self.dataset.episodes[index].data_file
            raise StorageError(f"{file}: the actions of episode {index} hold numbers that are not finite")
        return actions

    def _actions(self, env: Environment, index: int) -> np.ndarray:
        """Return a trajectory in the order of the environment. Shape: (num_steps, action_dim)."""
        if self._joints.policy is None:
            column = stored_features(self.dataset).vectors[layout.ACTION]
            values = self.dataset.columns(index, [layout.ACTION])[layout.ACTION]
            actions = column.unpacked(values).get(recorded.ACTIONS)
            if actions is None:
                raise StorageError(f"{self.dataset.root}: {layout.ARENA_FILE} does not say where the actions are whole")
            return actions
        groups = groups_of(self.dataset.document(layout.MODALITY_FILE) or {}, "action")
        places, problems = wired_action(env.action_spec, list(groups), self._joints)
        if problems:
            raise ConfigError(problems)
        columns = self.dataset.columns(index, sorted({column for column, _, _ in groups.values()}))
        ordered = np.zeros((self.dataset.episodes[index].num_steps, sum(map(len, places.values()))), np.float32)
        for key, (column, begin, end) in groups.items():
            if end > columns[column].shape[1]:
                raise StorageError(
                    f"{self.dataset.root / layout.MODALITY_FILE}: action: {plain_text(key)}: end: must be at most "
                    f"{columns[column].shape[1]}, which is the size of '{plain_text(column)}', got {end}"
                )
            if end - begin != len(places[key]):
                message = f"the group '{key}' has {end - begin} numbers, the file names {len(places[key])} joints"
                raise ConfigError(Problem(message, key="policy_joints_config_path"))
            ordered[:, places[key]] = columns[column][:, begin:end]
        return ordered


@contextmanager
def _named_by_option(args: ReplayLerobotPolicyArgs) -> Iterator[None]:
    """Name the option of a job if its YAML file is wrong; the message names the place in the file."""
    option = "config_yaml_path" if args.policy_config_yaml_path is None else "policy_config_yaml_path"
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            [Problem(str(problem), key=option) if problem.file else problem for problem in error.problems]
        ) from error


def _dataset(args: ReplayLerobotPolicyArgs, settings: LerobotReplayConfig) -> StoredDataset:
    try:
        return open_dataset(Path(settings.dataset_path).expanduser())
    except StorageError as error:
        named_in = None if args.dataset_path is not None else args.yaml_path
        raise ConfigError(Problem(str(error), file=named_in, key="dataset_path")) from error


def _check_args(args: ReplayLerobotPolicyArgs, dataset: StoredDataset) -> None:
    index, problems = args.trajectory_index, []
    if index is not None and index not in dataset.episodes:
        message = f"{dataset.root} has no trajectory {index}; it has {_in_words(dataset)}"
        problems.append(Problem(message, key="trajectory_index"))
    if args.max_steps is not None and args.max_steps < 1:
        problems.append(Problem(f"must be at least 1, got {args.max_steps}", key="max_steps"))
    if problems:
        raise ConfigError(problems)


def _in_words(dataset: StoredDataset) -> str:
    return ", ".join(
        str(begin) if end == begin + 1 else f"{begin} to {end - 1}" for begin, end in as_ranges(dataset.episodes)
    )


def _misfit(dataset: StoredDataset, actions: np.ndarray, env: Environment) -> str:
    return (
        f"the actions of {dataset.root} have shape {actions.shape}; the environment takes (num_steps, action_dim) = "
        f"(1 or more, {env.action_spec.shape[0]})"
    )


def _checked_device(name: str) -> torch.device:
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        message = f"cannot use device '{name}': {first_line(error)}; leave it out to use the environment's"
        raise ConfigError(Problem(message, key="device")) from error
