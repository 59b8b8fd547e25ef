"""Talk with openpi's clients: describe the policy, then answer every observation with a chunk of actions."""

import itertools
import time
from collections.abc import Mapping

from websockets.sync.server import ServerConnection

from arena_wire.messages import WireError, WireLimits, in_words
from isaaclab_arena.evaluation.serving import HostSession
from isaaclab_arena_gr00t.remote.openpi import pack, unpack
from isaaclab_arena_gr00t.serving.served_job import ServedJob, error_text, failure_text


class OpenpiTalks:
    """Talks with every client of openpi."""

    def __init__(self, served: ServedJob, limits: WireLimits, *, prompt_key: str) -> None:
        # The protocol has no episodes. So each observation is the first of an episode of its own: a policy that plays
        # chunks answers with a whole chunk, and no state of another episode remains.
        self.served, self.limits = served, limits
        self._prompt_key = prompt_key
        self._numbers = itertools.count()

    def __call__(self, connection: ServerConnection, session: HostSession) -> None:
        """Talk with one client until it closes the connection."""
        served = self.served
        metadata = {
            **served.stated,
            "action_dim": served.action_dim,
            "action_horizon": served.policy.chunk_length,
            "images": list(served.mapping.images),
            "states": {key: sum(map(served.size_of, names)) for key, names in served.mapping.states.items()},
            "prompt_key": self._prompt_key,
        }
        connection.send(pack(metadata))
        for data in connection:
            # An error is text, as openpi's own server writes it.
            connection.send(self._answer(data, session))

    def _answer(self, data: str | bytes, session: HostSession) -> str | bytes:
        if isinstance(data, str):
            return error_text("unreadable message", "this server speaks openpi's protocol, whose clients send no text")
        try:
            request = unpack(data, self.limits)
        except WireError as error:
            return error_text("unreadable message", error)
        began_s = time.perf_counter()
        if not isinstance(request, Mapping):
            return error_text("observation refused", f"an observation is a map, this is {in_words(request)}")
        try:
            observation = self.served.mapping.observation(request, request)
            words = self.served.instruction(self._prompt_key, request.get(self._prompt_key))
            session.start_episode(self.served.episode(next(self._numbers)), words)
            actions = session.act(observation).planned
        except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
            return failure_text(error)
        return pack({"actions": actions, "server_timing": {"infer_ms": 1000 * (time.perf_counter() - began_s)}})
