"""vla-eval, the model servers of OpenVLA, X-VLA, CogACT and others: the protocol, and a policy that asks one."""

import io
import logging
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image

from arena_wire import messages
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, in_words
from isaaclab_arena.errors import Problem, refuse
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.logs import plain_text
from isaaclab_arena.remote.chunks import RemoteChunks, addressed, misfits, mistaken_options
from isaaclab_arena.remote.protocols import ANSWER_LIMITS, AnswerError, Codec, ServerOptions

_LOG = logging.getLogger(__name__)

# The protocol: both say hello, then episodes start, are asked about, and end.

PROTOCOL_VERSION = 1

HELLO, ACTION, EPISODE_START, EPISODE_END, ERROR = "hello", "action", "episode_start", "episode_end", "error"

PictureFormat = Literal["raw", "png", "jpeg"]
"""How pictures travel."""

_PICTURE = "__image__"
_FORMATS = {"png": "PNG", "jpeg": "JPEG"}
_MAX_PIXELS = 1 << 24
_CHANNELS = (1, 3, 4)
# vla-eval's quality.
_JPEG_QUALITY = 95


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of vla-eval, of either side."""

    kind: str  # `HELLO`, `OBSERVATION`, `ACTION`, `EPISODE_START`, `EPISODE_END` or `ERROR`
    payload: dict[str, Any]
    number: int  # an answer repeats the number of its question


class VlaEvalCodec(Codec):
    """The protocol of vla-eval's servers, in one session with one of them."""

    server = "vla-eval model server"
    policy_type = "vla_eval_remote"
    scheme, path, first_keys = "ws://", "/health", frozenset({"type", "payload", "seq"})
    numbers_answers = True
    # The server keeps the rest of a chunk and earlier pictures of the episode.
    remembers = True

    def __init__(self, picture_format: PictureFormat = "raw", limits: WireLimits = ANSWER_LIMITS) -> None:
        super().__init__(limits)
        # Of the last connection: parts of its actions (see vla-eval's ``DimSpec``), the inputs that it wants, and
        # arguments that it proposes for benchmarks of vla-eval.
        self.specs: Mapping[str, Mapping[str, Any]] = {}
        self._picture_format: PictureFormat = picture_format
        self._number = 0

    @staticmethod
    def pack(message: Message, picture_format: PictureFormat = "raw") -> bytes:
        """Return a message as bytes, pictures as `picture_format`; WireError for a value that cannot be encoded."""
        plain = {"type": message.kind, "payload": message.payload, "seq": message.number, "timestamp": time.time()}
        return messages.write_message(plain, partial(_vla_eval_encoded, picture_format=picture_format))

    @staticmethod
    def unpack(data: str | bytes | bytearray, limits: WireLimits = DEFAULT_LIMITS) -> Message:
        """Return the message in the bytes; WireError if invalid or too large. PNG and JPEG stay `EncodedPicture`."""
        if isinstance(data, str):
            raise WireError("vla-eval's protocol sends no text")
        plain = messages.read_message(data, limits, _vla_eval_decoded)
        if not isinstance(plain, dict) or not VlaEvalCodec.first_keys <= plain.keys():
            raise WireError(f"a message has a type, a payload and a seq, this is {in_words(plain)}")
        kind, payload, number = plain["type"], plain["payload"], plain["seq"]
        if not isinstance(kind, str) or not isinstance(payload, dict) or type(number) is not int:
            raise WireError(f"a message has text, a map and a whole number, this has {in_words(list(plain.values()))}")
        return Message(kind=kind, payload=payload, number=number)

    def hello(self) -> bytes:
        """Return the client's hello."""
        # vla-eval's own runner sends its version here.
        return self.encode(HELLO, {"harness_version": "isaaclab-arena", "protocol_version": PROTOCOL_VERSION})

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the description in the server's hello."""
        message = self._read(said)
        if message.kind != HELLO:
            raise AnswerError(f"answered hello with '{message.kind}'")
        hello = message.payload
        if hello.get("protocol_version") != PROTOCOL_VERSION:
            version = in_words(hello.get("protocol_version"))
            raise AnswerError(f"speaks version {version} of the protocol, and {PROTOCOL_VERSION} is known here")
        names = ("action_spec", "observation_spec", "observation_params")
        self.specs = {name: hello[name] for name in names if isinstance(hello.get(name), dict)}
        return {name: value for name, value in hello.items() if name not in ("capabilities", "protocol_version")}

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message with the next number."""
        message = Message(kind=kind, payload=dict(payload or {}), number=self._number + 1)
        request = self.pack(message, self._picture_format)
        self._number += 1
        return request

    def decode(self, said: str | bytes | bytearray) -> Mapping[str, Any]:
        """Return the answer to the last observation."""
        message = self._read(said)
        if message.kind != ACTION:
            raise AnswerError(f"answered an observation with '{message.kind}', not with an action")
        if message.number != self._number:
            raise AnswerError(f"answered message {message.number}, and {self._number} is due: it repeats or skips one")
        return message.payload

    def _read(self, said: str | bytes | bytearray) -> Message:
        if isinstance(said, str):
            raise AnswerError(f"sent text: {said}")
        message = self.unpack(said, self.limits)
        if message.kind == ERROR:
            raise AnswerError(f"failed: {message.payload.get('error')}")
        return message


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """A picture as PNG or JPEG that is not decoded yet: a few kB may contain many millions of pixels."""

    form: str  # ``png`` or ``jpeg``
    data: bytes
    shape: tuple[int, int, int]  # height, width and channels, as the sender states them

    def decoded(self) -> np.ndarray:
        """Return the picture (height, width, channels) uint8; WireError if it is damaged or of another shape."""
        height, width, channels = self.shape
        try:
            with Image.open(io.BytesIO(self.data), formats=[_FORMATS[self.form]]) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                size = picture.size
                pixels = np.array(picture) if size == (width, height) else None
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise WireError(f"a picture is no {self.form}, or is damaged") from error
        if pixels is None:
            raise WireError(f"a picture has {size} pixels across and down, it says {(width, height)}")
        pixels = pixels.reshape(height, width, -1)
        if pixels.shape[2] != channels or pixels.dtype != np.uint8:
            raise WireError(f"a picture has {pixels.shape[2]} channels of {pixels.dtype}, it says {channels} of uint8")
        return pixels


def _vla_eval_encoded(value: Any, picture_format: PictureFormat) -> Any:
    is_picture = isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8
    if is_picture and picture_format != "raw" and value.shape[2] in _CHANNELS:
        if picture_format == "jpeg" and value.shape[2] == 4:
            raise TypeError("a picture with 4 channels as JPEG may not travel")
        file = io.BytesIO()
        plain = value[:, :, 0] if value.shape[2] == 1 else value
        Image.fromarray(plain).save(file, format=_FORMATS[picture_format], quality=_JPEG_QUALITY)
        return {_PICTURE: True, "format": picture_format, "data": file.getvalue(), "shape": list(value.shape)}
    if isinstance(value, np.ndarray) and value.dtype.kind not in "VOc":
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"a {type(value).__name__} may not travel")


def _vla_eval_decoded(value: dict[Any, Any]) -> Any:
    if _PICTURE not in value and "__ndarray__" not in value:
        return value
    if _PICTURE not in value:
        return messages.array_of(value.get("data"), messages.dtype_of(value.get("dtype")), value.get("shape"))
    form, data, shape = value.get("format"), value.get("data"), value.get("shape")
    if form == "raw":
        return messages.array_of(data, messages.dtype_of(value.get("dtype", "|u1")), shape)
    if form not in _FORMATS or not isinstance(data, bytes):
        raise WireError(f"a picture is raw, png or jpeg, and bytes; this is {in_words(form)} and {in_words(data)}")
    is_shape = isinstance(shape, list) and len(shape) in (2, 3) and all(type(size) is int for size in shape)
    height, width, channels = (*shape, 1)[:3] if is_shape and isinstance(shape, list) else (0, 0, 0)
    if min(height, width) < 1 or height * width > _MAX_PIXELS or channels not in _CHANNELS:
        raise WireError(f"a picture has height, width and 1, 3 or 4 channels, and at most {_MAX_PIXELS} pixels")
    return EncodedPicture(form=str(form), data=data, shape=(height, width, channels))


# The policy that asks such a server.


@dataclass(frozen=True)
class VlaEvalRemotePolicyCfg(ServerOptions, PolicyCfg):
    """Options of `VlaEvalRemotePolicy`.

    Attributes:
        address: The server, such as ``ws://localhost:8000``, instead of ``remote_host`` and ``remote_port``.
        images: Camera for each of the server's pictures; all in colour under their own names by default.
        states: Observations of the group ``policy``, in order, for each of the server's arrays, whose keys may lie
            inside each other: ``{"state.eef": ["eef_pos"]}``; all under their own names by default.
        image_size: Height and width of the pictures that are sent, padded with black if the aspect ratio differs; None
            for those they have.
        picture_format: How pictures travel: ``raw``, ``png`` or ``jpeg``, which loses details. Raw takes the least
            time on one machine, the others take fewer bytes.
        task: The server's description of the task at the start of an episode, beside its name and ``episode_idx``:
            ``{"suite": "libero_spatial"}``.
        action_chunk_length: Control steps that are played of an answer; more than 1 only for a server that answers with
            chunks and does not play them itself.
        execute: ``all`` to play every action of an answer, however many, instead of ``action_chunk_length`` of them.
        action_columns: Indices into the server's action for each number of the environment's; None if both are the
            same.
        remote_port: Port of the server.
        timeout_s: How long an answer may take [s]; the first one may have to wait for a compiler.
    """

    address: str | None = None
    images: Mapping[str, str] | None = None
    states: Mapping[str, Sequence[str]] | None = None
    image_size: tuple[int, int] | None = None
    picture_format: PictureFormat = "raw"
    task: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    action_chunk_length: int = 1
    execute: Literal["all"] | None = None
    action_columns: tuple[int, ...] | None = None
    remote_port: int = 8000
    timeout_s: float = 120.0


class VlaEvalRemotePolicy(RemoteChunks[VlaEvalRemotePolicyCfg]):
    """Asks a model server of vla-eval, in one session per env slot."""

    # Env slots are asked all at once, so that a server that batches sessions has full batches. A session carries the
    # start and end of its episodes, and the server may keep state in between. So an episode whose session is lost is an
    # error.
    name: ClassVar[str] = "vla_eval_remote"
    server: ClassVar[str] = "vla-eval model server"
    config_class: ClassVar[type | None] = VlaEvalRemotePolicyCfg
    # A server batches sessions of several clients, so the last digits of their actions depend on each other.
    traits = PolicyTraits(serves_any_num_envs=True, uses_own_device=False, pictures="announced", remote=True)

    def __init__(self, config: VlaEvalRemotePolicyCfg) -> None:
        super().__init__(config, lambda: VlaEvalCodec(config.picture_format))
        self._specs = self._connections.codec.specs
        # Env slots whose session has a running episode.
        self._running: set[int] = set()

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, without asking the server: ConfigError with every problem."""
        problems = mistaken_options(config)
        if config.address is not None and addressed(config) is config:
            problems.append(Problem(f"must be like ws://localhost:8000, got {config.address!r}", key="address"))
        refuse(problems)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that contradicts the job or the server's hello: ConfigError with every problem."""
        options, (action_dim,) = self.config, env.action_spec.shape
        images, states = self.inputs(options, env)
        problems = misfits(env, images, states, options.action_columns)

        # The server's inputs. Names are not compared: servers call any picture ``image``, and take the first one.
        specs, picture = self._specs, "rgb_hwc_uint8"
        formats = {str(name): _entry(part, "format", "") for name, part in specs.get("observation_spec", {}).items()}
        pictures = [name for name, form in formats.items() if form == picture]
        arrays = [name for name, form in formats.items() if form not in (picture, "language")]
        if len(pictures) > len(images):
            message = f"the server wants {len(pictures)} pictures ({_listed(pictures)}), and is shown {len(images)}"
            problems.append(Problem(message, key="images"))
        if arrays and not states:
            problems.append(Problem(f"the server wants {_listed(arrays)}, and is shown pictures alone", key="states"))

        # Its action. Some servers declare only a part of it, so one that is declared too small is no problem. ``dims``
        # is 0 if a server states none.
        dims = [_entry(part, "dims", 0) for part in specs.get("action_spec", {}).values()]
        if options.action_columns is None and all(dims) and sum(dims) > action_dim:
            parts = _listed(list(specs["action_spec"]))
            message = (
                f"the server's action has {sum(dims)} numbers ({parts}), the environment's {action_dim}; "
                "say which to take"
            )
            problems.append(Problem(message, key="action_columns"))
        refuse(problems)

        # The server may expect options of vla-eval's own benchmarks, which only the user can translate.
        if specs.get("observation_params"):
            wanted = plain_text(str(specs["observation_params"])[:500])
            _LOG.warning("the server asks benchmarks of vla-eval for %s; make_kwargs of the job may give it", wanted)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Send each session the start of its env slot's episode."""
        super().start_episodes(env, starts)
        for start in starts:
            name = start.conditions.get("vla_eval.task", start.language_instruction)
            task = {"name": name, "episode_idx": start.episode.episode_index, **self.config.task}
            self._connections.of(start.env_id).begin((EPISODE_START, {"task": task}))
            self._running.add(start.env_id)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Send each session the end of its episode, and stop asking."""
        super().end_episodes(env, env_ids)
        self._end(env_ids)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """End the episodes of `env_ids`, or of all env slots with None, and drop their remaining chunks."""
        super().reset(env_ids)
        self._end(sorted(self._running) if env_ids is None else env_ids.tolist())

    @staticmethod
    def answered_actions(answer: Mapping[str, Any]) -> object:
        """Return the actions of an answer, which may be a single one instead of a chunk."""
        actions = answer.get("actions")
        return actions[None] if isinstance(actions, np.ndarray) and actions.ndim == 1 else actions

    def _end(self, env_ids: Sequence[int]) -> None:
        for env_id in self._running.intersection(env_ids):
            self._connections.of(env_id).end((EPISODE_END, {}))
        self._running.difference_update(env_ids)

    def question(
        self, env: Environment, env_id: int, pictures: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Return pictures, states and instruction of an env slot, whose episode has begun."""
        if env_id not in self._running:
            # A loop that does not announce its episodes plays one in each env slot.
            task = {"name": self._words_for(env, env_id), **self.config.task}
            self._connections.of(env_id).begin((EPISODE_START, {"task": task}))
            self._running.add(env_id)

        # Nest the arrays in dicts, one level for each dot in their names.
        nested: dict[str, Any] = {}
        for name, array in states.items():
            *outer, last = name.split(".")
            place = nested
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = array
        return {**nested, "images": pictures, "task_description": self._words_for(env, env_id)}


def _entry(part: object, name: str, default: Any) -> Any:
    """Return an entry of a part of the server's hello, `default` if it is missing or of another type."""
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if type(value) is type(default) else default


def _listed(names: list[Any]) -> str:
    return f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"[:200]
