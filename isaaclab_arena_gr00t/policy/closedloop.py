"""The closed loop of a policy that asks a model for chunks of actions, wherever the model runs."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import ChunkTraits, Continuation, PolicyTraits
from isaaclab_arena.interfaces.specs import pictures_of
from isaaclab_arena.policy.action_chunking import ChunkPolicy, FrameHistory
from isaaclab_arena_gr00t import config as gr00t_config
from isaaclab_arena_gr00t import observations

# Below the program's own logger, so that it is in the log of the rank.
logger = logging.getLogger("isaaclab_arena.gr00t")


@dataclass(kw_only=True)
class QueryCount:
    """The number of model queries, and of env slots in them."""

    queries: int = 0
    slots_needed: int = 0  # env slots that needed a chunk
    slots_asked: int = 0  # env slots in the queries, padding included
    slots_of_all: int = 0  # env slots if each query asked for all of them


class ShownHistory:
    """The model's inputs of every env slot, at the steps of its wiring."""

    def __init__(self, wiring: observations.Wiring, num_envs: int) -> None:
        self.wiring, self.num_envs = wiring, num_envs
        # An input of the present step only needs no history.
        self._video, self._state = (
            None if steps == gr00t_config.PRESENT else FrameHistory(steps, num_envs)
            for steps in (wiring.video_steps, wiring.state_steps)
        )

    def restart(self, env_ids: torch.Tensor) -> None:
        """Forget the earlier inputs of these env slots."""
        for history in (self._video, self._state):
            if history is not None:
                history.restart(env_ids)

    def push(self, observation: Observation, stepping: Sequence[int]) -> None:
        """Add the inputs of the env slots that make a step; call it once per control step, even without a query."""
        if self._video is not None:
            # Only the pictures that a later query shows were announced.
            some = pictures_of(observation[observations.CAMERA_GROUP][next(iter(self.wiring.cameras.values()))])
            moving = set(stepping)
            drawn = [env_id for env_id in some.env_ids if env_id in moving]
            self._video.push(observations.pictures(observation, self.wiring, drawn) if drawn else {}, drawn, stepping)
        if self._state is not None:
            self._state.push(observations.states(observation, self.wiring, list(stepping)), stepping, stepping)

    def shown(
        self, observation: Observation, env_ids: Sequence[int], instructions: Sequence[str], *, as_tensors: bool
    ) -> dict[str, Any]:
        """Return the question about `env_ids`, which may repeat; `observation` is the one that was pushed last."""
        slots = list(env_ids)
        video, state = (
            observations.one_step(read(observation, self.wiring, slots)) if history is None else history.frames(slots)
            for read, history in ((observations.pictures, self._video), (observations.states, self._state))
        )
        asked = observations.model_observation(video, state, self.wiring, instructions)
        if not as_tensors:
            # One transfer brings all of them to the CPU.
            places = [(modality, key) for modality in ("video", "state") for key in asked[modality]]
            arrays = on_cpu([asked[modality][key] for modality, key in places])
            for (modality, key), values in zip(places, arrays, strict=True):
                asked[modality][key] = values.contiguous().numpy()
        return asked


# Run the closed loop of a policy that asks a model for chunks of actions, in this process or another.

ArgsT = TypeVar("ArgsT", bound=gr00t_config.ClosedloopPolicyArgs)

_AVERAGES = "averages the answers to several queries, which cannot be late; leave it out"
_AVERAGES_OPTION = "policy_config_dict.temporal_ensemble_coeff"


