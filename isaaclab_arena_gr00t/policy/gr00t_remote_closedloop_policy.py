"""A policy that asks a GR00T model in another process, through a policy server."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from arena_wire.messages import DEFAULT_LIMITS, WireLimits, in_words
from isaaclab_arena.errors import PolicyError, Problem, problems_into, refuse
from isaaclab_arena.interfaces.content import UNKNOWN, ContentSources
from isaaclab_arena.interfaces.policy import PolicyTraits
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Modality, StatedModality
from isaaclab_arena_gr00t.policy.closedloop import ClosedloopPolicy
from isaaclab_arena_gr00t.remote.connection import PolicyServerConnection
from isaaclab_arena_gr00t.remote.gr00t import Gr00tCodec
from isaaclab_arena_gr00t.remote.protocols import ServerOptions, address_problems, server_address

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
                f"the policy server does not say what its model takes and gives: {', '.join(_MODALITIES)} are due, "
                f"it answered {in_words(answer)}; make sure that remote_host and remote_port name the right one"
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
        if self._takes_flat_keys:
            return self._asked(observation, noise_seeds, is_flat=True)
        # The first query shows the form of keys that the server takes, nested or flat.
        try:
            action = self._asked(observation, noise_seeds)
        except PolicyError as error:
            if self._has_answered:
                raise
            # A server that wraps its policy for simulation takes flat keys, and does not announce it.
            try:
                action = self._asked(observation, noise_seeds, is_flat=True)
            except PolicyError:
                # Both forms failed, so report the first error, which is about the usual form.
                raise error from None
            self._takes_flat_keys = True
        self._has_answered = True
        return action

    def _asked(
        self, observation: dict[str, Any], noise_seeds: list[int], *, is_flat: bool = False
    ) -> dict[str, np.ndarray]:
        if self._connection is None:
            raise PolicyError("the connection to the policy server has been closed")
        shown = observation
        if is_flat:
            # ``language`` contains a list of one text per env slot; flat keys have the texts alone.
            parts = ((name, key, values) for name in ("video", "state") for key, values in observation[name].items())
            shown = {f"{name}.{key}": values for name, key, values in parts}
            shown |= {key: [text for (text,) in texts] for key, texts in observation["language"].items()}
        question = {"observation": shown, "options": {"noise_seeds": noise_seeds}}
        answer = self._connection.ask("get_action", question)
        action = answer[0] if isinstance(answer, list) and answer else answer
        if not isinstance(action, dict) or not all(isinstance(values, np.ndarray) for values in action.values()):
            raise PolicyError(f"the policy server's answer holds no arrays of actions: {in_words(answer)}")
        return {key.removeprefix("action."): values for key, values in action.items()} if is_flat else action

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
