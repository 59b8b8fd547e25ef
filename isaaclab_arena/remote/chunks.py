"""The common parts of policies that ask a server: their inputs, their chunks of actions, and checks of answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, did_you_mean, refuse
from isaaclab_arena.interfaces.connections import Connections, set_entries
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy_traits import ChunkTraits, Continuation
from isaaclab_arena.interfaces.specs import CAMERAS, in_colours, no_camera, picture_layout, resized_with_padding
from isaaclab_arena.policy.action_chunking import ChunkPolicy, answered, in_float32
from isaaclab_arena.remote.connection import SlotConnections
from isaaclab_arena.remote.protocols import OBSERVATION, address_problems, server_address

OptionsT = TypeVar("OptionsT")

Inputs: TypeAlias = tuple[Mapping[str, str], Mapping[str, Sequence[str]]]
"""The camera of each picture, and the observations of each array, by the server's keys."""


class RemoteChunks(ChunkPolicy[OptionsT]):
    """Asks a server for chunks of actions, for each env slot when its chunk is used up, all of them at once."""

    server: ClassVar[str]
    """Name of the server in messages."""

    def __init__(self, config: OptionsT, make_codec: Callable[[], Any]) -> None:
        self.check_options(config)
        super().__init__(config)
        self._connections = SlotConnections[Any](server_address(addressed(config)), make_codec)
        # None to play all actions of each answer.
        options: Any = config
        self._chunk_length = None if options.execute == "all" else options.action_chunk_length
        self._num_played = self._chunk_length or 1

    @classmethod
    def inputs(cls, config: Any, env: Environment) -> Inputs:
        """Return the camera and the observations of each of the server's keys, None for those of the same names."""
        spec: Any = env.observation_spec
        images, states = config.images, config.states
        if images is None:
            # Depth and segmentation are cameras too.
            images = {name: name for name, each in spec.get(CAMERAS, {}).items() if each.dtype == torch.uint8}
        return images, {name: [name] for name in spec.get("policy", {})} if states is None else states

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the server as an unknown source, as its model is not known yet; see `PolicyBase.content_sources`."""
        config_class: Any = cls.config_class
        config = addressed(config_class(**options))
        return ContentSources(unknown=(f"server {config.remote_host}:{config.remote_port}",))

    @classmethod
    def check_fit(cls, config: Any, env: Environment) -> Connections:
        """Refuse an environment that lacks inputs of the job, without asking the server; ConfigError names them."""
        images, states = cls.inputs(config, env)
        problems = misfits(env, images, states, config.action_columns)
        refuse(problems)
        # The action columns are those of the server that the environment takes, None for all in order.
        parts = {key: " + ".join(names) for key, names in states.items()}
        return Connections(pictures=images, states=parts, actions=set_entries(env, config.action_columns))

    def connections(self, env: Environment) -> Connections:
        """Return the environment's entries that the server sees and sets."""
        return self.check_fit(self.config, env)

    @abstractmethod
    def question(
        self, env: Environment, env_id: int, pictures: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Return the question about an env slot: its pictures, its states and its instruction."""

    @staticmethod
    def answered_actions(answer: Mapping[str, Any]) -> object:
        """Return the actions of an answer, which are checked afterwards."""
        return answer.get("actions")

    def stated_model(self) -> str:
        """The server's description of itself in its first answer."""
        return self._connections.stated

    def close(self) -> None:
        """Close the connections. The server keeps running: other clients may use it."""
        self._connections.close()

    @classmethod
    def stated_chunks(cls, config: Any) -> ChunkTraits:
        """Return the number of actions played of an answer; ConfigError if it is open."""
        if config.execute == "all":
            message = (
                "all leaves open how long a chunk is, so its answers cannot be late; give action_chunk_length instead"
            )
            raise ConfigError(message, key="execute")
        return ChunkTraits(played=config.action_chunk_length, predicted=config.action_chunk_length)

    def chunk_traits(self) -> ChunkTraits:
        """Return the number of actions played of an answer; ConfigError if it is open."""
        return self.stated_chunks(self.config)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None = None
    ) -> torch.Tensor:
        """Ask the server about some env slots; see `PolicyBase`. Shape: (len(env_ids), predicted, action_dim)."""
        del going_on
        return torch.stack(self._next_chunks(env, observation, env_ids))

    def _next_chunks(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> list[torch.Tensor]:
        options: Any = self.config
        (action_dim,) = env.action_spec.shape
        columns, length, policy = options.action_columns, self._chunk_length, self.server
        images, states = self.inputs(options, env)
        size = options.image_size
        # Each question is on its way before the next one is made.
        questions = (
            (env_id, self.question(env, env_id, *shown_inputs(observation, env_id, images, states, size)))
            for env_id in env_ids
        )
        chunks = []
        for answer in self._connections.ask(OBSERVATION, questions):
            # Refuse actions of a wrong shape, then those of wrong types, columns and values.
            actions = self.answered_actions(answer)
            if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.shape[0] < (length or 1):
                got = actions.shape if isinstance(actions, np.ndarray) else f"{type(actions).__name__}"
                is_short = isinstance(actions, np.ndarray) and actions.ndim == 2 and len(actions) > 0
                is_odd = "; it has to be an array of shape (steps, numbers)"
                hint = "; with execute: all every answer is played to its end" if is_short else is_odd
                raise PolicyError(
                    f"the {policy} must answer with 'actions' of at least {length or 1} steps, got {got}{hint}"
                )
            name = f"'actions' of the {policy}"
            actions = answered(actions, name)
            if columns is None and actions.shape[1] != action_dim:
                raise PolicyError(
                    f"the {policy}'s action has {actions.shape[1]} numbers, the environment's {action_dim}; "
                    f"action_columns says which of them to take"
                )
            if columns is not None and max(columns) >= actions.shape[1]:
                raise PolicyError(f"the {policy}'s action has {actions.shape[1]} numbers, no column {max(columns)}")
            chosen = actions[:length] if columns is None else actions[:length, list(columns)]
            chunks.append(torch.from_numpy(in_float32(chosen, name)))
        return chunks


def addressed(config: Any) -> Any:
    """Return the options with host and port from their ``address``, and unchanged without a valid one."""
    try:
        parts = urlsplit(getattr(config, "address", None) or "")
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return config
    if parts.scheme != "ws" or not parts.hostname or not has_port or parts.path.strip("/") or parts.query:
        return config
    return replace(config, remote_host=parts.hostname, remote_port=parts.port or config.remote_port)


def misfits(
    env: Environment, images: Mapping[str, str], states: Mapping[str, Sequence[str]], columns: Sequence[int] | None
) -> list[Problem]:
    """Return the problems of a job's cameras, observations and action columns in this environment."""
    spec: Any = env.observation_spec
    cameras, terms = spec.get(CAMERAS, {}), set(spec.get("policy", {}))
    problems = []
    for key, camera in images.items():
        # A camera must exist, and its pictures must have a clear layout.
        message = no_camera(camera, cameras)
        if camera in cameras:
            try:
                picture_layout(cameras[camera].shape, cameras[camera].dtype)
                continue
            except ValueError as reason:
                message = f"camera '{camera}' {reason}"
        problems.append(Problem(message, key=f"images.{key}"))
    problems += [
        Problem(f"the environment has no observation '{name}'{did_you_mean(name, terms)}", key=f"states.{key}")
        for key, names in states.items()
        for name in names
        if name not in terms
    ]

    (action_dim,) = env.action_spec.shape
    if columns is not None and len(columns) != action_dim:
        message = f"names {len(columns)} numbers, the environment's action has {action_dim}"
        problems.append(Problem(message, key="action_columns"))
    return problems


def shown_inputs(
    observation: Observation,
    env_id: int,
    images: Mapping[str, str],
    states: Mapping[str, Sequence[str]],
    image_size: tuple[int, int] | None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return an env slot's pictures (height, width, 3) uint8 and states (n,) float32, by the server's keys."""
    pictures: dict[str, torch.Tensor] = {}
    for key, camera in images.items():
        image = in_colours(observation[CAMERAS][camera][env_id][None])
        # Without `image_size` each picture keeps its size.
        height, width = image_size or image.shape[1:3]
        pictures[key] = resized_with_padding(image, height=height, width=width)[0]
    parts = {
        key: torch.cat([observation["policy"][name][env_id].to(torch.float32).flatten() for name in names])
        for key, names in states.items()
    }
    # One transfer brings all arrays to the CPU.
    arrays = [part.numpy() for part in on_cpu([*pictures.values(), *parts.values()])]
    return dict(zip(pictures, arrays, strict=False)), dict(zip(parts, arrays[len(pictures) :], strict=True))


def mistaken_options(config: Any) -> list[Problem]:
    """Return the problems of a job's chunks, picture size, columns and server that hold for any environment."""
    problems = []
    if config.action_chunk_length < 1:
        problems.append(Problem(f"must be at least 1, got {config.action_chunk_length}", key="action_chunk_length"))
    size = config.image_size
    if size is not None and (len(size) != 2 or min(size) < 1):
        problems.append(Problem(f"must be height and width, got {list(size)}", key="image_size"))
    columns = config.action_columns
    if columns is not None and (not columns or min(columns) < 0):
        problems.append(Problem("must be numbers from 0", key="action_columns"))
    return [*problems, *address_problems(addressed(config))]
