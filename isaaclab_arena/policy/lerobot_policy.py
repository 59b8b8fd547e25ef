"""The policy that acts as one of LeRobot's does: its inputs from an environment, and their misfits."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources, read_options
from isaaclab_arena.distributed.devices import on_cpu, resolve_policy_device
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, did_you_mean, refuse
from isaaclab_arena.interfaces.connections import Connections, set_entries
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import ChunkTraits, Continuation, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import NetworkElsewhere
from isaaclab_arena.interfaces.specs import (
    CAMERAS,
    CAMERAS_OFF,
    ArraySpec,
    in_colours,
    no_camera,
    picture_layout,
    pictures_of,
)
from isaaclab_arena.policy import lerobot_network as lerobot
from isaaclab_arena.policy.action_chunking import ChunkPolicy, FrameHistory
from isaaclab_arena.policy.lerobot_network import LeRobotNetwork, LeRobotPolicyCfg

# Find the environment's observations for a LeRobot policy's inputs, and the misfits.

_STATES = "policy"
_PICTURE_PREFIXES = ("observation.images.", "observation.")
_MOST_RATES_APART = 0.01


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The observations that a policy's inputs take."""

    cameras: Mapping[str, str]  # camera of each picture input
    # For each other input, the observations of the group ``policy`` that form it, in order.
    terms: Mapping[str, tuple[str, ...]]
    # The pictures that need a conversion to colours, because the camera's format differs from the input's.
    in_colours: frozenset[str] = frozenset()

    def seen(self, observation: Observation, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the present inputs of some env slots, by name. Shape of each: (n, ...)."""
        slots = list(env_ids)
        pictures = {name: observation[CAMERAS][camera][slots] for name, camera in self.cameras.items()}
        for name in self.in_colours:
            pictures[name] = in_colours(pictures[name])
        states = {
            name: torch.cat([observation[_STATES][term][slots].to(torch.float32).flatten(1) for term in terms], dim=1)
            for name, terms in self.terms.items()
        }
        return {**pictures, **states}

    def connections(
        self, options: LeRobotPolicyCfg, data: lerobot.TrainingData, env: Environment, notes: Sequence[str] = ()
    ) -> Connections:
        """Return the policy's connections with an environment, and the contradictions with its files as notes."""
        # Columns that the dataset does not name leave the action without names.
        names, columns = data.action_names, options.action_columns
        if names is not None and columns is not None:
            names = tuple(names[column] for column in columns) if max(columns) < len(names) else None
        orders = [
            f"its training's dataset builds {name} from {' + '.join(data.terms[name])}, the job from "
            f"{' + '.join(terms)}"
            for name, terms in self.terms.items()
            if data.terms.get(name, terms) != terms
        ]
        return Connections(
            pictures=self.cameras,
            states={name: " + ".join(terms) for name, terms in self.terms.items()},
            actions=set_entries(env, columns),
            source=options.pretrained,
            action_names=names,
            notes=(*notes, *orders),
        )


def fitted(
    features: lerobot.Features, data: lerobot.TrainingData, options: LeRobotPolicyCfg, env: Environment
) -> Inputs:
    """Match a policy's inputs with an environment's observations (specs only); ConfigError lists every misfit."""
    spec: Any = env.observation_spec
    shown, observed = spec.get(CAMERAS, {}), spec.get(_STATES, {})
    cameras, of_cameras = _cameras(features, shown, options.images)

    # The observations that form each other input: those named, else the only one of its size.
    chosen = {**data.terms, **{name: given for name, given in options.states.items() if given}}
    formed: dict[str, tuple[str, ...]] = {}
    of_terms: list[Problem] = []
    for name, size in features.states.items():
        alike = [term for term, spec in observed.items() if prod(spec.shape) == size]
        terms = formed[name] = tuple(chosen.get(name, alike if len(alike) == 1 else ()))
        key, missing = f"states.{name}", [term for term in terms if term not in observed]
        if not terms:
            sizes = ", ".join(f"{term} {prod(spec.shape)}" for term, spec in observed.items())
            message = f"is missing: say which observations form its {size} numbers, in order; there are {sizes}"
            of_terms.append(Problem(message, key=key))
        elif missing:
            of_terms += [
                Problem(f"the environment has no observation '{term}'{did_you_mean(term, observed)}", key=key)
                for term in missing
            ]
        elif (found := sum(prod(observed[term].shape) for term in terms)) != size:
            message = f"the policy takes {size} numbers, and {' + '.join(terms)} have {found}"
            of_terms.append(Problem(message, key=key))

    # Collect the misfits of all inputs, so that the user can correct them at once.
    problems = [
        *(
            Problem(f"the policy has no such input{did_you_mean(name, known)}", key=f"{option}.{name}")
            for option, named, known in (
                ("images", options.images, features.pictures),
                ("states", options.states, features.states),
            )
            for name in named
            if name not in known
        ),
        *of_cameras,
        *of_terms,
    ]
    (taken,), action_dim, columns = env.action_spec.shape, features.action_dim, options.action_columns
    if columns is None and taken != action_dim:
        message = (
            f"the policy's action has {action_dim} numbers, the environment's {taken}: use a policy for this robot, "
            "or select numbers with action_columns"
        )
        problems.append(Problem(message))
    elif columns is not None and len(columns) != taken:
        message = f"names {len(columns)} numbers, the environment's action has {taken}"
        problems.append(Problem(message, key="action_columns"))
    elif columns is not None and not all(0 <= column < action_dim for column in columns):
        message = f"must be 0 to {action_dim - 1}, the numbers of the policy's action"
        problems.append(Problem(message, key="action_columns"))
    fps, rate = options.fps or data.fps, 1 / env.control_dt
    if fps is not None and not abs(fps - rate) <= _MOST_RATES_APART * rate:
        message = (
            f"the policy is made for {fps:g} control steps per second, and the environment makes {rate:g}; if that is "
            f"intended, set fps: {rate:g}"
        )
        problems.append(Problem(message, key="fps"))
    refuse(problems)
    others = frozenset(name for name, shape in features.pictures.items() if shown[cameras[name]].shape != shape)
    return Inputs(cameras=cameras, terms=formed, in_colours=others)


def _cameras(
    features: lerobot.Features, specs: Mapping[str, ArraySpec], named: Mapping[str, str]
) -> tuple[dict[str, str], list[Problem]]:
    """Return the camera of each picture, and every misfit: the one the job names, else that of the same name."""
    if features.pictures and not specs:
        names = ", ".join(features.pictures)
        return {}, [Problem(f"the policy needs {names}, and {CAMERAS_OFF}")]
    cameras: dict[str, str] = {}
    problems: list[Problem] = []
    for name, shape in features.pictures.items():
        prefix = next((each for each in _PICTURE_PREFIXES if name.startswith(each)), "")
        own, key = name.removeprefix(prefix), f"images.{name}"
        own = next(iter(specs)) if own == "image" and len(specs) == 1 else own
        camera = cameras[name] = named.get(name, own)
        if camera not in specs:
            problems.append(Problem(no_camera(camera, specs), key=key))
            continue
        spec = specs[camera]
        if spec.shape == shape:
            continue
        # A picture of the camera's format has another shape once it is in colours.
        try:
            found = picture_layout(spec.shape, spec.dtype).shape
        except ValueError as reason:
            problems.append(Problem(f"camera '{camera}' {reason}", key=key))
            continue
        if found != shape:
            due, given = (" x ".join(map(str, each)) for each in (shape, found))
            message = f"the policy takes {due}, but camera '{camera}' gives {given}"
            message += "; give the environment's cameras that size"
            problems.append(Problem(message, key=key))
    return cameras, problems


# The policy that acts like a LeRobot policy, which runs in a worker of LeRobot's own interpreter.

CPU_SLOTS_PER_CALL = 4

_ONE_STEP = "is {}, but a policy with memory is queried in every control step; leave it out"
# The refusal of a policy with memory where others would play its chunks.
_NEVER_LATE = "has a memory, and so is queried in every control step, which cannot be late"
_OPTION = f"policy_config_dict.{lerobot.KEY}"

_LOG = logging.getLogger(__name__)


class LeRobotPolicy(ChunkPolicy[LeRobotPolicyCfg]):
    """Plays the chunks of a policy of LeRobot, which looks at each env slot when its chunk is used up."""

    # Each env slot has its own chunk, observations, instruction and policy memory. The noise of a query comes from the
    # episode's own stream, so an episode's actions do not depend on the other env slots of the query. A policy with
    # memory is asked in every control step.
    name: ClassVar[str] = "lerobot"
    traits = PolicyTraits(reproducible=True, serves_any_num_envs=True, pictures="announced")

    def __init__(self, config: LeRobotPolicyCfg, *, network: LeRobotNetwork | NetworkElsewhere | None = None) -> None:
        super().__init__(config)
        directory = lerobot.policy_directory(config.pretrained)
        self._features = lerobot.read_features(directory)
        self._shown_steps = range(1 - self._features.num_observations, 1)
        self._data = lerobot.read_training_data(directory, config.dataset)
        # ``network`` is the process of another policy with the same options, or its stand-in in a policy server.
        self._shares_network = network is not None
        where = {"policy_device_id": config.policy_device_id, "policy_device": config.policy_device}
        self._network = network or LeRobotNetwork(directory, resolve_policy_device(**where), config)
        about = {name: value for name, value in self._network.about.items() if name != "slots_per_call"}
        said = self._said = lerobot.Description(**about)
        # Env slots of a call unless options fix them: in a policy server all calls have one size. None: as many as need
        # a chunk.
        self._max_batch = self._network.max_batch
        # A policy gives at most as many actions per query as it was saved with.
        self._num_played = config.n_action_steps or said.num_actions
        if self._num_played > said.num_actions:
            self._network.close()
            if said.remembers:
                raise ConfigError(_ONE_STEP.format(config.n_action_steps), key="n_action_steps")
            message = f"is {self._num_played}, but the policy was saved with {said.num_actions}"
            raise ConfigError(message, key="n_action_steps")
        self._history: FrameHistory | None = None
        self._memories: dict[int, np.ndarray] = {}
        self._inputs: tuple[Environment, Inputs] | None = None
        # Without a fixed size of calls, the last digits depend on the other env slots of a call. So only the plan of
        # the episodes is reproducible, not their bits.
        if said.device_type != "cpu" and config.slots_per_call is None and self._max_batch is None:
            because = (
                "a call has as many env slots as need a chunk, which other episodes decide; slots_per_call fixes that"
            )
            self.traits = replace(self.traits, reproducible=False, plan_because=because)

    @classmethod
    def check_options(cls, config: LeRobotPolicyCfg) -> None:
        """Refuse wrong files or interpreters before simulation; ConfigError with the option in ``key``."""
        directory = lerobot.policy_directory(config.pretrained)
        features = lerobot.read_features(directory)
        lerobot.check_statistics(directory)
        if features.remembers and (config.n_action_steps or 1) > 1:
            raise ConfigError(_ONE_STEP.format(config.n_action_steps), key="n_action_steps")
        lerobot.read_training_data(directory, config.dataset)
        lerobot.versions_there(config)

    @classmethod
    def check_fit(cls, config: LeRobotPolicyCfg, env: Environment) -> Connections:
        """Return the connections with an environment; ConfigError if it lacks an input or takes other actions."""
        directory = lerobot.policy_directory(config.pretrained)
        features = lerobot.read_features(directory)
        data = lerobot.read_training_data(directory, config.dataset)
        return fitted(features, data, config, env).connections(config, data, env, lerobot.check_statistics(directory))

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the policy's files and the versions of LeRobot's packages; see `PolicyBase.content_sources`."""
        config = LeRobotPolicyCfg(**options)
        directory = lerobot.policy_directory(config.pretrained)
        versions = lerobot.versions_there(config)
        stated = {f"package {name} of {config.interpreter}": version for name, version in versions.items()}
        name = Path(config.pretrained).name
        return ContentSources(files={f"{lerobot.KEY} {name}": directory}, stated=stated, checkpoint=str(directory))

    @classmethod
    def foreign_code(cls, config: LeRobotPolicyCfg) -> Sequence[Problem]:
        """Return a problem if the job names an interpreter: it is a program."""
        if config.python is None:
            return ()
        return (Problem(f"'{config.python}' is a program that would be run", key="python"),)

    def check_environment(self, env: Environment) -> None:
        """Refuse by ConfigError an environment that lacks an input of the policy or takes other actions."""
        self._inputs_of(env)
        if self.config.fps is None and self._data.fps is None:
            _LOG.warning(
                "%s: its number of control steps per second is unknown, the environment makes %g; confirm that with "
                "fps, or name its dataset",
                self.config.pretrained,
                1 / env.control_dt,
            )

    def connections(self, env: Environment) -> Connections:
        """Return the policy's inputs and the entries that its action sets; see `PolicyBase.connections`."""
        notes = lerobot.check_statistics(lerobot.policy_directory(self.config.pretrained))
        return self._inputs_of(env).connections(self.config, self._data, env, notes)

    def slots_per_call(self, num_envs: int) -> int | None:
        """Return the number of env slots in every call, None for as many as need a chunk."""
        # Fixed sizes make results repeatable. ``num_envs`` counts the env slots that this policy has.
        said = self._said
        if not said.takes_batches:
            return 1
        if self.config.slots_per_call is not None:
            return self.config.slots_per_call
        if torch.are_deterministic_algorithms_enabled():
            return num_envs
        return min(num_envs, CPU_SLOTS_PER_CALL) if said.device_type == "cpu" else self._max_batch

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Fill every later call up to so many env slots, if the network takes several."""
        super().fill_calls_up_to(num_slots if self._said.takes_batches else None)

    def with_own_memory(self) -> "LeRobotPolicy":
        """Return a policy that shares the process."""
        sharing = type(self)(self.config, network=self._network)
        sharing.fill_calls_up_to(self._filled_up_to)
        return sharing

    def network(self) -> LeRobotNetwork:
        """Return the process as a network that ranks can share; see `AsksNetwork`."""
        if not isinstance(self._network, LeRobotNetwork):
            raise PolicyError("this policy asks a process in a policy server, and has none of its own")
        return self._network

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> "LeRobotPolicy":
        """Return a policy that asks a policy server's process (see `network`); ConfigError for a wrong option."""
        policy = cls(read_options(LeRobotPolicyCfg, options, owner=cls.__name__), network=network)
        # The connection is this policy's own, so it closes it.
        policy._shares_network = False
        return policy

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Drop the episode state of the named env slots, None for all."""
        super().reset(env_ids)
        if env_ids is None:
            self._history, self._inputs, self._memories = None, None, {}

    @classmethod
    def stated_chunks(cls, config: LeRobotPolicyCfg) -> ChunkTraits:
        """Return the numbers of actions played and predicted; ConfigError for a memory."""
        features = lerobot.read_features(lerobot.policy_directory(config.pretrained))
        if features.remembers:
            raise ConfigError(_NEVER_LATE, key=_OPTION)
        return ChunkTraits(played=config.n_action_steps or features.num_actions, predicted=features.num_actions)

    def chunk_traits(self) -> ChunkTraits:
        """Return a chunk's numbers of actions and a query's steps; ConfigError for a memory."""
        if self._said.remembers:
            raise ConfigError(_NEVER_LATE, key=_OPTION)
        shown = tuple(self._shown_steps) if self._features.pictures else ()
        return ChunkTraits(played=self._num_played, predicted=self._said.num_actions, picture_steps=shown)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Store the observations that a later query shows, for a policy that takes earlier observations too."""
        if len(self._shown_steps) == 1:
            return
        inputs, seen = self._inputs_of(env), list(env_ids)
        if inputs.cameras:
            # Only the pictures that a later query shows were announced.
            announced = set(pictures_of(observation[CAMERAS][next(iter(inputs.cameras.values()))]).env_ids)
            seen = [env_id for env_id in env_ids if env_id in announced]
        if self._history is None or self._history.num_envs != env.num_envs:
            self._history = FrameHistory(self._shown_steps, env.num_envs)
        self._history.push(inputs.seen(observation, seen) if seen else {}, seen, env_ids)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the network about some env slots; see `PolicyBase`. Shape: (len(env_ids), predicted, action_dim)."""
        del going_on
        words = [self._words_for(env, env_id) for env_id in env_ids]
        seeds = [self._draw_seed(env_id) for env_id in env_ids]
        size = self._filled_up_to or self.slots_per_call(env.num_envs)
        if self._history is None:
            shown = {name: now[:, None] for name, now in self._inputs_of(env).seen(observation, env_ids).items()}
        else:
            shown = self._history.frames(env_ids)
        arrays = [np.ascontiguousarray(part.numpy()) for part in on_cpu(list(shown.values()))]
        entries: dict[str, Any] = {f"{lerobot.SHOWN}{name}": part for name, part in zip(shown, arrays, strict=True)}
        entries |= {lerobot.WORDS: words, lerobot.SEEDS: np.array(seeds, np.int64)}
        if self._said.remembers:
            # A server takes memories of one size.
            memories = [self._memories.get(env_id, lerobot.NOTHING) for env_id in env_ids]
            entries[lerobot.MEMORIES] = memories if self._max_batch is None else self._said.padded(memories)
        answers = self._network.ask(entries, slots_per_call=size or len(words))
        self._memories.update(zip(env_ids, answers.get(lerobot.MEMORIES, ()), strict=False))
        actions, columns = answers[lerobot.ACTIONS], self.config.action_columns
        return torch.from_numpy(actions if columns is None else actions[..., list(columns)])

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start, and those whose next observation a query shows."""
        return super().pictures_to_see(env, starting) if self._features.pictures else ()

    def close(self) -> None:
        """Stop the network's process or close the connection to it, and release the environment."""
        self.reset()
        if not self._shares_network:
            self._network.close()

    def _restart(self, env_ids: torch.Tensor) -> None:
        super()._restart(env_ids)
        for env_id in env_ids.tolist():
            self._memories.pop(env_id, None)
        if self._history is not None and self._player is not None:
            # Another number of env slots is another environment's.
            self._history = self._history if self._history.num_envs == self._player.num_envs else None
        if self._history is not None:
            self._history.restart(env_ids)

    def _inputs_of(self, env: Environment) -> Inputs:
        if self._inputs is None or self._inputs[0] is not env:
            self._inputs = env, fitted(self._features, self._data, self.config, env)
        return self._inputs[1]
