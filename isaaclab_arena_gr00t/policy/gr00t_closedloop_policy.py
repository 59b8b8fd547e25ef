"""Policies that ask a model for chunks of actions: their closed loop, and the one that runs a GR00T model."""

import dataclasses
import importlib
import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources, read_options
from isaaclab_arena.distributed.devices import resolve_policy_device
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, did_you_mean, placed, problems_into, refuse
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy_traits import ChunkTraits, Continuation, Entries, NetworkElsewhere, PolicyTraits
from isaaclab_arena.policy.action_chunking import ChunkPolicy
from isaaclab_arena_gr00t import config as gr00t_config
from isaaclab_arena_gr00t import observations
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs, Gr00tClosedloopPolicyConfig

# Below the program's own logger, so that it is in the log of the rank.
logger = logging.getLogger("isaaclab_arena.gr00t")

# The closed loop of a policy that asks a model for chunks of actions, wherever the model runs.

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
        self._files = gr00t_config.read_joint_files(self.policy_config)
        # The environment, and its observations as the model's inputs.
        self._seen: tuple[Environment, observations.ModelInputs] | None = None

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
        raise PolicyError(f"{self.name} cannot continue given actions")

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
        wiring = self._inputs_of(env).wiring
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
        inputs = observations.ModelInputs(wiring, num_envs=1)
        inputs.push(observation, [0])
        nothing = inputs.of(observation, [0] * size, ["nothing"] * size, as_tensors=self._takes_tensors)
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
        return self._inputs_of(env).wiring.connections(env, source=self.args.policy_config_yaml_path)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the remaining chunks of the named env slots; with None also instructions and noise streams."""
        super().reset(env_ids)
        if env_ids is None:
            self._seen = None

    def set_task_description(self, task_description: str | None) -> str | None:
        """Set the instruction of env slots without one of their own, by default the YAML file's."""
        return super().set_task_description(task_description or self.policy_config.language_instruction or None)

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
            self._shown_steps = self._inputs_of(env).wiring.video_steps
        return super().pictures_to_see(env, starting)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin episodes, also in another environment than was checked."""
        if self._seen is not None:
            self._inputs_of(env)
        super().start_episodes(env, starts)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Add the inputs of some env slots; call it once in every control step that they make."""
        self._inputs_of(env).push(observation, env_ids)

    def close(self) -> None:
        """Release the environment."""
        self.reset()

    def _restart(self, env_ids: torch.Tensor) -> None:
        super()._restart(env_ids)
        if self._seen is not None:
            self._seen[1].restart(env_ids)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the model about some env slots; see `PolicyBase`. Shape: (len(env_ids), horizon, action_dim)."""
        return self._asked(env, observation, env_ids, going_on, length=self.policy_config.action_horizon)

    def _next_chunks(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        # Steps that are never played may be missing, or no numbers.
        return self._asked(env, observation, env_ids, length=self._num_played)

    def _asked(
        self,
        env: Environment,
        observation: Observation,
        env_ids: Sequence[int],
        going_on: Continuation | None = None,
        *,
        length: int,
    ) -> torch.Tensor:
        """Ask the model about some env slots. Shape: (len(env_ids), length, action_dim)."""
        inputs = self._inputs_of(env)
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
            default = self.task_description or self.policy_config.language_instruction or None
            said = [self._instructions.get(slot) for slot in slots]
            words = [default if text is None else text for text in said]
            unsaid = [slot for slot, text in zip(slots, words, strict=True) if text is None]
            if unsaid:
                raise PolicyError(
                    f"env slot {unsaid[0]} has no instruction; give language_instruction in the job or in "
                    f"{self.args.policy_config_yaml_path}"
                )
            shown = inputs.of(observation, slots, [text or "" for text in words], as_tensors=self._takes_tensors)
            if going_on is None:
                answer = self.query(shown, part_seeds)
            else:
                ahead = going_on.of(asked)
                actions = observations.to_groups(ahead.actions, inputs.wiring.action)
                planned = {key: values.numpy() for key, values in actions.items()}
                continued = {"actions": planned, "weights": ahead.weights.numpy()}
                answer = self._continued_query(shown, part_seeds, continued)

            # Keep the chunks without those of the padding.
            chunks = observations.action_chunks(answer, inputs.wiring, num_slots=size, chunk_length=length)
            parts.append(chunks[: len(places)])
        return torch.cat(parts)

    def _inputs_of(self, env: Environment) -> observations.ModelInputs:
        """Return the model's inputs in an environment; ConfigError if it lacks one of them."""
        if self._seen is None or self._seen[0] is not env:
            model = gr00t_config.model_interface(self.modality_config(), self.dimensions())
            file = self.args.policy_config_yaml_path
            wiring = observations.wired(env, model, self.policy_config, self._files, file=file)
            inputs = observations.ModelInputs(wiring, env.num_envs)
            # A view of the same env slots keeps what they have shown.
            if self._seen is not None and (self._seen[1].num_envs, self._seen[1].wiring) == (env.num_envs, wiring):
                inputs = self._seen[1]
            self._seen = env, inputs
        return self._seen[1]