class ClosedloopPolicy(ChunkPolicy[ArgsT], Generic[ArgsT]):
    """Asks a vision-language-action model for chunks of actions, for each env slot when its chunk is used up."""

    # Subclasses connect the model: they define `query` and `modality_config`. A query contains only env slots that need
    # a chunk, each with its own instruction and history. The noise seed comes from the episode's own stream, so that
    # the actions of an episode do not depend on the others in the query.

    config_class: ClassVar[type | None] = gr00t_config.ClosedloopPolicyArgs
    traits = PolicyTraits(reproducible=True, serves_any_num_envs=True, pictures="announced")
    _takes_tensors = False  # True if `query` takes tensors on the observation's device instead of arrays
    # True if this policy pads queries itself, rather than a server that gathers the queries of several ranks.
    _fills_calls = True

    def __init__(self, config: ArgsT) -> None:
        super().__init__(config)
        gr00t_config.check_args(config)
        self.args = config
        self.policy_config = self.settings_of(config)
        self._num_played, self._averaging = self.policy_config.action_chunk_length, config.temporal_ensemble_coeff
        self.count = QueryCount()
        self._files = gr00t_config.read_joint_files(self.policy_config)
        self._history: ShownHistory | None = None
        self._wired: tuple[Environment, observations.Wiring] | None = None

    # `query` gets ``video``: key to (n, video steps, height, width, 3), uint8; ``state``: key to (n, state steps,
    # size), float32; ``language``: key to n lists of one text; and one noise seed per env slot.
    @abstractmethod
    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Ask the model: return each action key's (n, horizon, size), float32, in physical units."""

    # `going_on` has planned ``actions`` by key, each (n, predicted, size), and ``weights`` (n, predicted), float32.
    def _continued_query(
        self, observation: dict[str, Any], noise_seeds: list[int], going_on: Mapping[str, Any]
    ) -> Mapping[str, np.ndarray]:
        """Ask as `query` does, for actions that continue `going_on`; PolicyError if unsupported."""
        del observation, noise_seeds, going_on
        raise PolicyError(f"{self.name} cannot be given actions to go on from")

    @abstractmethod
    def modality_config(self) -> Mapping[str, gr00t_config.Modality]:
        """Return the model's inputs and outputs: ``video``, ``state``, ``action`` and ``language``."""

    def dimensions(self) -> gr00t_config.Dimensions | None:
        """Return the size of each state and action key; None if unknown, then `check_environment` tries a query."""
        return None

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return the fixed number of env slots per query, None for as many as need a chunk."""
        if self.args.rows_per_query is not None:
            return self.args.rows_per_query
        # With --deterministic the policy sees an environment of a fixed number of env slots.
        return num_envs if torch.are_deterministic_algorithms_enabled() else None

    @classmethod
    def settings_of(cls, config: Any) -> gr00t_config.Gr00tClosedloopPolicyConfig:
        """Return the settings of a job's YAML file; ConfigError with every problem of the file."""
        return gr00t_config.read_policy_config(config.policy_config_yaml_path)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the YAML file and the joint files that it names; see `PolicyBase.content_sources`."""
        settings = cls.settings_of(cls.config_class(**options)) if cls.config_class is not None else None
        paths = {gr00t_config.YAML_OPTION: options[gr00t_config.YAML_OPTION]}
        paths |= {key: getattr(settings, key) for key in gr00t_config.JOINT_FILES}
        return ContentSources(files={f"{key} {Path(path).name}": Path(path) for key, path in paths.items() if path})

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse a wrong YAML file before anything is simulated: ConfigError with every problem."""
        gr00t_config.check_args(config)
        with gr00t_config.named_by_option(gr00t_config.YAML_OPTION, config.policy_config_yaml_path):
            gr00t_config.read_joint_files(cls.settings_of(config))

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that lacks inputs of the model, before its first step; ConfigError names them."""
        wiring = self._wiring_of(env)
        if self.dimensions() is not None:
            return

        # The model does not state its sizes, so check them with a query for an env slot of zeros.
        size = self.slots_per_call(env.num_envs) or 1
        wanted: Mapping[str, set[str]] = {
            observations.CAMERA_GROUP: {*wiring.cameras.values()},
            observations.STATE_GROUP: {*wiring.state_terms},
        }
        observation: Observation = {}
        for group, names in wanted.items():
            specs: Any = env.observation_spec.get(group, {})
            observation[group] = {name: torch.zeros((1, *specs[name].shape), dtype=specs[name].dtype) for name in names}
        history = ShownHistory(wiring, num_envs=1)
        history.push(observation, [0])
        words = ["nothing"] * size
        nothing = history.shown(observation, [0] * size, words, as_tensors=self._takes_tensors)
        try:
            answer = self.query(nothing, [0] * size)
            observations.action_chunks(answer, wiring, num_slots=size, chunk_length=self._num_played)
        except torch.OutOfMemoryError:
            raise
        except (PolicyError, ValueError, AssertionError, RuntimeError) as error:
            # Models report a wrong size in this way: NVIDIA's strict mode asserts, a matrix product raises.
            message = f"the model does not take what this environment gives: {type(error).__name__}: {error}"
            raise ConfigError(message, file=self.args.policy_config_yaml_path) from error

    def connections(self, env: Environment) -> Connections:
        """Return the environment's entries that the model sees and sets; see `PolicyBase.connections`."""
        return self._wiring_of(env).connections(env, source=self.args.policy_config_yaml_path)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the remaining chunks of the named env slots; with None also instructions and noise streams."""
        super().reset(env_ids)
        if env_ids is None:
            self._history, self._wired = None, None

    def set_task_description(self, task_description: str | None) -> str | None:
        """Set the instruction of env slots without one of their own, by default the YAML file's."""
        return super().set_task_description(task_description or self.policy_config.language_instruction or None)

    def _next_chunks(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        # The log compares the queries with queries of all env slots.
        self.count.slots_of_all += env.num_envs
        # A subclass may withdraw or replace `chunks`, for callers that play chunks themselves.
        return ClosedloopPolicy.chunks(self, env, observation, env_ids, length=self._num_played)

    @classmethod
    def stated_chunks(cls, config: Any) -> ChunkTraits:
        """Return the numbers of actions played and predicted; ConfigError if predictions are averaged."""
        if config.temporal_ensemble_coeff is not None:
            raise ConfigError(_AVERAGES, key=_AVERAGES_OPTION)
        settings = cls.settings_of(config)
        return ChunkTraits(played=settings.action_chunk_length, predicted=settings.action_horizon)

    def chunk_traits(self) -> ChunkTraits:
        """Return the chunk lengths and the steps of a query's pictures; ConfigError if predictions are averaged."""
        if self.args.temporal_ensemble_coeff is not None:
            raise ConfigError(_AVERAGES, key=_AVERAGES_OPTION)
        model = gr00t_config.model_interface(self.modality_config(), self.dimensions())
        return ChunkTraits(
            played=self._num_played,
            predicted=self.policy_config.action_horizon,
            picture_steps=model.video_steps if model.video_keys else (),
        )

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start, and those whose next observation a query shows."""
        # Before the first episode there is no query to come, and the environment need not fit yet.
        if self._player is not None and self._player.num_envs == env.num_envs:
            self._shown_steps = self._wiring_of(env).video_steps
        return super().pictures_to_see(env, starting)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Add the inputs of some env slots; call it once in every control step that they make."""
        self._history_for(env).push(observation, env_ids)

    def close(self) -> None:
        """Log the number of queries saved by asking for single env slots, and release the environment."""
        count, self.count = self.count, QueryCount()
        if count.queries:
            logger.info(
                "%s: %d queries for %d env slots, %d with those that fill up; "
                "all env slots each time would have been %d",
                self.name,
                count.queries,
                count.slots_needed,
                count.slots_asked,
                count.slots_of_all,
            )
        self.reset()

    def _restart(self, env_ids: torch.Tensor) -> None:
        super()._restart(env_ids)
        if self._history is not None:
            self._history.restart(env_ids)

    def chunks(
        self,
        env: Environment,
        observation: Observation,
        env_ids: Sequence[int],
        going_on: Continuation | None = None,
        *,
        length: int | None = None,
    ) -> torch.Tensor:
        """Ask the model about some env slots; see `PolicyBase`. Shape: (len(env_ids), length, action_dim)."""
        # None of ``length`` is for all predicted actions.
        length = self.policy_config.action_horizon if length is None else length
        wiring, history = self._wiring_of(env), self._history_for(env)
        # A seed comes from the episode's stream, without one from the YAML file's seed.
        seeds = [self._draw_seed(env_id, self.policy_config.seed) for env_id in env_ids]
        size = self._filled_up_to or self.slots_per_call(env.num_envs) or len(env_ids)
        size = size if self._fills_calls else len(env_ids)

        # Ask in queries of `size` env slots.
        parts = []
        for first in range(0, len(env_ids), size):
            places = list(range(first, min(first + size, len(env_ids))))
            # Padding repeats an env slot, so that the model accepts it; its answers are dropped.
            num_missing = size - len(places)
            asked = places + places[:1] * num_missing
            slots = [env_ids[place] for place in asked]
            part_seeds = [seeds[place] for place in places] + [0] * num_missing
            words = [
                self._instructions.get(slot) or self.task_description or self.policy_config.language_instruction
                for slot in slots
            ]
            unsaid = [slot for slot, text in zip(slots, words, strict=True) if not text]
            if unsaid:
                raise PolicyError(
                    f"env slot {unsaid[0]} has no instruction; give language_instruction in the job or in "
                    f"{self.args.policy_config_yaml_path}"
                )
            shown = history.shown(observation, slots, words, as_tensors=self._takes_tensors)
            if going_on is None:
                answer = self.query(shown, part_seeds)
            else:
                ahead = going_on.of(asked)
                actions = observations.to_groups(ahead.actions, wiring.action)
                planned = {key: values.numpy() for key, values in actions.items()}
                continued = {"actions": planned, "weights": ahead.weights.numpy()}
                answer = self._continued_query(shown, part_seeds, continued)

            # Keep the chunks without those of the padding.
            self.count.queries += 1
            self.count.slots_asked += size
            chunks = observations.action_chunks(answer, wiring, num_slots=size, chunk_length=length)
            parts.append(chunks[: len(places)])
            self.count.slots_needed += len(places)
        return torch.cat(parts)

    def _history_for(self, env: Environment) -> ShownHistory:
        wiring, history = self._wiring_of(env), self._history
        if history is None or (history.num_envs, history.wiring) != (env.num_envs, wiring):
            self._history = history = ShownHistory(wiring, env.num_envs)
        return history

    def _wiring_of(self, env: Environment) -> observations.Wiring:
        if self._wired is None or self._wired[0] is not env:
            model = gr00t_config.model_interface(self.modality_config(), self.dimensions())
            file = self.args.policy_config_yaml_path
            self._wired = (env, observations.wired(env, model, self.policy_config, self._files, file=file))
        return self._wired[1]
