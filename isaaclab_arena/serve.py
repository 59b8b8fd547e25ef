"""Serve a policy to other programs, in a protocol that they speak: ``isaaclab-arena serve``."""

import hashlib
import hmac
import ipaddress
import itertools
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import metadata
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from arena_wire.messages import WireError, WireLimits, in_words
from isaaclab_arena.config.command_line import read_some
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import Count, NotNegative, wrong_numbers
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.distributed.context import take_rank_of_scheduler
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, did_you_mean, refuse
from isaaclab_arena.evaluation import serving
from isaaclab_arena.evaluation.job import ContentReader, Job
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block, job_request
from isaaclab_arena.evaluation.process import program, watch_for_interruption
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.logs import plain_text
from isaaclab_arena.nested import value_at
from isaaclab_arena.paths import typed_words
from isaaclab_arena.registry import Registry
from isaaclab_arena.remote import vla_eval
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION, ServerAddress, token_in
from isaaclab_arena.storage.atomic import json_line

_LOG = logging.getLogger(__name__)

# Define the address and the access of a policy server of any protocol.


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The address of a server, and limits on its clients."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0 for a free one
    api_token: str | None = field(default=None, repr=False)  # the token that clients must send, None for none
    max_message_bytes: int = 64 * 1024 * 1024  # of a client


# Answer ``GET /health`` over HTTP, which needs no token.

PATHS = ("/health", "/healthz")


def health_answer(stated: Mapping[str, Any], *, is_served: bool) -> tuple[HTTPStatus, bytes]:
    """Return the status of ``GET /health``, 200 while the policy is served and else 503, and one line of JSON."""
    status = HTTPStatus.OK if is_served else HTTPStatus.SERVICE_UNAVAILABLE
    return status, f"{json.dumps({'status': 'ok' if is_served else 'closed', **stated})}\n".encode()


# Map the pictures and states of a client's observation to the terms of an environment.

STATES = "policy"
"""The group of an observation without pictures."""


