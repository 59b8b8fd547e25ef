"""GR00T's policy servers: the protocol, and a policy that asks a model in another process through such a server."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from arena_wire import gr00t
from arena_wire.messages import DEFAULT_LIMITS, WireLimits, in_words
from arena_wire.zmtp import GREETING
from isaaclab_arena.config.options import UNKNOWN, ContentSources
from isaaclab_arena.errors import PolicyError, Problem, problems_into, refuse
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.remote.connection import PolicyServerConnection, ask_each
from isaaclab_arena.remote.protocols import (
    AnswerError,
    Codec,
    LeavingError,
    ServerOptions,
    UnauthorisedError,
    address_problems,
    server_address,
)
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Modality, StatedModality
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import ClosedloopPolicy

# The protocol: a ping first, then one request at a time, over ZeroMQ.


class Gr00tCodec(Codec):
    """The protocol of NVIDIA's server and of ``gr00t-server``."""

    server = "GR00T policy server"
    policy_type = "gr00t_remote_closedloop"
    advice = "; start one with: gr00t-server --model_path CHECKPOINT --port {port}"
    path, greeting = "", GREETING[:1]

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


# The policy that asks such a server.

_MODALITIES = ("video", "state", "action", "language")


@dataclass(frozen=True)
class Gr00tRemoteClosedloopPolicyArgs(ServerOptions, ClosedloopPolicyArgs):
    """Options of `Gr00tRemoteClosedloopPolicy`, beside those of every policy server.

    Attributes:
        policy_device: Accepted for Isaac Lab Arena's job files; the server has the device.
        scheduler: ``chunk``, the only mode: an env slot whose chunk is used up gets the next one at once.
    """

    policy_device: str | None = None
    scheduler: str = "chunk"


class Gr00tRemoteClosedloopPolicy(ClosedloopPolicy[Gr00tRemoteClosedloopPolicyArgs]):
    """Asks a GR00T policy server, NVIDIA's or ``gr00t-server``, which several ranks and jobs can share."""

    # If the server is lost for good, or answers with an error, the job fails. Finished episodes are kept. Running
    # episodes end as errors, which ``--retry_errors`` runs again; ``--resume`` runs the episodes that had not begun.
    name: ClassVar[str] = "gr00t_remote_closedloop"
    config_class: ClassVar[type | None] = Gr00tRemoteClosedloopPolicyArgs
    # Size limits of the server's answers.
    answer_limits: ClassVar[WireLimits] = DEFAULT_LIMITS
    # A server batches env slots of several clients, so the last digits of their actions depend on each other.
    traits = PolicyTraits(serves_any_num_envs=True, uses_own_device=False, pictures="announced", remote=True)

    def __init__(self, config: Gr00tRemoteClosedloopPolicyArgs) -> None:
        self.check_options(config)
        super().__init__(config)
        address = server_address(config)
        connection = PolicyServerConnection(address, Gr00tCodec(address.api_token, self.answer_limits))
        self._connection: PolicyServerConnection | None = connection
        self._has_answered = False
        self._takes_flat_keys = False

        # Read the inputs and outputs of the served model.
        try:
            connection.wait_until_ready()
            answer = connection.ask("get_modality_config")
        except BaseException:
            self.close()
            raise
        found = answer if isinstance(answer, dict) else {}
        if not all(isinstance(found.get(name), StatedModality) for name in _MODALITIES):
            self.close()
            raise PolicyError(
                "the policy server does not describe its model's inputs and outputs: expected "
                f"{', '.join(_MODALITIES)}, it answered {in_words(answer)}; make sure that remote_host and "
                "remote_port name the right one"
            )
        self._modalities: Mapping[str, Any] = {name: found[name] for name in _MODALITIES}

    def stated_model(self) -> str:
        """The server's description of its model; the included server gives one, NVIDIA's does not."""
        return UNKNOWN if self._connection is None else self._connection.stated

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the YAML files, and the server as an unknown source; see `PolicyBase.content_sources`."""
        args = Gr00tRemoteClosedloopPolicyArgs(**options)
        server = f"server {args.remote_host}:{args.remote_port}"
        return replace(super().content_sources(options), unknown=(server,))

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, without asking the server: ConfigError with every problem."""
        problems = []
        if config.scheduler != "chunk":
            why = "it makes env slots wait for others; leave it out, or give 'chunk'"
            message = f"'{config.scheduler}' is not offered: {why}"
            problems.append(Problem(message, key="scheduler"))
        problems += address_problems(config)
        with problems_into(problems):
            super().check_options(config)
        refuse(problems)

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Ask the server; ServerUnreachableError if it is lost, PolicyError on a bad answer. See `ClosedloopPolicy`."""
        if self._connection is None:
            raise PolicyError("the connection to the policy server has been closed")
        # A server that wraps its policy for simulation takes flat keys, and does not announce it. So the first query
        # shows the form of keys that the server takes.
        errors: list[PolicyError] = []
        for is_flat in (self._takes_flat_keys,) if self._has_answered else (False, True):
            shown = observation
            if is_flat:
                # ``language`` contains a list of one text per env slot; flat keys have the texts alone.
                given = ((name, observation[name].items()) for name in ("video", "state"))
                shown = {f"{name}.{key}": values for name, items in given for key, values in items}
                shown |= {key: [text for (text,) in texts] for key, texts in observation["language"].items()}
            question = {"observation": shown, "options": {"noise_seeds": noise_seeds}}
            try:
                [answer] = ask_each("get_action", [(self._connection, question)])
            except PolicyError as error:
                errors.append(error)
                continue
            action = answer[0] if isinstance(answer, list) and answer else answer
            if isinstance(action, dict) and all(isinstance(values, np.ndarray) for values in action.values()):
                self._has_answered, self._takes_flat_keys = True, is_flat
                return {key.removeprefix("action."): values for key, values in action.items()} if is_flat else action
            errors.append(PolicyError(f"the policy server's answer holds no arrays of actions: {in_words(answer)}"))
        # If both forms failed, the first error is about the usual form.
        raise errors[0]

    def modality_config(self) -> Mapping[str, Modality]:
        """Return the inputs and outputs of the served model."""
        return self._modalities

    def reset(self, env_ids: Any = None) -> None:
        """Reset the named env slots; with None, between jobs, reset the server too."""
        super().reset(env_ids)
        # A reset of the server concerns all env slots of all clients, so single env slots send none.
        if env_ids is None and self._connection is not None:
            self._connection.ask("reset", {"options": None})

    def close(self) -> None:
        """Close the connection. The server keeps running: other clients may use it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        super().close()
