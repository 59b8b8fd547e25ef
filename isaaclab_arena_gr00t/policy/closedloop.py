"""Run the closed loop of a policy that asks a model for chunks of actions, wherever the model runs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, Problem
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy_traits import ChunkTraits, Continuation, PolicyTraits
from isaaclab_arena.policy.action_chunking import ActionSource, ChunkPolicy
from isaaclab_arena_gr00t.config import (
    JOINT_FILES,
    YAML_OPTION,
    ClosedloopPolicyArgs,
    Gr00tClosedloopPolicyConfig,
    check_args,
    named_by_option,
    read_policy_config,
)
from isaaclab_arena_gr00t.joint_files import read_joint_files
from isaaclab_arena_gr00t.modality import Dimensions, Modality, model_interface
from isaaclab_arena_gr00t.observations import action_chunks, as_arrays, continued, model_observation, zero_observation
from isaaclab_arena_gr00t.policy.frame_history import ShownHistory
from isaaclab_arena_gr00t.policy.query_count import QueryCount
from isaaclab_arena_gr00t.policy.temporal_ensembling import EnsembledChunks
from isaaclab_arena_gr00t.wiring import Wiring, wired

ArgsT = TypeVar("ArgsT", bound=ClosedloopPolicyArgs)


class ClosedloopPolicy(ChunkPolicy[ArgsT], Generic[ArgsT]):
    """Asks a vision-language-action model for chunks of actions, for each env slot when its chunk is used up.

    Only env slots that need a chunk are part of a query. Each env slot has its own instruction. The noise of the
    model's sampler comes from the episode's own stream, one seed per query, so that an episode's actions do not depend
    on which others share a query. A model that is shown earlier steps is shown those of the env slot's own episode,
    and before the first of them the first.

    Subclasses connect the model: they define `query` and `modality_config`.

    Args:
        config: Options of the job.

    Raises:
        ConfigError: If the YAML file or a file that it names is wrong.
    """

    config_class: ClassVar[type | None] = ClosedloopPolicyArgs
    traits = PolicyTraits(reproducible=True, serves_any_num_envs=True)

    def __init__(self, config: ArgsT) -> None:
        super().__init__(config)
        check_args(config)
        self.args = config
        self.policy_config = self.settings_of(config)
        self.count = QueryCount()
        self._filled_up_to: int | None = None
        self._files = read_joint_files(self.policy_config)
        self._history: ShownHistory | None = None
        self._wired: tuple[Environment, Wiring] | None = None

    @property
    def _takes_tensors(self) -> bool:
        """Whether `query` takes tensors, where the observation is, and not arrays."""
        return False

    @property
    def _fills_calls(self) -> bool:
        """Whether this policy fills calls up, and not a server that gathers those of several ranks."""
        return True

    @abstractmethod
    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Ask the model.

        Args:
            observation: ``video``: key to (n, video steps, height, width, 3), uint8; ``state``: key to (n, state
                steps, size), float32; ``language``: key to a list of n lists of one text. See `_takes_tensors`.
            noise_seeds: One number per env slot from which its noise is to be drawn.

        Returns:
            Action key to (n, horizon, size), float32, in physical units.
        """

    def _continued_query(
        self, observation: dict[str, Any], noise_seeds: list[int], going_on: Mapping[str, Any]
    ) -> Mapping[str, np.ndarray]:
        """Ask the model for actions that go on from others, where `chunk_traits` say that it can; see `query`.

        Args:
            observation: See `query`.
            noise_seeds: See `query`.
            going_on: See `isaaclab_arena_gr00t.observations.continued`.

        Raises:
            PolicyError: If it cannot.
        """
        del observation, noise_seeds, going_on
        raise PolicyError(f"{self.name} cannot be given actions to go on from")

    @abstractmethod
    def modality_config(self) -> Mapping[str, Modality]:
        """Return the model's inputs and outputs: ``video``, ``state``, ``action`` and ``language``."""

    def dimensions(self) -> Dimensions | None:
        """Return the size of each state and action key, None where the model does not say; then it is tried out."""
        return None

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return how many env slots every query has as the options say it, None for as many as need a chunk.

        Args:
            num_envs: Env slots of the environment as this policy sees it.
        """
        if self.args.rows_per_query is not None:
            return self.args.rows_per_query
        # With --deterministic the policy sees an environment of a fixed number of env slots.
        return num_envs if torch.are_deterministic_algorithms_enabled() else None

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Ask queries of so many env slots from now on, None for what the options say."""
        self._filled_up_to = num_slots

    @classmethod
    def settings_of(cls, config: Any) -> Gr00tClosedloopPolicyConfig:
        """Return what the YAML file of a job's options says.

        Raises:
            ConfigError: With every problem of the file.
        """
        return read_policy_config(config.policy_config_yaml_path)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the YAML file and the joint files that it names; see `PolicyBase.content_sources`."""
        settings = cls.settings_of(cls.config_class(**options)) if cls.config_class is not None else None
        paths = {YAML_OPTION: options[YAML_OPTION]}
        paths |= {key: getattr(settings, key) for key in JOINT_FILES}
        return ContentSources(files={f"{key} {Path(path).name}": Path(path) for key, path in paths.items() if path})

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse a wrong YAML file, before anything is simulated.

        Raises:
            ConfigError: With every problem.
        """
        check_args(config)
        try:
            cls._check_settings(cls.settings_of(config), config)
        except ConfigError as error:
            raise named_by_option(error, config.policy_config_yaml_path) from error

    @classmethod
    def _check_settings(cls, settings: Gr00tClosedloopPolicyConfig, args: Any) -> None:
        """Refuse wrong settings of the YAML file, as far as they can be checked without model and environment.

        Args:
            settings: What the file says.
            args: Options of the job, which take precedence.

        Raises:
            ConfigError: With every problem.
        """
        del args
        read_joint_files(settings)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that lacks inputs of the model, before its first step.

        Raises:
            ConfigError: With everything that does not fit.
        """
        wiring = self._wiring_of(env)
        if self.dimensions() is None:
            self._try_out(env, wiring)

    def connections(self, env: Environment) -> Connections:
        """Return what the model is shown, and what its actions set; see `StatesConnections`."""
        return self._wiring_of(env).connections(env, source=self.args.policy_config_yaml_path)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the remaining chunks of the named env slots; with None also instructions and noise streams."""
        super().reset(env_ids)
        if env_ids is None:
            self._history, self._wired = None, None

    def set_task_description(self, task_description: str | None) -> str | None:
        """Say what to do in env slots that start without words of their own; the YAML file's where nothing is said."""
        return super().set_task_description(task_description or self.policy_config.language_instruction or None)

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as `get_action` does, and go on in the named env slots alone; see `ActsInSome`."""
        source = self._source_for(env, all_active=True)
        self.look(env, observation, env_ids)
        acting = torch.zeros(env.num_envs, dtype=torch.bool)
        acting[list(env_ids)] = True
        used_up = torch.nonzero(source.needs_chunk() & acting).flatten()
        if len(used_up):
            self.count.slots_of_all += env.num_envs
            length = self._num_played
            source = source.refilled(used_up, self._chunks(env, observation, used_up.tolist(), length=length))
        action, self._source = source.popped(acting)
        return action.to(env.device, non_blocking=True)

    @classmethod
    def stated_chunks(cls, config: Any) -> ChunkTraits:
        """Return how many actions are played and predicted; see `StatesChunks`.

        Raises:
            ConfigError: If predictions of several queries are averaged.
        """
        _refuse_averages(config)
        settings = cls.settings_of(config)
        return ChunkTraits(played=settings.action_chunk_length, predicted=settings.action_horizon)

    def chunk_traits(self) -> ChunkTraits:
        """Return how many actions are played and predicted, and what a query shows; see `AnswersChunks`.

        Raises:
            ConfigError: If predictions of several queries are averaged.
        """
        _refuse_averages(self.args)
        settings, model = self.policy_config, model_interface(self.modality_config(), self.dimensions())
        return ChunkTraits(
            played=settings.action_chunk_length,
            predicted=settings.action_horizon,
            picture_steps=model.video_steps if model.video_keys else (),
        )

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take up what some env slots show; once in every control step that they make."""
        self._history_for(env).push(observation, env_ids)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the model about some env slots; see `AnswersChunks`. Shape: (len(env_ids), predicted, action_dim)."""
        return self._chunks(env, observation, env_ids, going_on, length=self.policy_config.action_horizon)

    def close(self) -> None:
        """Log how many queries were saved by asking for single env slots, and release the environment."""
        count, self.count = self.count, QueryCount()
        count.log(self.name)
        self.reset()

    def _restart(self, source: ActionSource, env_ids: torch.Tensor) -> None:
        """Drop the chunks and the history of these env slots."""
        super()._restart(source, env_ids)
        if self._history is not None:
            self._history.restart(env_ids)

    def _chunks(
        self,
        env: Environment,
        observation: Observation,
        env_ids: Sequence[int],
        going_on: Continuation | None = None,
        *,
        length: int,
    ) -> torch.Tensor:
        """Return new chunks for some env slots. Shape: (len(env_ids), length, action_dim)."""
        wiring, history = self._wiring_of(env), self._history_for(env)
        seeds = [self._draw_seed(env_id) for env_id in env_ids]
        size = self._filled_up_to or self.slots_per_call(env.num_envs) or len(env_ids)
        size = size if self._fills_calls else len(env_ids)
        parts = []
        for first in range(0, len(env_ids), size):
            places = list(range(first, min(first + size, len(env_ids))))
            # Padding is dropped; it repeats an env slot, so that the model accepts it.
            num_missing = size - len(places)
            asked = places + places[:1] * num_missing
            slots = [env_ids[place] for place in asked]
            part_seeds = [seeds[place] for place in places] + [0] * num_missing
            ahead = None if going_on is None else going_on.of(asked)
            shown = model_observation(history.shown(observation, slots), wiring, [*map(self._instruction, slots)])
            answer = self._answer(shown, part_seeds, continued(ahead, wiring))
            self.count.queries += 1
            self.count.slots_asked += size
            chunks = action_chunks(answer, wiring, num_slots=size, chunk_length=length)
            parts.append(chunks[: len(places)])
            self.count.slots_needed += len(places)
        return torch.cat(parts)

    def _answer(
        self, observation: dict[str, Any], seeds: list[int], going_on: Mapping[str, Any] | None = None
    ) -> Mapping[str, np.ndarray]:
        shown = observation if self._takes_tensors else as_arrays(observation)
        return self.query(shown, seeds) if going_on is None else self._continued_query(shown, seeds, going_on)

    def _instruction(self, env_id: int) -> str:
        words = self._instructions.get(env_id) or self.task_description or self.policy_config.language_instruction
        if not words:
            raise PolicyError(
                f"env slot {env_id} has no instruction; give language_instruction in the job or in "
                f"{self.args.policy_config_yaml_path}"
            )
        return words

    def _draw_seed(self, env_id: int, entropy: int | None = None) -> int:
        """Return the seed of an env slot's next query: from its episode's stream, else from the YAML file's seed."""
        return super()._draw_seed(env_id, self.policy_config.seed if entropy is None else entropy)

    @property
    def _num_played(self) -> int:
        return self.policy_config.action_chunk_length

    def _shown_steps(self, env: Environment) -> Sequence[int]:
        return self._wiring_of(env).video_steps

    def _empty_source(self, num_envs: int, action_dim: int, device: torch.device) -> ActionSource:
        coeff = self.args.temporal_ensemble_coeff
        if coeff is None:
            return super()._empty_source(num_envs, action_dim, device)
        shape: dict[str, Any] = {"chunk_length": self._num_played, "action_dim": action_dim, "device": device}
        return EnsembledChunks.empty(num_envs, coeff=coeff, **shape)

    def _history_for(self, env: Environment) -> ShownHistory:
        wiring, history = self._wiring_of(env), self._history
        if history is None or (history.num_envs, history.wiring) != (env.num_envs, wiring):
            self._history = history = ShownHistory(wiring, env.num_envs)
        return history

    def _wiring_of(self, env: Environment) -> Wiring:
        if self._wired is None or self._wired[0] is not env:
            model = model_interface(self.modality_config(), self.dimensions())
            file = self.args.policy_config_yaml_path
            self._wired = (env, wired(env, model, self.policy_config, self._files, file=file))
        return self._wired[1]

    def _try_out(self, env: Environment, wiring: Wiring) -> None:
        """Ask once for an env slot of zeros, to learn the sizes of a model that does not state them."""
        size = self.slots_per_call(env.num_envs) or 1
        observation = zero_observation(env, wiring)
        history = ShownHistory(wiring, num_envs=1)
        history.push(observation, [0])
        nothing = model_observation(history.shown(observation, [0] * size), wiring, ["nothing"] * size)
        try:
            answer = self._answer(nothing, [0] * size)
            action_chunks(answer, wiring, num_slots=size, chunk_length=self.policy_config.action_chunk_length)
        except torch.OutOfMemoryError:
            raise
        except (PolicyError, ValueError, AssertionError, RuntimeError) as error:
            # Models report a wrong size in this way: NVIDIA's strict mode asserts, a matrix product raises.
            message = f"the model does not take what this environment gives: {type(error).__name__}: {error}"
            raise ConfigError(Problem(message, file=self.args.policy_config_yaml_path)) from error


def _refuse_averages(args: ClosedloopPolicyArgs) -> None:
    if args.temporal_ensemble_coeff is not None:
        message = "averages the answers to several queries, which cannot be late; leave it out"
        raise ConfigError(Problem(message, key="policy_config_dict.temporal_ensemble_coeff"))
