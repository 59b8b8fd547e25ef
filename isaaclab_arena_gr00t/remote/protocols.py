"""Policy servers: their addresses, the channels to them, and the messages of GR00T, openpi and vla-eval."""

import hashlib
import io
import logging
import re
import socket as sockets
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync import client

from arena_wire import gr00t, messages
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, in_words, outline
from arena_wire.zmtp import RequestSocket
from isaaclab_arena.errors import ConfigError, Problem, problems_into, refuse
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena_gr00t.config import StatedModality

# Read the address and the time limits of a policy server from the options of a job.

KEY_FILE_OPTION = "remote_api_token_file"


@dataclass(frozen=True)
class ServerOptions:
    """The options of a job for its policy server; every policy that asks one has them.

    Attributes:
        remote_host: Machine of the server.
        remote_port: Its port.
        remote_api_token: Refused: a run writes its options into its output, where a token should not be.
        remote_api_token_file: File whose only line is what the server asks for.
        timeout_s: How long an answer may take [s].
        wait_for_server_s: How long to wait for a server that is not there, at the start or later [s].
    """

    remote_host: str = "localhost"
    remote_port: int = 5555
    remote_api_token: str | None = None
    remote_api_token_file: str | None = None
    timeout_s: float = 30.0
    wait_for_server_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a policy server, with its token (None if it needs none) and time limits [s]."""

    host: str = "localhost"
    port: int = 5555
    api_token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0  # limit of one answer
    wait_for_server_s: float = 60.0  # how long to wait for an absent server, at the start or later

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def server_address(options: ServerOptions) -> ServerAddress:
    """Return the address of the server; ConfigError with every wrong option."""
    problems = address_problems(options)
    refuse(problems)
    file = options.remote_api_token_file
    return ServerAddress(
        host=options.remote_host,
        port=options.remote_port,
        api_token=None if file is None else token_in(file),
        timeout_s=options.timeout_s,
        wait_for_server_s=options.wait_for_server_s,
    )


def address_problems(options: ServerOptions) -> list[Problem]:
    """Return the problems of the options for the server."""
    host, port = options.remote_host, options.remote_port
    problems = []
    if not host or not host.isprintable() or any(map(str.isspace, host)):
        problems.append(Problem(f"must be the name of a machine, got {host!r}", key="remote_host"))
    if not 0 < port < 65536:
        problems.append(Problem(f"must be between 1 and 65535, got {port}", key="remote_port"))
    problems += [
        Problem(f"must be more than 0 s, got {seconds:g}", key=key)
        for key, seconds in (("timeout_s", options.timeout_s), ("wait_for_server_s", options.wait_for_server_s))
        if not 0 < seconds < float("inf")
    ]
    # A run writes the options of its jobs into its output, where a token must not be.
    if options.remote_api_token is not None:
        message = (
            "is refused, since a run writes the options of its jobs into its output, where others may read them; put "
            f"it into a file of one line, and name that in {KEY_FILE_OPTION}"
        )
        problems.append(Problem(message, key="remote_api_token"))
    if options.remote_api_token_file is not None:
        with problems_into(problems):
            token_in(options.remote_api_token_file)
    return problems


def token_in(file: str, *, key: str = KEY_FILE_OPTION) -> str:
    """Return the token on the only line of a file; ConfigError for the option `key` if there is none."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror}", key=key) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' is no text: {error.reason}", key=key) from error
    if not text or not text.isprintable():
        found = "several lines, or signs that cannot be printed" if text else "nothing"
        raise ConfigError(f"'{file}' must hold the server's token on one line, it holds {found}", key=key)
    return text


# Connections that carry messages, and their errors.


class AnswerError(Exception):
    """A server's answer that cannot be used. Its text continues a sentence that begins with the server's name."""


class UnauthorisedError(Exception):
    """The server wants another token; the text is the server's message."""


class LeavingError(OSError):
    """The server says that it shuts down."""


# Talk over a websocket, within limits of time and size.

ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""

_CLOSE_S = 1.0
_LOOK_S = 0.05
_UNAUTHORISED = (401, 403)
_REDIRECTS = (300, 301, 302, 303, 307, 308)
_TOO_LARGE = 1009

# Each error of the library becomes one message of this program, so its own tracebacks are not logged.
_QUIET = logging.getLogger("websockets.client.of_policies")
_QUIET.setLevel(logging.CRITICAL)


@dataclass(kw_only=True, eq=False)
class _Deadlines:
    """Shuts late sockets down, so that no thread of the library waits for a server."""

    # The library answers pings at any time. A server that sends pings and reads no answers, or reads a byte now and
    # then, would block all its threads.
    lock: threading.Lock = field(default_factory=threading.Lock)
    of_sockets: dict[sockets.socket, float] = field(default_factory=dict)  # moments of `time.monotonic` [s]
    thread: threading.Thread | None = None

    def watch(self) -> None:
        """Shut each socket down whose moment has passed, for ever."""
        while True:
            time.sleep(_LOOK_S)
            with self.lock:
                late = [socket for socket, deadline in self.of_sockets.items() if time.monotonic() > deadline]
                for socket in late:
                    del self.of_sockets[socket]
                    with suppress(OSError):
                        socket.shutdown(sockets.SHUT_RDWR)


