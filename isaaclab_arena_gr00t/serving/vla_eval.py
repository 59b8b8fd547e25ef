"""Talk with clients of vla-eval: say hello, and play the episodes that they begin and end."""

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from websockets.sync.server import ServerConnection

from arena_wire.messages import WireError, WireLimits, in_words
from isaaclab_arena.evaluation.serving import HostSession, ObservationRefusedError
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.remote.vla_eval import (
    ACTION,
    EPISODE_END,
    EPISODE_START,
    ERROR,
    HELLO,
    OBSERVATION,
    PROTOCOL_VERSION,
    Message,
    pack,
    unpack,
)
from isaaclab_arena_gr00t.serving.served_job import ServedJob, error_text, failure_text

_LOG = logging.getLogger("isaaclab_arena.gr00t")

_FORMAT = "isaaclab_arena"


class VlaEvalTalks:
    """Talks with every client of vla-eval; `_Talk` has the state of one connection."""

    def __init__(self, served: ServedJob, limits: WireLimits) -> None:
        self.served, self.limits = served, limits
        self.unnumbered = itertools.count()

    def __call__(self, connection: ServerConnection, session: HostSession) -> None:
        """Talk with one client until it closes the connection."""
        talk = _Talk(self, session)
        for data in connection:
            if isinstance(data, str):
                connection.send(_error(error_text("unreadable message", "vla-eval's protocol sends no text"), 0))
                continue
            try:
                message = unpack(data, self.limits)
            except WireError as error:
                connection.send(_error(error_text("unreadable message", error), 0))
                continue
            for answer in talk.answers(message):
                connection.send(answer)

    def hello(self) -> dict[str, Any]:
        """Return the server's hello: its description, and the specs of actions and observations."""
        served = self.served
        pictures = {key: _spec(key, 0, "rgb_hwc_uint8") for key in served.mapping.images}
        states = {
            key: _spec(key, sum(served.size_of(name) for name in names), _FORMAT)
            for key, names in served.mapping.states.items()
        }
        return {
            "harness_version": served.program,
            "protocol_version": PROTOCOL_VERSION,
            "model_server": "isaaclab_arena",
            "capabilities": {},
            **served.stated,
            "action_spec": {"action": _spec("action", served.action_dim, _FORMAT)},
            "observation_spec": {**pictures, **states, "language": _spec("language", 0, "language")},
        }


class _Talk:
    """The state of one connection, with its env slot."""

    def __init__(self, talks: VlaEvalTalks, session: HostSession) -> None:
        self._talks, self._session = talks, session
        # An episode begins with its first observation, which has the instruction.
        self._begins: Episode | None = None

    def answers(self, message: Message) -> Iterator[bytes]:
        """Yield the answers to a message."""
        if message.kind == HELLO:
            version = message.payload.get("protocol_version")
            if version == PROTOCOL_VERSION:
                yield pack(Message(kind=HELLO, payload=self._talks.hello(), number=message.number))
            else:
                words = f"version {in_words(version)} of the protocol is not known here, {PROTOCOL_VERSION} is"
                yield _error(error_text("hello refused", words), message.number)
        elif message.kind == EPISODE_START:
            self._session.end_episode()
            # The episode is that of the task's ``episode_idx``, or else the next number of a common counter.
            task = message.payload.get("task")
            index = task.get("episode_idx") if isinstance(task, Mapping) else None
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                index = next(self._talks.unnumbered)
            self._begins = self._talks.served.episode(index)
        elif message.kind == EPISODE_END:
            self._session.end_episode()
            self._begins = None
        elif message.kind == OBSERVATION:
            try:
                action = self._action(message.payload)
            except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
                answer = _error(failure_text(error), message.number)
            else:
                answer = pack(Message(kind=ACTION, payload={"actions": action}, number=message.number))
            yield answer
        elif message.kind == ERROR:
            _LOG.warning("a client reports an error: %s", plain_text(str(message.payload.get("error"))[:500]))
        else:
            yield _error(error_text("unknown message", f"type {in_words(message.kind)}"), message.number)

    def _action(self, payload: Mapping[str, Any]) -> Any:
        pictures = payload.get("images", {})
        if not isinstance(pictures, Mapping):
            raise ObservationRefusedError(f"'images' must hold pictures by name, it is {in_words(pictures)}")
        observation = self._talks.served.mapping.observation(pictures, payload)
        if self._begins is not None:
            words = self._talks.served.instruction("task_description", payload.get("task_description"))
            self._session.start_episode(self._begins, words)
            self._begins = None
        return self._session.act(observation).action


def _spec(name: str, dims: int, form: str) -> dict[str, Any]:
    return {"name": name, "dims": dims, "format": form}


def _error(text: str, number: int) -> bytes:
    return pack(Message(kind=ERROR, payload={"error": text}, number=number))
