"""A policy that replays the actions of a LeRobot dataset."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, StorageError, refuse
from isaaclab_arena.interfaces.connections import Connections, Description, entries, set_entries
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import in_words
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.lerobot import layout
from isaaclab_arena.lerobot.reading import StoredDataset, groups_of, open_dataset, stored_features
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import given_path
from isaaclab_arena.policy.replay import WAY_OUT, RecordedSet, checked_device, played_episodes
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena_gr00t.config import named_by_option, read_joint_files, read_settings
from isaaclab_arena_gr00t.observations import wired_action

# Read the settings of a replayed LeRobot dataset: the options of a job, and the YAML file that they may name.


@dataclass(frozen=True)
class ReplayLerobotPolicyArgs(PolicyCfg):
    """Options of `ReplayLerobotPolicy`; ``dataset_path`` or ``policy_config_yaml_path`` must be given.

    Attributes:
        policy_config_yaml_path: The YAML file that names the dataset; see `LerobotReplayConfig`.
        dataset_path: The directory of the dataset; takes precedence over the YAML file's.
        trajectory_index: The trajectory to replay in every episode; None replays trajectory i in episode i.
        episodes: Which trajectories to replay one after the other, from episode 0 on: their numbers, or ``present`` for
            all that there are, ascending.
        max_steps: Control steps after which an episode ends, if its trajectory is longer.
        device: Where actions are kept until they are played, None for the environment's device.
        config_yaml_path: Isaac Lab Arena's name of ``policy_config_yaml_path`` on the command line.
        num_envs: Accepted for Isaac Lab Arena's job files; the policy serves whatever number of env slots there is.
    """

    policy_config_yaml_path: str | None = None
    dataset_path: str | None = None
    trajectory_index: int | None = None
    episodes: Literal["present"] | tuple[int, ...] | None = None
    max_steps: int | None = None
    device: str | None = None
    config_yaml_path: str | None = None
    num_envs: int = 1

    @property
    def yaml_path(self) -> str | None:
        """The YAML file, given under either name."""
        return self.policy_config_yaml_path or self.config_yaml_path

    @property
    def yaml_option(self) -> str:
        """The option under which the YAML file is given."""
        return "config_yaml_path" if self.policy_config_yaml_path is None else "policy_config_yaml_path"


@dataclass(frozen=True, kw_only=True)
class LerobotReplayConfig:
    """The YAML file of a replayed dataset, with Isaac Lab Arena's keys; paths as in `Gr00tClosedloopPolicyConfig`.

    Attributes:
        dataset_path: The directory of the dataset.
        policy_joints_config_path: File with the joints of the groups in ``modality.json``. Without it, a dataset that
            was made from a recording gets its original actions back, and others are replayed unchanged.
        action_joints_config_path: File with the position of every joint in the environment's action.
        action_horizon: Accepted and not used: every action is played.
        action_chunk_length: Accepted and not used: every action is played.
        embodiment_tag: Accepted and not used: the dataset has it.
        modality_config_path: Accepted and not used: the dataset has it.
        task_mode_name: Accepted and not used: the joint files say where actions go.
        video_backend: Accepted and not used: no videos are read.
    """

    dataset_path: str
    policy_joints_config_path: str | None = None
    action_joints_config_path: str | None = None
    action_horizon: int | None = None
    action_chunk_length: int | None = None
    embodiment_tag: str | None = None
    modality_config_path: str | None = None
    task_mode_name: str | None = None
    video_backend: str | None = None


def read_replay_config(args: ReplayLerobotPolicyArgs) -> LerobotReplayConfig:
    """Return the settings of a job's options and its YAML file; ConfigError with every problem, by key and file."""
    file = args.yaml_path
    if file is None:
        if args.dataset_path is None:
            raise ConfigError("is missing; give it, or policy_config_yaml_path", key="dataset_path")
        return LerobotReplayConfig(dataset_path=args.dataset_path)
    paths = ("dataset_path", "policy_joints_config_path", "action_joints_config_path")
    given = {} if args.dataset_path is None else {"dataset_path": str(Path(args.dataset_path).absolute())}
    return read_settings(LerobotReplayConfig, file, owner="a replayed dataset", paths=paths, **given)


# A policy that replays the actions of a LeRobot dataset.