_DEADLINES = _Deadlines()


class Websocket:
    """One websocket to a policy server, for one thread; to be closed after any error, as a late answer misleads."""

    def __init__(
        self, address: ServerAddress, timeout_s: float, *, numbers_answers: bool, limits: WireLimits = ANSWER_LIMITS
    ) -> None:
        # OSError: no connection in time, or the server refuses it. UnicodeError: invalid host name. UnauthorisedError:
        # the server wants another ``Authorization: Api-Key``.
        self._limits = limits
        # If answers have no numbers, `send` refuses an early message: it would be taken for the answer.
        self._numbers_answers = numbers_answers
        self._open = ExitStack()
        token = address.api_token
        deadline = time.monotonic() + timeout_s
        # With a socket of ours the library follows no redirect, and `_Deadlines` can end its waits.
        self._socket = sockets.create_connection((address.host, address.port), timeout=timeout_s)
        self._open.callback(self._socket.close)
        self._socket.settimeout(None)
        try:
            with self._within(deadline - time.monotonic()):
                dialled = client.connect(
                    f"ws://{address}",
                    sock=self._socket,
                    compression=None,
                    max_size=limits.max_message_bytes,
                    additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                    open_timeout=timeout_s,
                    close_timeout=_CLOSE_S,
                    # The server's model blocks its event loop, so it answers no ping meanwhile.
                    ping_interval=None,
                    proxy=None,
                    logger=_QUIET,
                )
                self._connection = self._open.enter_context(dialled)
        except BaseException as error:
            self._open.close()
            refused = error if isinstance(error, InvalidStatus) else error.__cause__
            if isinstance(refused, InvalidStatus):
                response = refused.response
                if response.status_code in _UNAUTHORISED:
                    raise UnauthorisedError(str(refused)) from error
                place = response.headers.get("Location") if response.status_code in _REDIRECTS else None
                if place is not None:
                    message = f"it sends clients to {place}, which is not followed; give that address"
                    raise ConnectionError(message) from error
            if isinstance(error, InvalidURI):
                raise UnicodeError(str(error)) from error
            if isinstance(error, WebSocketException):
                # If a server ends at this moment, the kind of error depends on the progress of the handshake.
                raise ConnectionError(f"it refuses the connection ({error})") from error
            raise

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a message; OSError if the connection is lost or slow, WireError if the server sent something unasked."""
        try:
            with self._within(timeout_s):
                if not self._numbers_answers:
                    # An early message would be taken for the answer to this one.
                    try:
                        self._connection.recv(timeout=0)
                    except TimeoutError:
                        pass
                    else:
                        raise WireError("it answered twice, or what it was not asked")
                self._connection.send(request)
        except TimeoutError as error:
            raise TimeoutError(f"it read nothing for {timeout_s:g} s") from error
        except WebSocketException as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float) -> str | bytes:
        """Return the next message; OSError if the connection is lost or too slow, WireError if it is too large."""
        try:
            with self._within(timeout_s):
                return self._connection.recv(timeout=timeout_s)
        except WebSocketException as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        with suppress(TimeoutError), self._within(_CLOSE_S):
            self._open.close()

    @contextmanager
    def _within(self, timeout_s: float) -> Iterator[None]:
        """Limit the time of a block in which the library uses the socket; TimeoutError if it took longer."""
        deadline = time.monotonic() + timeout_s
        with _DEADLINES.lock:
            _DEADLINES.of_sockets[self._socket] = deadline
            # A forked process lacks the thread of its parent.
            if _DEADLINES.thread is None or not _DEADLINES.thread.is_alive():
                _DEADLINES.thread = threading.Thread(
                    target=_DEADLINES.watch, name="deadlines of websockets", daemon=True
                )
                _DEADLINES.thread.start()
        try:
            yield
        except (OSError, WebSocketException, AssertionError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError("timed out") from error
            if isinstance(error, AssertionError):
                # The library does not expect, for example, an answer that comes before the request.
                raise ConnectionError("it speaks out of turn") from error
            raise
        finally:
            with _DEADLINES.lock:
                _DEADLINES.of_sockets.pop(self._socket, None)

    def _lost(self, error: WebSocketException) -> Exception:
        if isinstance(error, ConnectionClosed):
            # The side that closed first received the large message; the other side repeats the code.
            if error.rcvd is not None and error.rcvd.code == _TOO_LARGE and error.rcvd_then_sent is not False:
                return WireError(f"it takes no message as large as this one ({error.rcvd})")
            if error.sent is not None and error.sent.code == _TOO_LARGE:
                most = self._limits.max_message_bytes
                return WireError(f"the answer has more bytes than the {most} that are allowed")
        return ConnectionError(f"the connection is lost ({error})")


Channel: TypeAlias = Websocket | RequestSocket
"""A connection of one thread that carries messages, within limits of time and size."""

# The protocols: the first messages, and the form of questions and answers.


class Codec(ABC):
    """One protocol on one connection: its messages as bytes. It neither waits nor repeats."""

    # Name of its servers in messages, the policy that asks them, the prefix of an address, and the end of the message
    # that no server answers, with the command that starts one.
    server: ClassVar[str]
    policy_type: ClassVar[str]
    scheme: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    # True if an answer states its question's number. Without numbers an early answer would be taken for a later one.
    numbers_answers: ClassVar[bool] = False
    # True if the server keeps an episode's observations per connection. Once the server has answered in an episode, the
    # episode cannot go on in another connection.
    remembers: bool = False

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits  # of a message from the server

    # UnauthorisedError from `dial`, `introduced` or `decode`: the server wants another token. WireError: no message of
    # this protocol. AnswerError: the server failed, answers another question, or is of no use. LeavingError: it ends.

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Return a new connection; OSError if there is none in time, UnicodeError for an invalid host name."""
        if self.scheme:
            return Websocket(address, timeout_s, numbers_answers=self.numbers_answers, limits=self.limits)
        return RequestSocket(address.host, address.port, timeout_s=timeout_s, max_bytes=self.limits.max_message_bytes)

    def hello(self) -> bytes | None:
        """Return the client's first message, None if the server speaks first."""
        return None

    @abstractmethod
    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the server's description in its first message, None if it has none."""

    @abstractmethod
    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a message to the server; WireError if the payload holds a type that the protocol cannot encode."""

    @abstractmethod
    def decode(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last question."""