@dataclass(frozen=True, kw_only=True)
class ObservationMapping:
    """The keys of a client's observation, and the environment's terms that they contain."""

    images: Mapping[str, str]  # key of a picture to camera
    states: Mapping[str, Sequence[str]]  # key of an array to its terms of the group ``policy``, one behind the other
    spec: Mapping[str, Any]  # of the environment's observations

    @property
    def state_sizes(self) -> dict[str, int]:
        """The number of values in each of a client's arrays."""
        terms = self.spec.get(STATES, {})
        return {key: sum(math.prod(terms[name].shape) for name in names) for key, names in self.states.items()}

    def shown(self) -> dict[str, set[str]]:
        """Return the terms that clients send, by group."""
        names = {name for names in self.states.values() for name in names}
        return {STATES: names, CAMERAS: set(self.images.values())}

    def observation(self, pictures: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a client's pictures and states as an observation; ObservationRefusedError if one does not fit."""
        found: dict[str, dict[str, Any]] = {}
        # A client may send no picture at all, for a policy that sees none. Shapes are checked later.
        if self.images and any(value_of(pictures, key) is not None for key in self.images):
            found[CAMERAS] = {}
            for key, camera in self.images.items():
                picture = _found(pictures, key, "picture")
                # A picture is decoded only if its stated size is that of the environment's pictures.
                if isinstance(picture, vla_eval.EncodedPicture):
                    shape = self.spec[CAMERAS][camera].shape
                    if picture.shape != shape:
                        raise serving.ObservationRefusedError(f"'{key}' has shape {picture.shape}, {shape} is due")
                    try:
                        picture = picture.decoded()
                    except WireError as error:
                        raise serving.ObservationRefusedError(f"'{key}': {error}") from error
                found[CAMERAS][camera] = picture
        if self.states:
            found[STATES] = {}
        for key, names in self.states.items():
            # A client's array may be a list of numbers.
            value = _found(states, key, "state")
            try:
                numbers = np.asarray(value)
            except ValueError:
                numbers = np.asarray(None)
            if numbers.dtype.kind not in "biuf":
                raise serving.ObservationRefusedError(f"'{key}' must be an array of numbers, it is {in_words(value)}")

            # Split it into the terms of the environment, which lie one behind the other.
            shapes = [self.spec[STATES][name].shape for name in names]
            sizes = [math.prod(shape) for shape in shapes]
            if numbers.size != sum(sizes):
                due = ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
                raise serving.ObservationRefusedError(
                    f"'{key}' has {numbers.size} numbers, {sum(sizes)} are due: {due}"
                )
            parts = np.split(numbers.reshape(-1), np.cumsum(sizes)[:-1])
            found[STATES] |= {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return found


def mapping_of(
    spec: Mapping[str, Any], images: Mapping[str, str] | None, states: Mapping[str, Sequence[str]] | None
) -> ObservationMapping:
    """Return the mapping for an environment; ConfigError for an unknown or repeated camera or term."""
    cameras, terms = spec.get(CAMERAS, {}), spec.get(STATES, {})
    # With None, every camera and term has its own name as key.
    images = {name: name for name in cameras} if images is None else images
    states = {name: [name] for name in terms} if states is None else states
    named = [name for names in states.values() for name in names]
    problems = []
    for used, known, what, option in (
        (list(images.values()), cameras, "camera", "--images"),
        (named, terms, "observation", "--states"),
    ):
        problems += [
            Problem(f"the environment has no {what} '{name}'{did_you_mean(name, known)}", key=option)
            for name in used
            if name not in known
        ]
        twice = sorted({name for name in used if used.count(name) > 1})
        problems += [Problem(f"names the {what} '{name}' twice", key=option) for name in twice]
    refuse(problems)
    return ObservationMapping(images=images, states=states, spec=spec)


def value_of(message: Mapping[str, Any], key: str) -> Any:
    """Return the value under a key of a message, or at the path that its dots spell; None if there is none."""
    return message[key] if key in message else value_at(message, key.split("."))


def _found(message: Mapping[str, Any], key: str, what: str) -> Any:
    value = value_of(message, key)
    if value is None:
        names = [str(name)[:50] for name in list(message)[:20]]
        raise serving.ObservationRefusedError(f"the observation has no {what} '{key}'{did_you_mean(key, names)}")
    return value


# Describe the job whose policy is served: its names, its sizes and the identity of its episodes.


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedJob:
    """The job whose policy is served."""

    policy: serving.HostedPolicy
    mapping: ObservationMapping  # the clients' names for the terms of its environment
    contents: Mapping[str, str]  # hashes of the policy's parts, for clients to record

    @property
    def stated(self) -> dict[str, Any]:
        """The description that clients receive, and record as the model that they asked."""
        config = self.policy.job.config
        try:
            version = f" {metadata.version('isaaclab-arena-mujoco')}"
        except metadata.PackageNotFoundError:
            version = ""
        return {
            "program": f"isaaclab-arena{version}",
            "job": config.name,
            "policy_type": config.policy_type,
            "environment": config.environment,
            "seed": config.seed,
            **self.contents,
        }

    def instruction(self, key: str, words: object) -> str | None:
        """Return a client's instruction, None if none is needed; ObservationRefusedError if it is wrong or missing."""
        if isinstance(words, str) and words.strip():
            return words
        if words is None and (not self.policy.reads_instruction or self.policy.job.config.language_instruction):
            return None
        if words is None:
            raise serving.ObservationRefusedError(f"'{key}' is missing; the policy reads an instruction")
        raise serving.ObservationRefusedError(f"'{key}' must be a text that says something, it is {in_words(words)}")

    def episode(self, episode_index: int) -> Episode:
        """Return an episode of the job, with its random streams."""
        config = self.policy.job.config
        return Episode(job=config.name, episode_index=episode_index, seed=config.seed)


# Write the errors that clients receive.


def error_text(what: str, error: object) -> str:
    """Return an error as a short text for a client, without control characters."""
    return plain_text(f"{what}: {str(error)[:500]}")


def failure_text(error: Exception) -> str:
    """Return the text for a client whose query failed, and log the traceback of an unexpected error."""
    if isinstance(error, serving.ObservationRefusedError):
        return error_text("observation refused", error)
    if not isinstance(error, ArenaError):
        _LOG.warning("the policy failed", exc_info=error)
    return error_text("policy failed", f"{type(error).__name__}: {error}")


# Serve over websockets: a thread and an env slot for each connection of openpi's or vla-eval's clients.

_TRY_AGAIN = 1013
_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_LONGEST_REASON_BYTES = 120


Talk: TypeAlias = Callable[[ServerConnection, serving.HostSession], None]
"""Talks with one client: it gets the connection and its session, and returns or raises when that is over."""


class WebsocketServer:
    """Gives each connection a session of a policy host, until it closes; OSError if the port is taken."""

    def __init__(self, host: serving.PolicyHost, talk: Talk, listen: ListenOptions, stated: Mapping[str, Any]) -> None:
        # ``GET /health`` answers with `stated` and the number of sessions. It needs no token.
        self._host, self._talk, self._listen, self._stated = host, talk, listen, stated
        self._server = serve(
            self._hold,
            listen.host,
            listen.port,
            compression=None,
            process_request=self._before,
            open_timeout=_HANDSHAKE_S,
            close_timeout=_CLOSE_S,
            # A simulating client answers no ping meanwhile. The operating system notices a lost machine.
            ping_interval=None,
            max_size=listen.max_message_bytes,
            # Messages that a client sends before it has read its answer must wait on its side.
            max_queue=1,
            server_header=None,
        )
        self.port: int = self._server.socket.getsockname()[1]
        self.address = f"ws://{ServerAddress(host=listen.host, port=self.port)}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="websockets")

    @property
    def is_running(self) -> bool:
        """True while the policy is served."""
        return not self._host.is_closed

    @property
    def failure(self) -> str | None:
        """The reason why the policy is served no longer, None without a failure."""
        return self._host.failure

    def start(self) -> None:
        """Begin to accept connections, on threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Close the policy host and every connection, and stop."""
        self._host.close()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        else:
            self._server.socket.close()

    def _before(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.partition("?")[0] in PATHS:
            stated = {**self._stated, **self._host.statistics()}
            status, body = health_answer(stated, is_served=not self._host.is_closed)
            headers = [
                ("Connection", "close"),
                ("Content-Length", str(len(body))),
                ("Content-Type", "application/json"),
            ]
            return Response(status.value, status.phrase, Headers(headers), body)

        # Only a client with the token may connect, and only if an env slot is free.
        token = self._listen.api_token
        given = request.headers.get("Authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Api-Key {token}".encode()):
            return connection.respond(
                HTTPStatus.UNAUTHORIZED, "this server wants its token as 'Authorization: Api-Key TOKEN'\n"
            )
        try:
            self._host.check_room()
        except serving.HostFullError as error:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        return None

    def _hold(self, connection: ServerConnection) -> None:
        """Talk with one client, and release its env slot at the end."""
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            session = self._host.open()
        except serving.HostFullError as error:
            connection.close(_TRY_AGAIN, str(error)[:_LONGEST_REASON_BYTES])
            return
        try:
            self._talk(connection, session)
        except ConnectionClosed as error:
            _LOG.debug("a client has gone: %s", plain_text(error))
        finally:
            session.close()


# Talk with clients of openpi: describe the policy, then answer every observation with a chunk of actions.


@dataclass(frozen=True, eq=False)
class OpenpiTalks:
    """Talks with every client of openpi."""

    # The protocol has no episodes. So each observation is the first of an episode of its own: a policy that plays
    # chunks answers with a whole chunk, and no state of another episode remains.
    served: ServedJob
    limits: WireLimits
    prompt_key: str = field(kw_only=True)
    numbers: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __call__(self, connection: ServerConnection, session: serving.HostSession) -> None:
        """Talk with one client until it closes the connection."""
        served = self.served
        metadata = {
            **served.stated,
            "action_dim": served.policy.environment.action_spec.shape[0],
            "action_horizon": served.policy.chunk_length,
            "images": list(served.mapping.images),
            "states": served.mapping.state_sizes,
            "prompt_key": self.prompt_key,
        }
        connection.send(OpenpiCodec.pack(metadata))
        for data in connection:
            # An error is text, as openpi's own server writes it.
            connection.send(self._answer(data, session))

    def _answer(self, data: str | bytes, session: serving.HostSession) -> str | bytes:
        if isinstance(data, str):
            return error_text("unreadable message", "this server speaks openpi's protocol, whose clients send no text")
        try:
            request = OpenpiCodec.unpack(data, self.limits)
        except WireError as error:
            return error_text("unreadable message", error)
        began_s = time.perf_counter()
        if not isinstance(request, Mapping):
            return error_text("observation refused", f"an observation is a map, this is {in_words(request)}")
        try:
            observation = self.served.mapping.observation(request, request)
            words = self.served.instruction(self.prompt_key, request.get(self.prompt_key))
            session.start_episode(self.served.episode(next(self.numbers)), words)
            actions = session.act(observation).planned
        except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
            return failure_text(error)
        return OpenpiCodec.pack(
            {"actions": actions, "server_timing": {"infer_ms": 1000 * (time.perf_counter() - began_s)}}
        )


# Talk with clients of vla-eval, whose sessions have episodes.

_FORMAT = "isaaclab_arena"


@dataclass(frozen=True, eq=False)
class VlaEvalTalks:
    """Talks with every client of vla-eval: says hello, and plays the episodes that they begin and end."""

    served: ServedJob
    limits: WireLimits
    unnumbered: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __call__(self, connection: ServerConnection, session: serving.HostSession) -> None:
        """Talk with one client until it closes the connection."""
        # An episode begins with its first observation, which has the instruction.
        begins: Episode | None = None
        for data in connection:
            answer: vla_eval.Message | None = None
            try:
                message = vla_eval.VlaEvalCodec.unpack(data, self.limits)
            except WireError as error:
                connection.send(vla_eval.VlaEvalCodec.pack(_error(error_text("unreadable message", error), 0)))
                continue
            if message.kind == vla_eval.HELLO:
                answer = self._hello(message)
            elif message.kind == vla_eval.EPISODE_START:
                session.end_episode()
                # A task without a number of its episode gets the next one of a common counter.
                task = message.payload.get("task")
                index: Any = task.get("episode_idx") if isinstance(task, Mapping) else None
                is_number = isinstance(index, int) and not isinstance(index, bool) and index >= 0
                begins = self.served.episode(index if is_number else next(self.unnumbered))
            elif message.kind == vla_eval.EPISODE_END:
                session.end_episode()
                begins = None
            elif message.kind == OBSERVATION:
                try:
                    observation = self._observation(message.payload)
                    if begins is not None:
                        words = message.payload.get("task_description")
                        session.start_episode(begins, self.served.instruction("task_description", words))
                        begins = None
                    payload = {"actions": session.act(observation).action}
                    answer = vla_eval.Message(kind=vla_eval.ACTION, payload=payload, number=message.number)
                except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
                    answer = _error(failure_text(error), message.number)
            elif message.kind == vla_eval.ERROR:
                _LOG.warning("a client reports an error: %s", plain_text(str(message.payload.get("error"))[:500]))
            else:
                answer = _error(error_text("unknown message", f"type {in_words(message.kind)}"), message.number)
            if answer is not None:
                connection.send(vla_eval.VlaEvalCodec.pack(answer))

    def _observation(self, payload: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        pictures = payload.get("images", {})
        if not isinstance(pictures, Mapping):
            raise serving.ObservationRefusedError(f"'images' must hold pictures by name, it is {in_words(pictures)}")
        return self.served.mapping.observation(pictures, payload)

    def _hello(self, message: vla_eval.Message) -> vla_eval.Message:
        """Return the server's hello: its description, and the specs of actions and observations."""
        version = message.payload.get("protocol_version")
        if version != vla_eval.PROTOCOL_VERSION:
            words = f"version {in_words(version)} of the protocol is not known here, {vla_eval.PROTOCOL_VERSION} is"
            return _error(error_text("hello refused", words), message.number)
        served = self.served
        pictures = {key: _spec(key, 0, "rgb_hwc_uint8") for key in served.mapping.images}
        states = {key: _spec(key, size, _FORMAT) for key, size in served.mapping.state_sizes.items()}
        payload = {
            "harness_version": served.stated["program"],
            "protocol_version": vla_eval.PROTOCOL_VERSION,
            "model_server": "isaaclab_arena",
            "capabilities": {},
            **served.stated,
            "action_spec": {"action": _spec("action", served.policy.environment.action_spec.shape[0], _FORMAT)},
            "observation_spec": {**pictures, **states, "language": _spec("language", 0, "language")},
        }
        return vla_eval.Message(kind=vla_eval.HELLO, payload=payload, number=message.number)


def _spec(name: str, dims: int, form: str) -> dict[str, Any]:
    return {"name": name, "dims": dims, "format": form}


def _error(text: str, number: int) -> vla_eval.Message:
    return vla_eval.Message(kind=vla_eval.ERROR, payload={"error": text}, number=number)


# The options of ``isaaclab-arena serve``, and the job that they name.

_JOB_FILES = (".json", ".yaml", ".yml")
_ONE_EPISODE = 1
"""Jobs need a length to be read, and a server has none."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve a policy to other programs: JOBS_FILE:JOB, or POLICY_TYPE ENVIRONMENT [options of both]."""

    protocol: Literal["vla_eval", "openpi", "gr00t"]
    """Protocol of the clients: vla_eval, sessions with episodes; openpi or gr00t, single queries."""
    job: str | None = None
    """Name of the job, if only its file is given."""
    host: str = "127.0.0.1"
    """Address to listen on. By default only this machine can connect; 0.0.0.0 accepts connections from any machine."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port to listen on; 0 for a free one, which is printed. By default that of the protocol's own servers."""
    api_token: str | None = None
    """Token that clients must send. Other users of this machine can see it in the list of processes."""
    api_token_file: str | None = None
    """File whose only line is the token that clients must send."""
    images: tuple[str, ...] = ()
    """Keys of the pictures in a client's observation, KEY=CAMERA; by default every camera under its own name."""
    states: tuple[str, ...] = ()
    """Keys of the arrays, KEY=TERM,TERM for concatenated terms; by default every term under its own name."""
    prompt_key: str = "prompt"
    """Key of the instruction in an observation of openpi."""
    max_sessions: Count = 16
    """Connections at a time, each with an env slot; a multiple of 4 suits most networks."""
    max_batch: Count = 64
    """Most queries in one call of the policy."""
    max_wait_ms: NotNegative = 5
    """Longest wait of a call's first query for queries of other sessions [ms]."""
    max_message_mb: Count | None = None
    """Largest message of a client; by default 64, and 256 for gr00t, whose messages hold many env slots."""
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for GET /health, for gr00t only; 0 for a free one, which is printed. Other protocols answer it on their
    own port."""
    policy_device: str | None = None
    """Device of the policy, if it has an option of that name."""
    torch_threads: Count = 1
    """Torch threads; another number than in a run may change the last digits of answers."""
    no_import: bool = False
    """Refuse jobs that would import unregistered code."""

    def check(self) -> None:
        """Refuse options that cannot work: ConfigError with every problem."""
        problems = wrong_numbers(self)
        if self.api_token is not None and self.api_token_file is not None:
            problems = [*problems, Problem("give --api_token or --api_token_file, not both", key="--api_token")]
        if self.health_port is not None and self.protocol != "gr00t":
            message = f"is for gr00t; {self.protocol} answers GET /health on its own port"
            problems = [*problems, Problem(message, key="--health_port")]
        refuse(problems)

    def listen(self) -> ListenOptions:
        """Return the address of the server, and limits on its clients; ConfigError if the token's file is unusable."""
        own_port, own_mb = (5555, 256) if self.protocol == "gr00t" else (8000, 64)
        file = self.api_token_file
        return ListenOptions(
            host=self.host,
            port=own_port if self.port is None else self.port,
            api_token=self.api_token if file is None else token_in(file, key="--api_token_file"),
            max_message_bytes=(self.max_message_mb or own_mb) * 1024 * 1024,
        )

    def is_local(self) -> bool:
        """Return True if only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def client_keys(self) -> tuple[Mapping[str, str] | None, Mapping[str, Sequence[str]] | None]:
        """Return the camera of each key of `images`, and the terms of each of `states`; None if none is given."""
        found: dict[str, dict[str, str]] = {}
        for option, words in (("--images", self.images), ("--states", self.states)):
            found[option] = {}
            for word in words:
                key, equals, name = word.partition("=")
                if not key or not equals or not name:
                    raise ConfigError(f"must be like KEY=NAME, got '{word}'", key=option)
                found[option][key] = name
        return found["--images"] or None, {key: names.split(",") for key, names in found["--states"].items()} or None


def served_job(options: ServeOptions, rest: Sequence[str]) -> Job:
    """Return the job to serve; `rest` is JOBS_FILE:JOB, or policy type, environment and options."""
    if not rest or rest[0].startswith("-"):
        raise ConfigError("name JOBS_FILE:JOB, or a policy type and its environment", key="POLICY_OR_JOB")
    file, _, name = rest[0].rpartition(":")
    # A file without ``:JOB`` takes the job's name from --job.
    if rest[0].endswith(_JOB_FILES):
        file, name = rest[0], options.job or ""
    if file.endswith(_JOB_FILES):
        if rest[1:]:
            raise ConfigError("a job file says all of its jobs; change it there", key=rest[1])
        read = load_jobs_file(file, JobDefaults(num_episodes=_ONE_EPISODE), suites=SUITES)
        names = [config.name for config in read.jobs]
        if not name and len(names) == 1:
            name = names[0]
        if name not in names:
            choice = (
                f"there is no job '{name}'{did_you_mean(name, names)}" if name else f"name one of {', '.join(names)}"
            )
            raise ConfigError(choice, file=file, key="--job")
        [job] = resolve_jobs(
            [config for config in read.jobs if config.name == name],
            file=file,
            overrides={"policy_device": options.policy_device},
            may_import=not options.no_import,
        )
        return job

    # Read the job from the command line, as ``policy_runner`` does.
    asked = PolicyOptions(
        policy_type=rest[0],
        num_episodes=_ONE_EPISODE,
        policy_device=options.policy_device,
        no_import=options.no_import,
        name=options.job,
    )
    return job_request(asked, job_block(asked, rest[1:])).jobs[0]


# Build the policy and its server, and serve until a client, a failure or a signal ends it.

_LOOK_INTERVAL_S = 0.1

SERVERS = Registry("protocol", {}, entry_point_group="isaaclab_arena.servers")
"""The servers of protocols that other packages bring: functions of options, job and address, as `server_of` is."""


def main(argv: Sequence[str] | None = None, *, typed_as: str = "isaaclab-arena serve") -> int:
    """Serve, and return the exit code: 0 if a client stopped it, 1 or 2 on error, 130 (Ctrl-C), 143 (SIGTERM)."""
    options, rest = read_some(ServeOptions, typed_words(argv), program=typed_as)
    with program() as ended:
        take_rank_of_scheduler()
        options.check()
        listen = options.listen()
        set_up_torch(options.torch_threads)

        # Build the policy before the server listens, so that no client connects to a server without a policy.
        served = prepared(options, rest)
        try:
            server = server_of(options, served, listen)
        except OSError as error:
            served.policy.close()
            raise ArenaError(f"cannot listen on {options.host}, port {listen.port}: {error.strerror}") from error
        if listen.api_token is None and not options.is_local():
            _LOG.warning(
                "everyone who can reach %s may use this server; --api_token_file keeps others out", server.address
            )
        if not served.policy.reads_instruction:
            _LOG.info("the policy reads no instruction, so that of a client changes nothing")

        # Serve until a client, a failure or a signal stops it.
        with watch_for_interruption() as interruption:
            server.start()
            try:
                _LOG.info("serving %s on %s", served.stated["job"], server.address)
                while server.is_running and not interruption.stop_requested():
                    time.sleep(_LOOK_INTERVAL_S)
            finally:
                server.close()
            if server.failure is not None:
                raise ArenaError(f"the policy can be served no longer: {server.failure}")
            _LOG.info("stopped")
        return interruption.exit_code
    return ended.code


def prepared(options: ServeOptions, rest: Sequence[str]) -> ServedJob:
    """Return the served job with its policy built and tried out; ConfigError if the policy cannot be served."""
    job = served_job(options, rest)
    contents = hashlib.sha256(json_line(ContentReader().read(job).policy).encode()).hexdigest()
    images, states = options.client_keys()
    policy = serving.HostedPolicy(
        job, options.max_sessions, shown=lambda spec: mapping_of(spec, images, states).shown()
    )
    mapping = mapping_of(policy.environment.observation_spec, images, states)
    return ServedJob(policy=policy, mapping=mapping, contents={"policy_sha256": contents})


def server_of(options: ServeOptions, served: ServedJob, listen: ListenOptions) -> Any:
    """Return the protocol's server, which listens but does not answer yet; OSError if it cannot listen."""
    limits = WireLimits(max_message_bytes=listen.max_message_bytes)
    if options.protocol == "openpi":
        talk: Talk = OpenpiTalks(served, limits, prompt_key=options.prompt_key)
    elif options.protocol == "vla_eval":
        talk = VlaEvalTalks(served, limits)
    else:
        return SERVERS.get(options.protocol)(options, served, listen)
    # The host runs a thread, so it must be closed if the port is taken.
    host = serving.PolicyHost(served.policy, max_batch=options.max_batch, max_wait_s=options.max_wait_ms / 1000)
    try:
        return WebsocketServer(host, talk, listen, served.stated)
    except OSError:
        host.close()
        raise
