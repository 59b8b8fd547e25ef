"""The policy that acts as one of LeRobot's does, which runs in a worker of LeRobot's own interpreter."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.config.options import read_options
from isaaclab_arena.distributed.devices import check_policy_device, resolve_policy_device
from isaaclab_arena.errors import ConfigError, PolicyError, Problem
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy_traits import ChunkTraits, Continuation, NetworkElsewhere, PolicyTraits
from isaaclab_arena.policy.action_chunking import ActionSource, ChunkPolicy
from isaaclab_arena.policy.lerobot.fitting import Inputs, fitted
from isaaclab_arena.policy.lerobot.history import ObservationHistory
from isaaclab_arena.policy.lerobot.network import NOTHING, LeRobotNetwork, versions_there
from isaaclab_arena.policy.lerobot.options import LeRobotPolicyCfg
from isaaclab_arena.policy.lerobot.pretrained import (
    KEY,
    check_statistics,
    policy_directory,
    read_features,
    read_num_actions,
    read_training_data,
    remembers,
)
from isaaclab_arena.policy.lerobot.shared_network import NetworkOnServer, SharedNetwork

CPU_SLOTS_PER_CALL = 4

_LOG = logging.getLogger(__name__)


class LeRobotPolicy(ChunkPolicy[LeRobotPolicyCfg]):
    """Plays the chunks of a policy of LeRobot, which looks at each env slot when its chunk is used up.

    Each env slot has its own chunk, observations and instruction, and what the policy remembers of its episode. The
    noise of a query is drawn from a seed of the episode's own stream, so that an episode's actions do not depend on
    which others share the query. A policy that remembers is asked in every control step.

    Args:
        config: Options of the job.
        network: The policy's process, where another policy with the same options has started it, or what stands for
            one in a policy server.

    Raises:
        ConfigError: If the policy cannot be loaded, or there is no such device.
    """

    name: ClassVar[str] = "lerobot"
    config_class: ClassVar[type | None] = LeRobotPolicyCfg
    traits = PolicyTraits(reproducible=True, serves_any_num_envs=True)

    def __init__(self, config: LeRobotPolicyCfg, *, network: LeRobotNetwork | NetworkOnServer | None = None) -> None:
        super().__init__(config)
        directory = policy_directory(config.pretrained)
        self._options = config
        self._features = read_features(directory)
        self._data = read_training_data(directory, config.dataset)
        self._shares_network = network is not None
        self._network = network or LeRobotNetwork(directory, _device(config), config)
        self._length = _chunk_length(self._network, config)
        self._filled_up_to: int | None = None
        self._history: ObservationHistory | None = None
        self._memories: dict[int, np.ndarray] = {}
        self._inputs: tuple[Environment, Inputs] | None = None
        said = self._network.description
        if said.device_type != "cpu" and config.slots_per_call is None and said.max_batch is None:
            because = (
                "a call has as many env slots as need a chunk, which other episodes decide; slots_per_call fixes that"
            )
            self.traits = PolicyTraits(serves_any_num_envs=True, plan_because=because)

    @classmethod
    def check_options(cls, config: LeRobotPolicyCfg) -> None:
        """Refuse what the files and the interpreter already show to be wrong, before anything is simulated.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """
        directory = policy_directory(config.pretrained)
        read_features(directory)
        check_statistics(directory)
        if remembers(directory) and (config.n_action_steps or 1) > 1:
            raise _several_steps_of_one_that_remembers(config)
        read_training_data(directory, config.dataset)
        _device(config)
        versions_there(config)

    @classmethod
    def check_fit(cls, config: LeRobotPolicyCfg, env: Environment) -> Connections:
        """Refuse an environment that lacks what the policy looks at, or that takes other actions.

        Raises:
            ConfigError: With everything that does not fit.
        """
        directory = policy_directory(config.pretrained)
        features, data = read_features(directory), read_training_data(directory, config.dataset)
        return fitted(features, data, config, env).connections(config, data, env, check_statistics(directory))

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the policy's files and the versions of LeRobot's packages; see `PolicyBase.content_sources`."""
        config = LeRobotPolicyCfg(**options)
        directory = policy_directory(config.pretrained)
        stated = {f"package {name} of {config.interpreter}": said for name, said in versions_there(config).items()}
        name = Path(config.pretrained).name
        return ContentSources(files={f"{KEY} {name}": directory}, stated=stated, checkpoint=str(directory))

    @classmethod
    def foreign_code(cls, config: LeRobotPolicyCfg) -> Sequence[Problem]:
        """Return a problem if an interpreter is named: it is a program."""
        if config.python is None:
            return ()
        return (Problem(f"'{config.python}' is a program that would be run", key="python"),)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that lacks what the policy looks at, or that takes other actions.

        Raises:
            ConfigError: With everything that does not fit.
        """
        self._inputs_of(env)
        if self._options.fps is None and self._data.fps is None:
            _LOG.warning(
                "%s: nobody says for how many control steps per second it was made, and the environment makes %g; fps "
                "says that this is right, dataset where it stands",
                self._options.pretrained,
                1 / env.control_dt,
            )

    def connections(self, env: Environment) -> Connections:
        """Return what the policy is shown, and what its action sets; see `StatesConnections`."""
        notes = check_statistics(policy_directory(self._options.pretrained))
        return self._inputs_of(env).connections(self._options, self._data, env, notes)

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return how many env slots every call of the network has, None for as many as need a chunk.

        Args:
            num_envs: Env slots of the environment as this policy sees it.
        """
        said = self._network.description
        if not said.takes_batches:
            return 1
        if self._options.slots_per_call is not None:
            return self._options.slots_per_call
        if torch.are_deterministic_algorithms_enabled():
            return num_envs
        return min(num_envs, CPU_SLOTS_PER_CALL) if said.device_type == "cpu" else said.max_batch

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Make calls of so many env slots from now on, None for what the options say."""
        self._filled_up_to = num_slots if self._network.description.takes_batches else None

    def with_own_memory(self) -> "LeRobotPolicy":
        """Return a policy that shares the process."""
        sharing = type(self)(self._options, network=self._network)
        sharing.fill_calls_up_to(self._filled_up_to)
        return sharing

    def network(self) -> SharedNetwork:
        """Return the process as what ranks can share; see `AsksNetwork`."""
        if not isinstance(self._network, LeRobotNetwork):
            raise PolicyError("this policy asks a process in a policy server, and has none of its own")
        return SharedNetwork(self._network)

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> "LeRobotPolicy":
        """Return a policy that asks a process in a policy server; see `AsksNetwork`.

        Raises:
            ConfigError: If an option is wrong.
        """
        policy = cls(read_options(LeRobotPolicyCfg, options, owner=cls.__name__), network=NetworkOnServer(network))
        # The connection is this policy's own.
        policy._shares_network = False
        return policy

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget what belongs to the episodes of the named env slots, None for all."""
        super().reset(env_ids)
        if env_ids is None:
            self._history, self._inputs, self._memories = None, None, {}

    @classmethod
    def stated_chunks(cls, config: LeRobotPolicyCfg) -> ChunkTraits:
        """Return how many actions are played and known at most; see `StatesChunks`.

        Raises:
            ConfigError: If the policy remembers.
        """
        directory = policy_directory(config.pretrained)
        _refuse_memory(is_kept=remembers(directory))
        known = read_num_actions(directory)
        return ChunkTraits(played=config.n_action_steps or known, predicted=known)

    def chunk_traits(self) -> ChunkTraits:
        """Return how many actions are played and known, and what a query shows; see `AnswersChunks`.

        Raises:
            ConfigError: If the policy remembers.
        """
        _refuse_memory(is_kept=self._network.description.remembers)
        shown = tuple(self._looks) if self._features.pictures else ()
        return ChunkTraits(played=self._length, predicted=self._network.description.num_actions, picture_steps=shown)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take up what some env slots show, for a policy that is shown earlier observations too."""
        if len(self._looks) > 1:
            self._history_for(env).push(observation, env_ids)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the network about some env slots; see `AnswersChunks`. Shape: (len(env_ids), predicted, action_dim)."""
        del going_on
        if len(self._looks) == 1:
            self._history_for(env).push(observation, env_ids)
        return self._asked(env, list(env_ids))

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start, and those whose next observation the network is shown."""
        return super().pictures_to_see(env, starting) if self._features.pictures else ()

    def close(self) -> None:
        """Stop the network's process, or close the connection to it, and let go of the environment."""
        self.reset()
        if not self._shares_network:
            self._network.close()

    @property
    def _num_played(self) -> int:
        return self._length

    def _shown_steps(self, env: Environment) -> Sequence[int]:
        del env
        return self._looks

    @property
    def _looks(self) -> range:
        """Which observations a query shows: 0 is the one at that step, -1 the one before it."""
        return range(1 - self._features.num_observations, 1)

    def _asked(self, env: Environment, env_ids: list[int]) -> torch.Tensor:
        """Return all actions that the network knows for some env slots. Shape: (len(env_ids), n, action_dim)."""
        words = [self._words_for(env, env_id) for env_id in env_ids]
        seeds = [self._draw_seed(env_id) for env_id in env_ids]
        size = self._filled_up_to or self.slots_per_call(env.num_envs)
        frames = self._history_for(env).frames(env_ids)
        memories = [self._memories.get(env_id, NOTHING) for env_id in env_ids]
        acted = self._network.actions(frames, words, seeds, memories, slots_per_call=size)
        self._memories.update(zip(env_ids, acted.memories, strict=False))
        columns = self._options.action_columns
        return torch.from_numpy(acted.actions if columns is None else acted.actions[..., list(columns)])

    def _restart(self, source: ActionSource, env_ids: torch.Tensor) -> None:
        super()._restart(source, env_ids)
        for env_id in env_ids.tolist():
            self._memories.pop(env_id, None)
        if self._history is not None:
            self._history.restart(env_ids.tolist())

    def _history_for(self, env: Environment) -> ObservationHistory:
        if self._history is None:
            self._history = ObservationHistory(self._inputs_of(env), self._features.num_observations)
        return self._history

    def _inputs_of(self, env: Environment) -> Inputs:
        if self._inputs is None or self._inputs[0] is not env:
            self._inputs = env, fitted(self._features, self._data, self._options, env)
        return self._inputs[1]