class ReplayLerobotPolicy(RecordedSet[ReplayLerobotPolicyArgs]):
    """Replays the actions of a LeRobot dataset, in any number of env slots."""

    name: ClassVar[str] = "replay_lerobot"
    config_class: ClassVar[type | None] = ReplayLerobotPolicyArgs

    def __init__(self, config: ReplayLerobotPolicyArgs) -> None:
        super().__init__(config)
        self.args = config
        self.settings = read_replay_config(config)
        try:
            self.dataset = open_dataset(given_path(self.settings.dataset_path))
        except StorageError as error:
            named_in = None if config.dataset_path is not None else config.yaml_path
            raise ConfigError(str(error), file=named_in, key="dataset_path") from error

        # Choose the trajectory of each episode; there is none to choose if one trajectory serves all episodes.
        index, problems = config.trajectory_index, []
        if index is not None and index not in self.dataset.episodes:
            message = f"{self.dataset.root} has no trajectory {index}; it has {in_words(self.dataset.episodes)}"
            problems.append(Problem(message, key="trajectory_index"))
        if index is not None and config.episodes is not None:
            message = "is given too, and is replayed in every episode; give one of them"
            problems.append(Problem(message, key="trajectory_index"))
        if config.max_steps is not None and config.max_steps < 1:
            problems.append(Problem(f"must be at least 1, got {config.max_steps}", key="max_steps"))
        refuse(problems)
        self.only, self.played = index, {}
        if index is None:
            source, name = str(self.dataset.root), "trajectory {}".format
            self.played = played_episodes(config.episodes, self.dataset.episodes, source=source, name=name)
        self._joints = read_joint_files(self.settings)
        self.device = checked_device(config.device)

    @classmethod
    def check_options(cls, config: ReplayLerobotPolicyArgs) -> None:
        """Refuse a dataset that cannot be played, before the simulation starts; ConfigError names the option."""
        with named_by_option(config.yaml_option):
            cls(config)

    @classmethod
    def check_fit(cls, config: ReplayLerobotPolicyArgs, env: Environment) -> Connections:
        """Refuse an environment with another action space than the dataset's: ConfigError with every problem."""
        with named_by_option(config.yaml_option):
            policy = cls(config)
            policy.check_environment(env)
            return policy.connections(env)

    @classmethod
    def description(cls, config: ReplayLerobotPolicyArgs) -> Description:
        """Return the dataset's description; ConfigError if its only trajectory is unreadable."""
        with named_by_option(config.yaml_option):
            policy = cls(config)
        dataset, only = policy.dataset, config.trajectory_index
        try:
            wrong, doubts = dataset.held_against_tables(policy.played.values() if only is None else [only])
            remembered = dataset.remembered()
        except StorageError as error:
            raise ConfigError(str(error), key="dataset_path") from error
        if only in wrong:
            raise ConfigError(wrong[only], key="dataset_path")
        # A replay fits an environment with the recording's seed and options.
        attributes = {
            number: remembered.get(number, {}).get("attributes", {})
            for number in (policy.first, *policy.played.values())
        }
        seed = attributes[policy.first].get("placement_seed", attributes[policy.first].get("seed"))
        worlds = {json_line(remembered.get(number, {}).get("env_args", {})): number for number in attributes}
        if len(worlds) > 1:
            doubts.append(f"{dataset.root} has trajectories of {len(worlds)} environments, which are played in one")
        # The recording may have numbered its episodes differently.
        recorded_as = {index: attributes[at].get("episode_index", at) for index, at in policy.played.items()}
        return Description(
            source=str(dataset.root),
            environment=remembered.get(policy.first, {}).get("env_args", {}),
            seed=seed if isinstance(seed, int) else None,
            episodes=recorded_as if only is None else None,
            holds=f"{len(dataset.episodes)} trajectories, {in_words(dataset.episodes)}",
            way_out=WAY_OUT,
            unreadable={index: wrong[number] for index, number in policy.played.items() if number in wrong},
            doubts=tuple(doubts),
        )

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the files of the dataset without its videos; see `PolicyBase.content_sources`."""
        args = ReplayLerobotPolicyArgs(**options)
        settings = read_replay_config(args)
        root = given_path(settings.dataset_path)
        files = {f"dataset_path {name}": root / name for name in ("meta", "data") if (root / name).exists()}
        paths = {
            "policy_config_yaml_path": args.yaml_path,
            "policy_joints_config_path": settings.policy_joints_config_path,
            "action_joints_config_path": settings.action_joints_config_path,
        }
        files |= {f"{key} {Path(path).name}": Path(path) for key, path in paths.items() if path}
        return ContentSources(files=files)

    def connections(self, env: Environment) -> Connections:
        """Return the action entries that the dataset sets; see `PolicyBase.connections`."""
        source, control_hz = str(self.dataset.root), self.dataset.fps
        if self._joints.policy is None:
            names: Any = self.dataset.features.get(layout.ACTION, {}).get("names")
            is_named = isinstance(names, list) and all(isinstance(each, str) for each in names)
            named = tuple(names) if is_named else None
            return Connections(actions=set_entries(env), source=source, control_hz=control_hz, action_names=named)
        size, names = {"action": env.action_spec.shape[0]}, env.action_spec.names
        actions = {key: entries(places, size, names) for key, places in self._wired(env)[1].items()}
        return Connections(actions=actions, source=source, control_hz=control_hz)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment with another action space than the dataset's: ConfigError with every problem."""
        try:
            actions = self._stored(env, self.first)
        except StorageError as error:
            raise ConfigError(str(error), key="dataset_path") from error
        if actions.shape[1:] != env.action_spec.shape:
            raise ConfigError(_misfit(self.dataset, actions, env), key="dataset_path")

    def _read(self, env: Environment, index: int) -> np.ndarray:
        actions = self._stored(env, index)
        if actions.shape[1:] != env.action_spec.shape or len(actions) == 0:
            raise PolicyError(_misfit(self.dataset, actions, env))
        return actions[: self.args.max_steps]

    def _missing(self, episode_index: int) -> str:
        is_chosen = self.args.episodes is not None
        what = f"has nothing for episode {episode_index}" if is_chosen else f"has no trajectory {episode_index}"
        return f"{self.dataset.root} {what}; it has {in_words(self.dataset.episodes)}"

    def _stored(self, env: Environment, index: int) -> np.ndarray:
        """Return a trajectory in the order of the environment, (num_steps, action_dim); StorageError if unusable."""
        if self._joints.policy is None:
            # Without joint files, a dataset that was made from a recording has the original actions.
            column = stored_features(self.dataset).vectors[layout.ACTION]
            values = self.dataset.columns(index, [layout.ACTION])[layout.ACTION]
            actions = column.unpacked(values).get(recorded.ACTIONS)
            if actions is None:
                raise StorageError(f"{self.dataset.root}: {layout.ARENA_FILE} does not say where the actions are whole")
        else:
            # Put each group of the dataset's columns to its joints in the environment's action.
            groups, places = self._wired(env)
            columns = self.dataset.columns(index, sorted({column for column, _, _ in groups.values()}))
            actions = np.zeros((self.dataset.episodes[index].num_steps, sum(map(len, places.values()))), np.float32)
            for key, (column, begin, end) in groups.items():
                if end > columns[column].shape[1]:
                    raise StorageError(
                        f"{self.dataset.root / layout.MODALITY_FILE}: action: {plain_text(key)}: end: must be at most "
                        f"{columns[column].shape[1]}, which is the size of '{plain_text(column)}', got {end}"
                    )
                if end - begin != len(places[key]):
                    message = f"the group '{key}' has {end - begin} numbers, the file names {len(places[key])} joints"
                    raise ConfigError(message, key="policy_joints_config_path")
                actions[:, places[key]] = columns[column][:, begin:end]
        if not np.isfinite(actions).all():
            file = self.dataset.episodes[index].data_file
            raise StorageError(f"{file}: the actions of episode {index} hold numbers that are not finite")
        return actions

    def _wired(self, env: Environment) -> tuple[Mapping[str, tuple[str, int, int]], Mapping[str, tuple[int, ...]]]:
        """Return the columns of each group of ``modality.json``, and its positions in the environment's action."""
        groups = groups_of(self.dataset.document(layout.MODALITY_FILE) or {}, "action")
        places, problems = wired_action(env.action_spec, list(groups), self._joints)
        refuse(problems)
        return groups, places


def _misfit(dataset: StoredDataset, actions: np.ndarray, env: Environment) -> str:
    return (
        f"the actions of {dataset.root} have shape {actions.shape}; the environment takes (num_steps, action_dim) = "
        f"(1 or more, {env.action_spec.shape[0]})"
    )
