"""openpi, the servers of the pi0 models: the protocol, and a policy that asks such a server."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from arena_wire import messages
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, in_words
from isaaclab_arena.errors import PolicyError, Problem, refuse, shortened
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.remote.chunks import RemoteChunks, misfits, mistaken_options
from isaaclab_arena.remote.protocols import ANSWER_LIMITS, AnswerError, Codec, ServerOptions

# The protocol: the server describes its model, then answers observations, without numbers, seeds or episodes.

_TEXT_TYPE = re.compile(r"<U(\d{1,6})")
_LAST_CHARACTERS = 4000


class OpenpiCodec(Codec):
    """The protocol of openpi's servers: msgpack, with arrays as maps with byte keys."""

    server = "openpi policy server"
    policy_type = "openpi_remote"
    scheme, path = "ws://", "/healthz"

    def __init__(self, *, remembers: bool = False, limits: WireLimits = ANSWER_LIMITS) -> None:
        super().__init__(limits)
        self.remembers = remembers  # openpi's own servers do not remember a connection's observations
        self.metadata: Mapping[str, Any] = {}  # of the last connection

    @staticmethod
    def pack(message: Any) -> bytes:
        """Return the bytes of dicts, lists, text, numbers and arrays; WireError for any other value."""
        return messages.write_message(message, _openpi_encoded)

    @staticmethod
    def unpack(data: bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Any:
        """Return the message in the bytes; WireError if it is invalid or too large."""
        return messages.read_message(data, limits, _openpi_decoded)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the server's metadata."""
        metadata = self._read(said)
        if not isinstance(metadata, Mapping):
            raise AnswerError(f"is no such server: it introduced itself with {in_words(metadata)}")
        self.metadata = metadata
        return metadata

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return an observation, the only kind of question."""
        del kind
        return self.pack(dict(payload or {}))

    def decode(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation."""
        answer = self._read(said)
        if not isinstance(answer, Mapping):
            raise AnswerError(f"answered {in_words(answer)}, expected a map")
        return answer

    def _read(self, said: str | bytes | bytearray) -> Any:
        if isinstance(said, str):
            # Text is the server's traceback, after which it closes the connection.
            lines = [line for line in said[-_LAST_CHARACTERS:].splitlines() if line.strip()]
            raise AnswerError(f"failed: {lines[-1].strip() if lines else 'it does not say why'}")
        return self.unpack(said, self.limits)


def _openpi_encoded(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "VOc":
        raise TypeError(f"{value.dtype} may not travel")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__} may not travel")


def _openpi_decoded(value: dict[Any, Any]) -> Any:
    data, stated = value.get(b"data"), value.get(b"dtype")
    if b"__ndarray__" in value:
        # NumPy turns a prompt into an array of one text.
        text = _TEXT_TYPE.fullmatch(str(stated))
        if text is None:
            return messages.array_of(data, messages.dtype_of(stated), value.get(b"shape"))
        if not isinstance(data, bytes) or value.get(b"shape") not in ([], [1]) or len(data) != 4 * int(text[1]):
            raise WireError("an array of text has one text, of as many characters as its type says; this one does not")
        try:
            return data.decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise WireError("an array of text holds what is no character") from error
    if b"__npgeneric__" in value:
        if isinstance(data, str) and _TEXT_TYPE.fullmatch(str(stated)):
            return data
        dtype = messages.dtype_of(stated)
        if dtype.kind not in messages.ARRAY_KINDS or not isinstance(data, (bool, int, float)):
            raise WireError(f"a {type(data).__name__} is no number of type {dtype}")
        try:
            return dtype.type(data)
        except (OverflowError, ValueError) as error:
            raise WireError(f"{data!r:.100} is no number of type {dtype}") from error
    return value


# The policy that asks such a server.


@dataclass(frozen=True)
class OpenpiRemotePolicyCfg(ServerOptions, PolicyCfg):
    """Options of `OpenpiRemotePolicy`. Names differ between openpi policies, so all must be given.

    Attributes:
        images: Camera for each of the policy's keys: ``{"observation/image": "front"}``.
        states: Observations of the group ``policy``, in order, for each of the policy's keys: ``{"observation/state":
            ["robot_joint_pos", "gripper"]}``.
        prompt_key: The policy's key of the instruction.
        image_size: Height and width of the images that are sent, padded with black if the aspect ratio differs.
        action_chunk_length: Control steps that are played before the policy is asked again.
        execute: ``all`` to play every action of an answer, however many, instead of ``action_chunk_length`` of them.
        action_columns: Indices into the policy's action for each number of the environment's; None if both are the
            same.
        server_metadata: What the server has to say of itself when a connection opens, by name; other names do not
            count: ``{"policy": "pi0"}``.
        connection_per_episode: Whether each episode has a connection of its own, for a server that remembers what it
            was shown in one. An episode whose connection is lost is then an error.
        remote_port: Port of the server.
        timeout_s: How long an answer may take [s]; the first one may have to wait for a compiler.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prompt_key: str = "prompt"
    image_size: tuple[int, int] = (224, 224)
    action_chunk_length: int = 8
    execute: Literal["all"] | None = None
    action_columns: tuple[int, ...] | None = None
    server_metadata: Mapping[str, Any] = field(default_factory=dict)
    connection_per_episode: bool = False
    remote_port: int = 8000
    timeout_s: float = 120.0


class OpenpiRemotePolicy(RemoteChunks[OpenpiRemotePolicyCfg]):
    """Asks an openpi policy server for chunks of actions, for each env slot when its chunk is used up."""

    # The protocol has no batches and no seeds: each env slot has a connection of its own, all are asked at once, and
    # the server draws the noise.
    name: ClassVar[str] = "openpi_remote"
    server: ClassVar[str] = "openpi policy"
    config_class: ClassVar[type | None] = OpenpiRemotePolicyCfg
    traits = PolicyTraits(batch_invariant=True, serves_any_num_envs=True, pictures="announced", remote=True)

    def __init__(self, config: OpenpiRemotePolicyCfg) -> None:
        super().__init__(config, lambda: OpenpiCodec(remembers=config.connection_per_episode))
        self._server = self._connections.codec

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, without asking the server: ConfigError with every problem."""
        problems = mistaken_options(config)
        if not config.images and not config.states:
            problems.append(Problem("name what the policy is shown, here or in states", key="images"))
        refuse(problems)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that contradicts the job or the server's metadata: ConfigError with every problem."""
        options, (action_dim,) = self.config, env.action_spec.shape
        columns, num_steps = options.action_columns, self._num_played
        problems = misfits(env, options.images, options.states, columns)

        # openpi prescribes no names. Compare those that the job gives, and those that servers are known to use.
        metadata = self._server.metadata
        problems += [
            Problem(
                f"the server says {metadata.get(name)!r:.100}, {value!r:.100} is due", key=f"server_metadata.{name}"
            )
            for name, value in options.server_metadata.items()
            if _plain(metadata.get(name)) != _plain(value)
        ]
        size = list(options.image_size)
        resolution = metadata.get("image_resolution")
        if options.images and isinstance(resolution, (list, tuple)) and list(resolution) != size:
            message = f"the server wants pictures of {list(resolution)!r:.100}, and is shown {size}"
            problems.append(Problem(message, key="image_size"))
        horizon = metadata.get("action_horizon")
        if type(horizon) is int and num_steps > horizon:
            message = f"the server answers with {horizon} steps, {num_steps} are to be played"
            problems.append(Problem(message, key="action_chunk_length"))
        dims = metadata.get("action_dim")
        if type(dims) is int and (dims != action_dim if columns is None else dims <= max(columns)):
            wanted = (
                f"the environment's {action_dim}; say which to take" if columns is None else f"no column {max(columns)}"
            )
            problems.append(Problem(f"the server's action has {dims} numbers, {wanted}", key="action_columns"))
        refuse(problems)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin the episodes, each in a connection of its own if the job asks for it."""
        super().start_episodes(env, starts)
        for start in starts if self.config.connection_per_episode else ():
            connection = self._connections.of(start.env_id)
            connection.close()
            connection.begin()

    def question(
        self, env: Environment, env_id: int, pictures: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Return pictures, states and instruction of an env slot."""
        return {**pictures, **states, self.config.prompt_key: self._words_for(env, env_id)}

    @staticmethod
    def answered_actions(answer: Mapping[str, Any]) -> object:
        """Return the actions of an answer; PolicyError with the answer's keys if there are none."""
        if "actions" not in answer:
            keys = ", ".join(f"'{shortened(str(key))}'" for key in list(answer)[:8]) or "nothing"
            raise PolicyError(
                f"the openpi server has to answer with 'actions', and answered with {keys}; rename it there"
            )
        return answer["actions"]


def _plain(value: Any) -> Any:
    """Return `value` with lists for tuples, because tuples travel as lists."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