def _device(config: LeRobotPolicyCfg) -> torch.device:
    check_policy_device(policy_device_id=config.policy_device_id, policy_device=config.policy_device)
    return resolve_policy_device(policy_device_id=config.policy_device_id, policy_device=config.policy_device)


def _chunk_length(network: LeRobotNetwork | NetworkOnServer, config: LeRobotPolicyCfg) -> int:
    """Return how many actions are played before the policy looks again.

    Raises:
        ConfigError: If it was saved with fewer than the options want.
    """
    said = network.description
    saved = said.num_actions
    wanted = config.n_action_steps or saved
    if wanted > saved:
        network.close()
        if said.remembers:
            raise _several_steps_of_one_that_remembers(config)
        message = f"is {wanted}, and the policy was saved with {saved}"
        raise ConfigError(Problem(message, key="n_action_steps"))
    return wanted


def _several_steps_of_one_that_remembers(config: LeRobotPolicyCfg) -> ConfigError:
    message = f"is {config.n_action_steps}, and a policy that remembers is asked in every control step; leave it out"
    return ConfigError(Problem(message, key="n_action_steps"))


def _refuse_memory(*, is_kept: bool) -> None:
    """Refuse to let others play chunks of a policy that remembers, and has none.

    Raises:
        ConfigError: If it does.
    """
    if is_kept:
        message = "remembers its answers, and so is asked in every control step, which cannot be late"
        raise ConfigError(Problem(message, key=f"policy_config_dict.{KEY}"))