# Ask a GR00T model in the run's policy server: the served network, and its stand-in on a rank.

NOISE_SEEDS = "noise_seeds"
"""The option of a query with each env slot's noise seed, if the model package supports it."""

CONTINUED = "continued"
"""The option of a query with the actions that its answers go on from, if the model package supports it."""

_ARRAYS = ("video", "state")
_GOING_ON = "continued_action"
_WEIGHTS = "continued_weights"


@dataclass(frozen=True, kw_only=True, eq=False)
class Gr00tNetwork:
    """A loaded model as a `Network` that ranks can share."""

    # Takes an observation, one noise seed per env slot, and the actions to continue, None for none.
    ask: Callable[[dict[str, Any], list[int], Mapping[str, Any] | None], Mapping[str, np.ndarray]]
    about: Mapping[str, Any]

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the actions; see `Network.answer`."""
        observation: dict[str, Any] = {"video": {}, "state": {}, "language": {}}
        planned: dict[str, Any] = {}
        for name, values in entries.items():
            modality, _, key = name.partition(".")
            if modality in _ARRAYS:
                observation[modality][key] = values
            elif modality == "language":
                observation[modality][key] = [[text] for text in values]
            elif modality == _GOING_ON:
                planned[key] = values
        # Without planned actions the model begins its chunks anew.
        going_on = {"actions": planned, "weights": entries[_WEIGHTS]} if planned else None
        return self.ask(observation, [int(seed) for seed in entries[NOISE_SEEDS]], going_on)


class ServedModel:
    """A stand-in for the ``Gr00tPolicy`` in a policy server."""

    takes_tensors = False

    def __init__(self, network: NetworkElsewhere) -> None:
        self._network = network
        # Options of a query that the served model heeds.
        self.honoured_options = (NOISE_SEEDS, CONTINUED) if network.about["can_continue"] else (NOISE_SEEDS,)
        self.own_slots: int = network.about["slots_per_call"] or network.max_batch
        self.slots_per_call = self.own_slots  # env slots up to which calls are padded
        self.plan_because: str | None = network.about["plan_because"]

    def get_modality_config(self) -> Mapping[str, gr00t_config.Modality]:
        """Return the model's inputs and outputs."""
        return {name: gr00t_config.StatedModality(**said) for name, said in self._network.about["modalities"].items()}

    def get_dimensions(self) -> gr00t_config.Dimensions | None:
        """Return the size of each state and action key, None if the model does not state them."""
        return self._network.about["dimensions"]

    def get_action(
        self, observation: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the actions of any number of env slots, and no further information; see ``Gr00tPolicy.get_action``."""
        # The policy server carries flat names, which `Gr00tNetwork.answer` takes apart.
        entries: dict[str, np.ndarray | Sequence[str]] = {
            f"{modality}.{key}": values for modality in _ARRAYS for key, values in observation[modality].items()
        }
        entries |= {f"language.{key}": [text for (text,) in texts] for key, texts in observation["language"].items()}
        entries[NOISE_SEEDS] = np.array(options[NOISE_SEEDS], np.int64)
        if CONTINUED in options:
            going_on = options[CONTINUED]
            entries |= {f"{_GOING_ON}.{key}": values for key, values in going_on["actions"].items()}
            entries[_WEIGHTS] = going_on["weights"]
        return self._network.ask(entries, slots_per_call=self.slots_per_call), {}

    def close(self) -> None:
        """Tell the policy server that no query follows for now."""
        self._network.close()


# A policy that runs a GR00T model in this process, on this rank's device.

_SAME_ROBOT = (
    ("unitree_g1", "unitree_g1_full_body_with_waist_height_nav_cmd"),
    ("libero_panda", "libero_sim"),
    ("behavior_r1_pro", "sim_behavior_r1_pro"),
    ("oxe_google", "simpler_env_google"),
    ("oxe_widowx", "simpler_env_widowx"),
)
"""Names of the same robots in GR00T N1.6 and N1.7, where they differ."""

_SHARES_NOISE = (
    f"the model package does not declare that it honours options['{NOISE_SEEDS}'], so a row's noise depends on the "
    "rows that share its query; a package that does lists it in Gr00tPolicy.honoured_options"
)

CPU_SLOTS_PER_QUERY = 4
"""On a CPU the time of a query is proportional to its size, so small queries cost little; a fixed size gives the same
bits."""


class Gr00tClosedloopPolicy(ClosedloopPolicy[Gr00tClosedloopPolicyArgs]):
    """Asks a GR00T model that is loaded once per rank; the model package gets a device and does not know about ranks.

    It uses only ``gr00t.policy.gr00t_policy.Gr00tPolicy`` of that package, so NVIDIA's package works too.
    """

    name: ClassVar[str] = "gr00t_closedloop"
    config_class: ClassVar[type | None] = Gr00tClosedloopPolicyArgs

    def __init__(self, config: Gr00tClosedloopPolicyArgs, *, model: Any = None) -> None:
        # `model` is the ``Gr00tPolicy`` of another policy with the same options; None loads it.
        super().__init__(config)
        self.device = torch.device(self._resolve_policy_device(config))
        # None after `close`.
        self.policy: Any = self.load_policy() if model is None else model
        honoured = getattr(self.policy, "honoured_options", ())
        self._draws_by_slot = NOISE_SEEDS in honoured
        self._can_continue = self._draws_by_slot and CONTINUED in honoured
        # A subclass with a `query` of its own gets arrays; so do model packages but the included one.
        has_own_query = type(self).query is not Gr00tClosedloopPolicy.query
        self._takes_tensors = not has_own_query and getattr(self.policy, "takes_tensors", False)
        self._fills_calls = not isinstance(self.policy, ServedModel)

        # State why an answer does not follow from its env slot alone.
        because = None
        if isinstance(self.policy, ServedModel):
            because = self.policy.plan_because
        elif not self._draws_by_slot:
            because = _SHARES_NOISE
        elif self.slots_per_call(config.num_envs) is None:
            # The last digits of an env slot depend on the size of its query, and so on other episodes.
            because = "a query has as many rows as need a chunk, which other episodes decide; rows_per_query fixes that"
        self.traits = dataclasses.replace(self.traits, reproducible=because is None, plan_because=because)

    @classmethod
    def settings_of(cls, config: Gr00tClosedloopPolicyArgs) -> Gr00tClosedloopPolicyConfig:
        """Return the settings of the YAML file, with the job's own checkpoint if it names one."""
        settings = super().settings_of(config)
        return settings if config.model_path is None else dataclasses.replace(settings, model_path=config.model_path)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the checkpoint, the model package and the YAML files; see `PolicyBase.content_sources`."""
        beside = super().content_sources(options)
        model_path = cls.settings_of(Gr00tClosedloopPolicyArgs(**options)).model_path
        # The files from which the model is loaded; none for a name on the hub, whose revision may change.
        directory = Path(model_path)
        loaded = {".safetensors", ".json", ".jinja", ".model", ".txt", ".yaml", ".yml", ".py"}
        paths = sorted(directory.rglob("*")) if directory.is_dir() else ()
        found = {
            f"model_path {path.relative_to(directory).as_posix()}": path
            for path in paths
            if path.suffix in loaded and not path.is_dir()
        }
        return dataclasses.replace(
            beside,
            files={**beside.files, **found},
            packages=("gr00t",),
            unknown=() if found else (f"model_path {model_path}",),
            checkpoint=model_path,
        )

    @classmethod
    def check_options(cls, config: Gr00tClosedloopPolicyArgs) -> None:
        """Refuse a YAML file whose checkpoint, embodiment or device does not exist: ConfigError with every problem."""
        if config.model_path is not None:
            searched = "and is looked for in the working directory"
            refuse(gr00t_config.checkpoint_problems(config.model_path, searched=searched))
        gr00t_config.check_args(config)
        with gr00t_config.named_by_option(gr00t_config.YAML_OPTION, config.policy_config_yaml_path):
            settings = cls.settings_of(config)
            gr00t_config.read_joint_files(settings)
            problems = gr00t_config.checkpoint_problems(settings.model_path)
            known = gr00t_config.stated_embodiments(settings.model_path)
            with problems_into(problems):
                tag = str(embodiment_tag(settings.embodiment_tag).value)
                if known and tag not in known:
                    message = f"'{settings.model_path}' knows no embodiment '{tag}'{did_you_mean(tag, known)}"
                    problems.append(Problem(message, key="embodiment_tag"))
            # The effect of a subclass on the device is known only once a policy exists.
            if cls._resolve_policy_device is Gr00tClosedloopPolicy._resolve_policy_device:
                with problems_into(problems):
                    policy_device(config, settings.policy_device)
            refuse(problems)

    @classmethod
    def check_fit(cls, config: Gr00tClosedloopPolicyArgs, env: Environment) -> Connections | None:
        """Refuse an environment that lacks inputs of the model: ConfigError; None if the checkpoint lists no inputs."""
        settings = cls.settings_of(config)
        tag = str(embodiment_tag(settings.embodiment_tag).value)
        stated = gr00t_config.stated_embodiments(settings.model_path).get(tag)
        if stated is None:
            return None
        file = config.policy_config_yaml_path
        with gr00t_config.named_by_option(gr00t_config.YAML_OPTION, file):
            model = gr00t_config.model_interface(*stated)
            joints = gr00t_config.read_joint_files(settings)
            return observations.wired(env, model, settings, joints, file=file).connections(env, source=file)

    def _resolve_policy_device(self, config: Gr00tClosedloopPolicyArgs) -> torch.device | str:
        """Return the model's device from `policy_device`; Isaac Lab Arena's name, so subclasses may override it."""
        return policy_device(config, self.policy_config.policy_device)

    def load_policy(self) -> Any:
        """Load the ``Gr00tPolicy`` onto this rank's device; ConfigError if the checkpoint is missing or unfit."""
        settings, file = self.policy_config, self.args.policy_config_yaml_path
        refuse(placed(gr00t_config.checkpoint_problems(settings.model_path), file=file))
        tag, model_class = embodiment_tag(settings.embodiment_tag), _package_policy()
        try:
            model = model_class(embodiment_tag=tag, model_path=settings.model_path, device=str(self.device))
        except (ValueError, KeyError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
            message = f"the model in '{settings.model_path}' cannot be loaded for embodiment_tag {tag.name}: {why}"
            raise ConfigError(message, file=file, key="model_path") from error
        logger.info("the model in %s runs on %s", settings.model_path, self.device)
        if self.args.compile_model:
            compile_model = getattr(model, "compile", None)
            if compile_model is None:
                message = (
                    "the installed package gr00t offers no compile(), as the one that comes along does; leave it out"
                )
                raise ConfigError(message, key="compile_model")
            compile_model()
        return model

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Ask the model; see `ClosedloopPolicy.query`."""
        return self._continued_query(observation, noise_seeds, None)

    @classmethod
    def stated_chunks(cls, config: Gr00tClosedloopPolicyArgs) -> ChunkTraits:
        """Return the traits of chunks; they can continue others if the model package says so."""
        may_continue = True
        if cls.load_policy is Gr00tClosedloopPolicy.load_policy:
            # Load a package without `HONOURED_OPTIONS` to read those of its policy.
            honoured = getattr(importlib.import_module("gr00t"), "HONOURED_OPTIONS", None)
            may_continue = CONTINUED in (
                getattr(_package_policy(), "honoured_options", ()) if honoured is None else honoured
            )
        return dataclasses.replace(super().stated_chunks(config), can_continue=may_continue)

    def chunk_traits(self) -> ChunkTraits:
        """Return the traits of chunks; they can continue others if the model package has an option for it."""
        return dataclasses.replace(super().chunk_traits(), can_continue=self._can_continue)

    def _continued_query(
        self, observation: dict[str, Any], noise_seeds: list[int], going_on: Mapping[str, Any] | None
    ) -> Mapping[str, np.ndarray]:
        if self._draws_by_slot:
            continued = {} if going_on is None else {CONTINUED: going_on}
            action, _ = self.policy.get_action(observation, options={NOISE_SEEDS: noise_seeds} | continued)
            return action

        # The package draws from torch's process-wide generators: seed them for this query, and restore them.
        seed = int(np.random.SeedSequence(noise_seeds).generate_state(1, np.uint64)[0])
        device = self.device
        # A device without an index means the current one.
        gpus = () if device.type == "cpu" else (torch.cuda.current_device() if device.index is None else device.index,)
        with torch.random.fork_rng(gpus):
            torch.manual_seed(seed)  # noqa: TID251  a package from elsewhere draws from nothing else
            action, _ = self.policy.get_action(observation)
        return action

    def modality_config(self) -> Mapping[str, gr00t_config.Modality]:
        """Return the model's inputs and outputs."""
        return self.policy.get_modality_config()

    def network(self) -> Gr00tNetwork:
        """Return the model as a network that ranks can share; see `AsksNetwork`."""
        modalities, dimensions = self.modality_config(), self.dimensions()
        about = {
            "modalities": {
                name: {
                    "delta_indices": [int(step) for step in modality.delta_indices],
                    "modality_keys": [str(key) for key in modality.modality_keys],
                }
                for name, modality in modalities.items()
            },
            # None if the model does not state its sizes.
            "dimensions": None if dimensions is None else {name: dict(sizes) for name, sizes in dimensions.items()},
            # None if the number of env slots per call is free.
            "slots_per_call": self.slots_per_call(self.args.num_envs),
            # The reason why an answer does not follow from its entry alone, None if it does.
            "plan_because": None if self._draws_by_slot else _SHARES_NOISE,
            "can_continue": self._can_continue,
        }
        return Gr00tNetwork(ask=self._continued_query, about=about)

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> "Gr00tClosedloopPolicy":
        """Return a policy that asks a policy server; ConfigError if an option is wrong or a subclass takes no model."""
        if not _accepts_model(cls):
            raise ConfigError(f"{cls.__name__} takes no argument 'model', so its model cannot be in a policy server")
        options_class = cls.config_class or Gr00tClosedloopPolicyArgs
        return cls(read_options(options_class, options, owner=cls.__name__), model=ServedModel(network))

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Pad every later query to `num_slots` env slots, None for the number of the options."""
        super().fill_calls_up_to(num_slots)
        if isinstance(self.policy, ServedModel):
            self.policy.slots_per_call = num_slots or self.policy.own_slots

    def dimensions(self) -> gr00t_config.Dimensions | None:
        """Return the size of each state and action key, None if the package (such as NVIDIA's) does not state them."""
        tell = getattr(self.policy, "get_dimensions", None)
        return None if tell is None else tell()

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return the number of env slots per query; fixed on a CPU, so that other episodes change no results."""
        if isinstance(self.policy, ServedModel):
            return self.policy.slots_per_call
        if self.args.rows_per_query is None and self.device.type == "cpu":
            return CPU_SLOTS_PER_QUERY
        asked = super().slots_per_call(num_envs)
        # Another number of env slots would need another compilation.
        return num_envs if asked is None and self.args.compile_model else asked

    def with_own_memory(self) -> "Gr00tClosedloopPolicy | None":
        """Return a policy that shares the model, None for a subclass that does not accept one."""
        if not _accepts_model(type(self)):
            return None
        sharing = type(self)(self.args, model=self.policy)
        sharing.fill_calls_up_to(self._filled_up_to)
        return sharing

    def close(self) -> None:
        """Release the model."""
        super().close()
        if isinstance(self.policy, ServedModel):
            self.policy.close()
        self.policy = None


def _accepts_model(policy_class: type) -> bool:
    parameters = inspect.signature(policy_class).parameters.values()
    return any(each.name == "model" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def embodiment_tag(name: str) -> Any:
    """Return the ``EmbodimentTag`` by name or value, in any case or another release's name; ConfigError if unknown."""
    try:
        from gr00t.data.embodiment_tags import EmbodimentTag  # noqa: PLC0415  only where it is needed
    except ImportError as error:
        message = (
            f"the package gr00t cannot be imported ({error}); install NVIDIA's, or the small "
            "one of a checkout of this project: pip install -e submodules/Isaac-GR00T"
        )
        raise ConfigError(message) from error
    wanted = name.strip().casefold()
    for names in ((wanted,), *(names for names in _SAME_ROBOT if wanted in names)):
        for tag in EmbodimentTag:
            if tag.name.casefold() in names or str(tag.value).casefold() in names:
                return tag
    known = [tag.name for tag in EmbodimentTag]
    raise ConfigError(f"there is no embodiment '{name}'{did_you_mean(name, known)}", key="embodiment_tag")


def policy_device(config: Gr00tClosedloopPolicyArgs, yaml_policy_device: str | None = None) -> torch.device:
    """Return the model's device, from LOCAL_RANK or else the options, then the YAML file; ConfigError if absent."""
    return resolve_policy_device(
        policy_device_id=config.policy_device_id,
        policy_device=config.policy_device,
        yaml_policy_device=yaml_policy_device,
    )


def _package_policy() -> Any:
    """Return the ``Gr00tPolicy`` class of the model package."""
    # Nearly all imported objects stay, so repeated garbage collection of them would take seconds in vain.
    with without_collecting():
        from gr00t.policy.gr00t_policy import Gr00tPolicy  # noqa: PLC0415  loads for seconds; lists need none of it

    return Gr00tPolicy
