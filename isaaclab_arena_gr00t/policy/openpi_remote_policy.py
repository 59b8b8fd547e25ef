"""A policy that asks an openpi policy server, such as those of the pi0 models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena_gr00t.policy.remote_chunks import (
    RemoteChunks,
    checked_actions,
    misfitting_columns,
    missing_inputs,
    mistaken_columns,
    shown_inputs,
)
from isaaclab_arena_gr00t.remote.address import ServerOptions, address_problems, server_address
from isaaclab_arena_gr00t.remote.openpi import OpenpiConnection


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
        action_columns: Indices into the policy's action for each number of the environment's; None if both are the
            same.
        remote_port: Port of the server.
        timeout_s: How long an answer may take [s]; the first one may have to wait for a compiler.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prompt_key: str = "prompt"
    image_size: tuple[int, int] = (224, 224)
    action_chunk_length: int = 8
    action_columns: tuple[int, ...] | None = None
    remote_port: int = 8000
    timeout_s: float = 120.0


class OpenpiRemotePolicy(RemoteChunks[OpenpiRemotePolicyCfg]):
    """Asks an openpi policy server for chunks of actions, for each env slot when its chunk is used up.

    The protocol has no batches and no seeds: each env slot is a request of its own, and the server draws the noise.

    Args:
        config: Options of the job.

    Raises:
        ConfigError: If an option is wrong, or the server wants another key.
        ServerUnreachableError: If no server answers in time.
        PolicyError: If what answers is no such server.
    """

    name: ClassVar[str] = "openpi_remote"
    config_class: ClassVar[type | None] = OpenpiRemotePolicyCfg
    traits = PolicyTraits(batch_invariant=True, serves_any_num_envs=True)

    def __init__(self, config: OpenpiRemotePolicyCfg) -> None:
        self.check_options(config)
        super().__init__(config, chunk_length=config.action_chunk_length)
        self._options = config
        self._connection = OpenpiConnection(server_address(config))
        self._connection.wait_until_ready()

    def stated_model(self) -> str:
        """The server's description of itself, sent when a connection opens."""
        return self._connection.stated

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return that the server's model is not known yet; see `PolicyBase.content_sources`."""
        host, port = (
            options.get(name, getattr(OpenpiRemotePolicyCfg, name)) for name in ("remote_host", "remote_port")
        )
        return ContentSources(unknown=(f"server {host}:{port}",))

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, without asking the server.

        Raises:
            ConfigError: With every problem.
        """
        problems = [*_mistakes(config), *address_problems(config)]
        if problems:
            raise ConfigError(problems)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that lacks a camera or an observation of the policy.

        Raises:
            ConfigError: With everything that does not fit.
        """
        options = self._options
        problems = [
            *missing_inputs(env, options.images, options.states),
            *misfitting_columns(options.action_columns, env),
        ]
        if problems:
            raise ConfigError(problems)

    def asked(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the next chunk of each of some env slots, asked one after the other; see `RemoteChunks.asked`."""
        return [self._ask(env, observation, env_id) for env_id in env_ids]

    def close(self) -> None:
        """Close the connection. The server goes on: others may be using it."""
        self._connection.close()

    def _ask(self, env: Environment, observation: Observation, env_id: int) -> torch.Tensor:
        options, (action_dim,) = self._options, env.action_spec.shape
        pictures, states = shown_inputs(
            observation, env_id, images=options.images, states=options.states, image_size=options.image_size
        )
        request = {**pictures, **states, options.prompt_key: self.words_for(env, env_id)}
        return checked_actions(
            self._connection.infer(request).get("actions"),
            length=options.action_chunk_length,
            action_dim=action_dim,
            columns=options.action_columns,
            policy="openpi policy",
        )


def _mistakes(config: OpenpiRemotePolicyCfg) -> list[Problem]:
    problems = []
    if config.action_chunk_length < 1:
        problems.append(Problem(f"must be at least 1, got {config.action_chunk_length}", key="action_chunk_length"))
    if not config.images and not config.states:
        problems.append(Problem("name what the policy is shown, here or in states", key="images"))
    if len(config.image_size) != 2 or min(config.image_size) < 1:
        problems.append(Problem(f"must be height and width, got {list(config.image_size)}", key="image_size"))
    return problems + mistaken_columns(config.action_columns)
