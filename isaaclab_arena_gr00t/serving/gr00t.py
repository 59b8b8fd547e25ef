"""Serve a policy in GR00T's protocol: a GR00T model as ``gr00t-server`` does, any other by the environment's names."""

import itertools
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

import numpy as np
from gr00t.data.types import ModalityConfig
from gr00t.policy.gr00t_policy import Gr00tSimPolicyWrapper
from gr00t.policy.policy import BasePolicy
from gr00t.policy.policy_server import MAX_CLIENTS, BatchingOptions, PolicyServer

from arena_wire.messages import WireLimits
from isaaclab_arena.evaluation import serving
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.serve import PATHS, ListenOptions, ServedJob, health_answer
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import NOISE_SEEDS, Gr00tClosedloopPolicy

ACTION = "action"
INSTRUCTION = "annotation.human.task_description"


class Gr00tServer:
    """Serves a job's policy on a thread of its own, by the included `PolicyServer`; OSError if the port is taken."""

    def __init__(
        self,
        served: ServedJob,
        listen: ListenOptions,
        *,
        max_batch: int,
        max_wait_ms: float,
        max_sessions: int = MAX_CLIENTS,
        health_port: int | None = None,
    ) -> None:
        # A GR00T model is served under its own names, and draws its noise from the clients' seeds, as ``gr00t-server``
        # does. `close` closes the policy too.
        self._served = served
        # 0 is a free port, None no answers to ``GET /health``.
        self.health = None if health_port is None else health_server(listen.host, health_port, self._health)
        # A GR00T model answers requests itself; `NamedPolicy` answers for any other policy.
        policy = served.policy.policy
        answering = policy.policy if isinstance(policy, Gr00tClosedloopPolicy) else NamedPolicy(served)
        try:
            self._server = PolicyServer(
                Gr00tSimPolicyWrapper(answering),
                listen.host,
                listen.port,
                listen.api_token,
                batching=BatchingOptions(max_batch=max_batch, wait_ms=max_wait_ms, max_clients=max_sessions),
                limits=WireLimits(max_message_bytes=listen.max_message_bytes),
                serves={name: str(value) for name, value in served.stated.items()},
            )
        except OSError:
            if self.health is not None:
                self.health.server_close()
            raise
        self.address = self._server.address
        self.port = self._server.port
        self.failure: str | None = None  # why the server stopped, None without a failure
        self._thread = threading.Thread(target=self._run, name="GR00T's protocol")
        self._health_thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """True while requests are answered; a client may stop the server."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        if self.health is not None:
            self._health_thread = threading.Thread(target=self.health.serve_forever, name="health", daemon=True)
            self._health_thread.start()

    def close(self) -> None:
        """Answer the running request, and stop."""
        if self.health is not None:
            if self._health_thread is not None and self._health_thread.is_alive():
                self.health.shutdown()
            self.health.server_close()
        self._server.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._served.policy.close()

    def _health(self) -> tuple[HTTPStatus, bytes]:
        server = self._server
        counted = {"sessions": server.num_clients, "queries": server.num_requests, "calls": server.num_calls}
        return health_answer({**self._served.stated, **counted}, is_served=self.is_running)

    def _run(self) -> None:
        try:
            self._server.run()
        except Exception as error:
            self.failure = str(error)
            raise


def health_server(host: str, port: int, ask: Callable[[], tuple[HTTPStatus, bytes]]) -> ThreadingHTTPServer:
    """Return a server that will answer ``GET /health`` on a port of its own (0: a free one), as GR00T has no HTTP."""

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

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
            """Say nothing."""

    class Listening(ThreadingHTTPServer):
        if ":" in host:
            address_family = AF_INET6

    return Listening((host, port), Answers)


class NamedPolicy(BasePolicy):
    """Answers for a policy that is no GR00T model, under the names of the environment."""

    def __init__(self, served: ServedJob) -> None:
        # Requests do not belong to episodes. So each entry of a batch is the first observation of an episode of its
        # own, whose seed is the entry's noise seed if there is one.
        super().__init__(strict=False)
        self._served = served
        self._numbers = itertools.count()

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the keys of pictures, states, action and instruction."""
        mapping = self._served.mapping
        return {
            "video": ModalityConfig(delta_indices=[0], modality_keys=list(mapping.images)),
            "state": ModalityConfig(delta_indices=[0], modality_keys=list(mapping.states)),
            "action": ModalityConfig(
                delta_indices=list(range(self._served.policy.chunk_length)), modality_keys=[ACTION]
            ),
            "language": ModalityConfig(delta_indices=[0], modality_keys=[INSTRUCTION]),
        }

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do nothing: no episode outlives its request."""
        del options
        return {}

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise an `ObservationRefusedError` with the first problem of the observation."""
        self._entries(observation)

    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Accept the policy's action, which `HostedPolicy` has checked."""

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        entries = self._entries(observation)

        # Read the instruction and the noise seed of each entry; a request may have none.
        language = observation.get("language", {})
        texts = language.get(INSTRUCTION, []) if isinstance(language, Mapping) else []
        if not isinstance(texts, list) or not all(
            isinstance(each, (list, tuple)) and len(each) == 1 and isinstance(each[0], str) for each in texts
        ):
            raise serving.ObservationRefusedError(
                f"'language.{INSTRUCTION}' must hold a list of one text for each entry"
            )
        words = [text for (text,) in texts] or [None] * len(entries)
        seeds = (options or {}).get(NOISE_SEEDS) or [None] * len(entries)
        if len(words) != len(entries) or len(seeds) != len(entries):
            raise serving.ObservationRefusedError(
                f"the request has {len(entries)} pictures or states, {len(words)} instructions and {len(seeds)} seeds"
            )

        # Each entry begins an episode of its own, with the entry's noise seed if there is one.
        served, policy = self._served, self._served.policy
        begun = []
        for seed, text in zip(seeds, words, strict=True):
            if seed is None:
                episode = served.episode(next(self._numbers))
            else:
                episode = Episode(job=policy.job.config.name, episode_index=0, seed=seed)
            begun.append((episode, served.instruction(INSTRUCTION, text)))

        # A request may have more entries than the policy has env slots.
        num_slots, chunks = policy.num_slots, []
        for first in range(0, len(entries), num_slots):
            shown = dict(enumerate(entries[first : first + num_slots]))
            for env_id in shown:
                policy.start(env_id, *begun[first + env_id])
            answers = policy.act(shown)
            for env_id in shown:
                policy.end(env_id)
            for env_id in shown:
                answer = answers[env_id]
                if not isinstance(answer, serving.SlotAnswer):
                    raise answer
                chunks.append(answer.planned)
        return {ACTION: np.stack(chunks)}, {}

    def _entries(self, observation: Mapping[str, Any]) -> list[serving.SlotObservation]:
        """Return the observation of each entry of a batch."""
        mapping, spec = self._served.mapping, self._served.policy.environment.observation_spec
        # The arrays of both modalities, each of shape (entries, steps, ...).
        found: dict[str, dict[str, np.ndarray]] = {}
        for modality in ("video", "state"):
            arrays = observation.get(modality, {})
            if not isinstance(arrays, Mapping):
                raise serving.ObservationRefusedError(
                    f"'{modality}' must hold arrays by name, it is a {type(arrays).__name__}"
                )
            for key, values in arrays.items():
                if not isinstance(values, np.ndarray) or values.ndim < 3 or values.shape[1] < 1:
                    shape = values.shape if isinstance(values, np.ndarray) else type(values).__name__
                    raise serving.ObservationRefusedError(
                        f"'{modality}.{key}' must have entries, steps and values, it has {shape}"
                    )
            found[modality] = dict(arrays)
        video, state = found["video"], found["state"]
        sizes = {len(values) for values in (*video.values(), *state.values())}
        if len(sizes) != 1:
            raise serving.ObservationRefusedError(
                f"the request's arrays have {sorted(sizes)} entries, all must have as many"
            )
        return [
            serving.checked_observation(
                # The last step is the present one.
                mapping.observation(
                    {key: values[entry][-1] for key, values in video.items()},
                    {key: values[entry][-1] for key, values in state.items()},
                ),
                spec,
            )
            for entry in range(*sizes)
        ]