# Write a policy server's description of its model, in one line.

_MAX_LENGTH = 400


def identity_line(stated: object) -> str:
    """Return a server's description as one line of JSON, `UNKNOWN` if it has none; cut, with a hash, if it is long."""
    if not isinstance(stated, Mapping) or not stated:
        return UNKNOWN
    line = json_line({str(name): stated[name] for name in sorted(stated, key=str)})
    if len(line) <= _MAX_LENGTH:
        return line
    return f"{line[:_MAX_LENGTH]}… (SHA-256 {hashlib.sha256(line.encode()).hexdigest()})"


OBSERVATION = "observation"
"""The kind of question that openpi's and vla-eval's servers answer with actions."""


# GR00T: a ping first, then one request at a time, over ZeroMQ.


class Gr00tCodec(Codec):
    """The protocol of NVIDIA's server and of ``gr00t-server``."""

    server = "GR00T policy server"
    policy_type = "gr00t_remote_closedloop"
    advice = "; start one with: gr00t-server --model_path CHECKPOINT --port {port}"

    def __init__(self, api_token: str | None = None, limits: WireLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._api_token = api_token
        # Arrays are sent in the format of the server's answers. Ask for ``get_modality_config`` first to learn the
        # format. An answer depends only on its question, so questions may be repeated.
        self._arrays = gr00t.ArrayFormat.NPY
        self._asked = "ping"

    def hello(self) -> bytes:
        """Return a ping."""
        return self.encode("ping", None)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the description of the server's model in its answer to a ping; NVIDIA's has none."""
        answer = self.decode(said)
        return answer.get("serves") if isinstance(answer, dict) else None

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a request to an endpoint."""
        self._asked = kind
        data = {} if payload is None else {"data": payload}
        token = {"api_token": self._api_token} if self._api_token else {}
        return gr00t.pack({"endpoint": kind, **data, **token}, self._arrays)

    def decode(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last request."""
        data = said.encode() if isinstance(said, str) else said
        message, arrays = gr00t.received(data, self.limits, modality=StatedModality)
        self._arrays = arrays or self._arrays
        if not isinstance(message, dict) or "error" not in message:
            return message
        says = str(message["error"])
        # The included server's answer to waiting clients when it ends.
        if says == "the server is shutting down":
            raise LeavingError(says)
        if says.startswith("Unauthorized"):
            raise UnauthorisedError(says)
        raise AnswerError(f"could not answer '{self._asked}': {says}")


# openpi: the server describes its model, then answers observations. No message numbers, no seeds and no episodes.

_TEXT_TYPE = re.compile(r"<U(\d{1,6})")
_LAST_CHARACTERS = 4000


class OpenpiCodec(Codec):
    """The protocol of openpi's servers: msgpack, with arrays as maps with byte keys."""

    server = "openpi policy server"
    policy_type = "openpi_remote"
    scheme = "ws://"

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
        outline(data, limits)
        return messages.read_message(data, _openpi_decoded)

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
            raise AnswerError(f"answered {in_words(answer)}, a map is due")
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


# vla-eval: both say hello, then episodes start, are asked about, and end. A message has a type, a payload and a number.

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
    scheme = "ws://"
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
        outline(data, limits)
        plain = messages.read_message(data, _vla_eval_decoded)
        if not isinstance(plain, dict) or not {"type", "payload", "seq"} <= plain.keys():
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
