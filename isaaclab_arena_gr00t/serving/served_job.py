"""The job whose policy is served, its address and health, and a client's names for its observations."""

import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from socket import AF_INET6
from typing import Any

import numpy as np

from arena_wire.messages import WireError, in_words
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, did_you_mean
from isaaclab_arena.evaluation.serving import HostedPolicy, ObservationRefusedError
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.logs import plain_text
from isaaclab_arena.nested import value_at
from isaaclab_arena_gr00t.remote.protocols import EncodedPicture

# Define the address and the access of a policy server of any protocol.


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The address of a server, and limits on its clients.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        api_token: Token that clients must send, None for none.
        max_message_bytes: Largest message of a client.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_token: str | None = field(default=None, repr=False)
    max_message_bytes: int = 64 * 1024 * 1024


# Answer over HTTP whether a policy is served: ``GET /health``, which needs no token.

PATHS = ("/health", "/healthz")


def health_answer(stated: Mapping[str, Any], *, is_served: bool) -> tuple[HTTPStatus, bytes]:
    """Return the status of ``GET /health``, 200 while the policy is served and else 503, and one line of JSON."""
    status = HTTPStatus.OK if is_served else HTTPStatus.SERVICE_UNAVAILABLE
    return status, f"{json.dumps({'status': 'ok' if is_served else 'closed', **stated})}\n".encode()


class HealthServer:
    """Answers ``GET /health`` on a port of its own (0: a free one), for a protocol without HTTP."""

    def __init__(self, host: str, port: int, ask: Callable[[], tuple[HTTPStatus, bytes]]) -> None:
        class Answers(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in PATHS
                status, body = ask() if is_known else (HTTPStatus.NOT_FOUND, b"")
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  what the base class calls it
                """Say nothing."""

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            if ":" in host:
                address_family = AF_INET6

        self._server = Listening((host, port), Answers)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop. May be called more than once."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


# Map the pictures and states of a client's observation to the terms of an environment.

STATES = "policy"
"""The group of an observation that holds what is no picture."""


@dataclass(frozen=True, kw_only=True)
class ObservationMapping:
    """The keys of a client's observation, and the environment's terms that they contain."""

    images: Mapping[str, str]  # key of a picture to camera
    states: Mapping[str, Sequence[str]]  # key of an array to its terms of the group ``policy``, one behind the other
    shapes: Mapping[str, tuple[int, ...]]  # shape of each of those terms
    sizes: Mapping[str, tuple[int, ...]]  # shape of each camera's pictures

    def shown(self) -> dict[str, set[str]]:
        """Return the terms that clients send, by group."""
        names = {name for names in self.states.values() for name in names}
        return {STATES: names, CAMERAS: set(self.images.values())}

    def state_sizes(self) -> dict[str, int]:
        """Return the number of values in each of a client's arrays."""
        return {key: sum(math.prod(self.shapes[name]) for name in names) for key, names in self.states.items()}

    def observation(self, pictures: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a client's pictures and states as an observation; ObservationRefusedError if one does not fit."""
        found: dict[str, dict[str, Any]] = {}
        # A client may send no picture at all, for a policy that sees none. Shapes are checked later.
        if self.images and any(value_of(pictures, key) is not None for key in self.images):
            found[CAMERAS] = {camera: self._picture(pictures, key, camera) for key, camera in self.images.items()}
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
                raise ObservationRefusedError(f"'{key}' must be an array of numbers, it is {in_words(value)}")

            # Split it into the terms of the environment, which lie one behind the other.
            sizes = [math.prod(self.shapes[name]) for name in names]
            if numbers.size != sum(sizes):
                due = ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
                raise ObservationRefusedError(f"'{key}' has {numbers.size} numbers, {sum(sizes)} are due: {due}")
            parts = np.split(numbers.reshape(-1), np.cumsum(sizes)[:-1])
            found[STATES] |= {name: part.reshape(self.shapes[name]) for name, part in zip(names, parts, strict=True)}
        return found

    def _picture(self, pictures: Mapping[str, Any], key: str, camera: str) -> Any:
        """Return a client's picture; decode it only if its stated size is that of the environment's pictures."""
        picture = _found(pictures, key, "picture")
        if not isinstance(picture, EncodedPicture):
            return picture
        if picture.shape != self.sizes[camera]:
            raise ObservationRefusedError(f"'{key}' has shape {picture.shape}, {self.sizes[camera]} is due")
        try:
            return picture.decoded()
        except WireError as error:
            raise ObservationRefusedError(f"'{key}': {error}") from error


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
    if problems:
        raise ConfigError(problems)
    return ObservationMapping(
        images=images,
        states=states,
        shapes={name: terms[name].shape for name in named},
        sizes={name: cameras[name].shape for name in images.values()},
    )


def value_of(message: Mapping[str, Any], key: str) -> Any:
    """Return the value under a key of a message, or at the path that its dots spell; None if there is none."""
    return message[key] if key in message else value_at(message, key.split("."))


def _found(message: Mapping[str, Any], key: str, what: str) -> Any:
    value = value_of(message, key)
    if value is None:
        names = [str(name)[:50] for name in list(message)[:20]]
        raise ObservationRefusedError(f"the observation has no {what} '{key}'{did_you_mean(key, names)}")
    return value


# Describe the job whose policy is served: its names, its sizes and the identity of its episodes.


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedJob:
    """The job whose policy is served."""

    policy: HostedPolicy
    mapping: ObservationMapping  # the clients' names for the terms of its environment
    contents: Mapping[str, str]  # hashes of the policy's parts, for clients to record

    @property
    def program(self) -> str:
        """This program with its version."""
        try:
            return f"isaaclab-arena {metadata.version('isaaclab-arena-mujoco')}"
        except metadata.PackageNotFoundError:
            return "isaaclab-arena"

    @property
    def stated(self) -> dict[str, Any]:
        """The description that clients receive, and record as the model that they asked."""
        config = self.policy.job.config
        return {
            "program": self.program,
            "job": config.name,
            "policy_type": config.policy_type,
            "environment": config.environment,
            "seed": config.seed,
            **self.contents,
        }

    @property
    def action_dim(self) -> int:
        """Numbers of an action."""
        return self.policy.environment.action_spec.shape[0]

    def instruction(self, key: str, words: object) -> str | None:
        """Return a client's instruction, None if none is needed; ObservationRefusedError if it is wrong or missing."""
        if isinstance(words, str) and words.strip():
            return words
        if words is None and (not self.policy.reads_instruction or self.policy.stated_instruction):
            return None
        if words is None:
            raise ObservationRefusedError(f"'{key}' is missing; the policy reads an instruction")
        raise ObservationRefusedError(f"'{key}' must be a text that says something, it is {in_words(words)}")

    def episode(self, episode_index: int) -> Episode:
        """Return an episode of the job, with its random streams."""
        config = self.policy.job.config
        return Episode(job=config.name, episode_index=episode_index, seed=config.seed)


# Write the errors that clients receive.

_LOG = logging.getLogger("isaaclab_arena.gr00t")


def error_text(what: str, error: object) -> str:
    """Return an error as a short text for a client, without control characters."""
    return plain_text(f"{what}: {str(error)[:500]}")


def failure_text(error: Exception) -> str:
    """Return the text for a client whose query failed, and log the traceback of an unexpected error."""
    if isinstance(error, ObservationRefusedError):
        return error_text("observation refused", error)
    if not isinstance(error, ArenaError):
        _LOG.warning("the policy failed", exc_info=error)
    return error_text("policy failed", f"{type(error).__name__}: {error}")
