"""A policy that asks an openpi policy server, such as those of the pi0 models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.errors import ConfigError, PolicyError, Problem, did_you_mean
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.policy.action_chunking import ActionChunks
from isaaclab_arena_gr00t.images import resized_with_padding
from isaaclab_arena_gr00t.remote.address import ServerOptions, address_problems, server_address
from isaaclab_arena_gr00t.remote.openpi import OpenpiConnection

_CAMERAS = "camera_obs"


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


class OpenpiRemotePolicy(PolicyBase[OpenpiRemotePolicyCfg]):
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
        super().__init__(config)
        self._options = config
        self._instructions: dict[int, str] = {}
        self._chunks: ActionChunks | None = None
        self._connection = OpenpiConnection(server_address(config))
        self._connection.wait_until_ready()

    @property
    def is_remote(self) -> bool:
        """True: the network runs in another process."""
        return True

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
        spec: Any = env.observation_spec
        cameras, states = set(spec.get(_CAMERAS, {})), set(spec.get("policy", {}))
        problems = [
            Problem(f"the environment has no camera '{camera}'{did_you_mean(camera, cameras)}", key=f"images.{key}")
            for key, camera in self._options.images.items()
            if camera not in cameras
        ]
        problems += [
            Problem(f"the environment has no observation '{name}'{did_you_mean(name, states)}", key=f"states.{key}")
            for key, names in self._options.states.items()
            for name in names
            if name not in states
        ]
        columns = self._options.action_columns
        (action_dim,) = env.action_spec.shape
        if columns is not None and len(columns) != action_dim:
            message = f"names {len(columns)} numbers, the environment's action has {action_dim}"
            problems.append(Problem(message, key="action_columns"))
        if problems:
            raise ConfigError(problems)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Store the instructions of the episodes that begin, and drop earlier chunks of their env slots."""
        self._instructions.update({start.env_id: start.language_instruction for start in starts})
        chunks = self._chunks_for(env, all_active=False)
        self._chunks = chunks.restarted(_indices([start.env_id for start in starts]))

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Stop asking for env slots that rest."""
        del env
        if self._chunks is not None:
            self._chunks = self._chunks.rested(_indices(env_ids))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Forget the remaining chunks of the named env slots; with None also the instructions."""
        if env_ids is None:
            self._instructions, self._chunks = {}, None
        elif self._chunks is not None:
            self._chunks = self._chunks.restarted(env_ids.cpu())

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the action of every env slot, asking the server for the env slots whose chunk is used up.

        Returns:
            Shape: (num_envs, action_dim).

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time, or takes too long.
            PolicyError: If it answers with an error, or its actions do not fit.
        """
        chunks = self._chunks_for(env, all_active=True)
        env_ids = torch.nonzero(chunks.needs_chunk()).flatten()
        if len(env_ids):
            new = torch.stack([self._ask(env, observation, env_id) for env_id in env_ids.tolist()])
            chunks = chunks.refilled(env_ids, new)
        action, self._chunks = chunks.popped()
        return action.to(env.device, non_blocking=True)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start, and those whose chunk is used up by the next step."""
        if self._chunks is None or self._chunks.num_envs != env.num_envs:
            return starting
        return [*starting, *torch.nonzero(self._chunks.looked_at_next((0,))).flatten().tolist()]

    def close(self) -> None:
        """Close the connection. The server goes on: others may be using it."""
        self._connection.close()

    def _ask(self, env: Environment, observation: Observation, env_id: int) -> torch.Tensor:
        """Return an env slot's next chunk. Shape: (action_chunk_length, action_dim)."""
        answer = self._connection.infer(self._request(env, observation, env_id))
        actions, length = answer.get("actions"), self._options.action_chunk_length
        if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.shape[0] < length:
            got = actions.shape if isinstance(actions, np.ndarray) else f"{type(actions).__name__}"
            raise PolicyError(f"the openpi policy must answer with 'actions' of at least {length} steps, got {got}")
        columns, (action_dim,) = self._options.action_columns, env.action_spec.shape
        if columns is None and actions.shape[1] != action_dim:
            raise PolicyError(
                f"the openpi policy's action has {actions.shape[1]} numbers, the environment's {action_dim}; "
                f"action_columns says which of them to take"
            )
        if columns is not None and max(columns) >= actions.shape[1]:
            raise PolicyError(f"the openpi policy's action has {actions.shape[1]} numbers, no column {max(columns)}")
        chosen = actions[:length] if columns is None else actions[:length, list(columns)]
        with np.errstate(over="ignore"):
            chunk = np.ascontiguousarray(chosen, dtype=np.float32)
        if not np.isfinite(chunk).all():
            raise PolicyError("the openpi policy's actions hold numbers that are not finite")
        return torch.from_numpy(chunk)

    def _request(self, env: Environment, observation: Observation, env_id: int) -> dict[str, Any]:
        options = self._options
        height, width = options.image_size
        shown: dict[str, torch.Tensor] = {}
        for key, camera in options.images.items():
            image = observation[_CAMERAS][camera][env_id][None]
            shown[key] = resized_with_padding(image, height=height, width=width)[0]
        for key, names in options.states.items():
            parts = [observation["policy"][name][env_id].to(torch.float32).flatten() for name in names]
            shown[key] = torch.cat(parts)
        request = {key: part.numpy() for key, part in zip(shown, on_cpu(list(shown.values())), strict=True)}
        words = self._instructions.get(env_id) or self.task_description or env.task_description
        return {**request, options.prompt_key: words}

    def _chunks_for(self, env: Environment, *, all_active: bool) -> ActionChunks:
        if self._chunks is not None and self._chunks.num_envs == env.num_envs:
            return self._chunks
        length, (action_dim,) = self._options.action_chunk_length, env.action_spec.shape
        # Answers come to the CPU. To ask a GPU which chunks are used up would be to wait for it.
        device = torch.device("cpu")
        chunks = ActionChunks.empty(env.num_envs, chunk_length=length, action_dim=action_dim, device=device)
        # A loop that does not announce its episodes plays in all env slots.
        return chunks.restarted(_indices(range(env.num_envs))) if all_active else chunks


def _mistakes(config: OpenpiRemotePolicyCfg) -> list[Problem]:
    problems = []
    if config.action_chunk_length < 1:
        problems.append(Problem(f"must be at least 1, got {config.action_chunk_length}", key="action_chunk_length"))
    if not config.images and not config.states:
        problems.append(Problem("name what the policy is shown, here or in states", key="images"))
    if len(config.image_size) != 2 or min(config.image_size) < 1:
        problems.append(Problem(f"must be height and width, got {list(config.image_size)}", key="image_size"))
    if config.action_columns is not None and (not config.action_columns or min(config.action_columns) < 0):
        problems.append(Problem("must be numbers from 0", key="action_columns"))
    return problems


def _indices(env_ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(env_ids), dtype=torch.int64)
