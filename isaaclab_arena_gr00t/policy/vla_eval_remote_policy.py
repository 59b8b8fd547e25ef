"""A policy that asks a model server of vla-eval, such as those of OpenVLA, X-VLA and CogACT."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from isaaclab_arena.errors import Problem, refuse
from isaaclab_arena.interfaces.environment import Environment, EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyCfg, PolicyTraits
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.policy.remote_chunks import RemoteChunks, addressed, misfits, mistaken_options
from isaaclab_arena_gr00t.remote import vla_eval
from isaaclab_arena_gr00t.remote.protocols import ServerOptions

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")


@dataclass(frozen=True)
class VlaEvalRemotePolicyCfg(ServerOptions, PolicyCfg):
    """Options of `VlaEvalRemotePolicy`.

    Attributes:
        address: The server, such as ``ws://localhost:8000``, instead of ``remote_host`` and ``remote_port``.
        images: Camera for each of the server's pictures; all in colour under their own names by default.
        states: Observations of the group ``policy``, in order, for each of the server's arrays, whose keys may lie
            inside each other: ``{"state.eef": ["eef_pos"]}``; all under their own names by default.
        image_size: Height and width of the pictures that are sent, padded with black if the aspect ratio differs; None
            for those they have.
        picture_format: How pictures travel: ``raw``, ``png`` or ``jpeg``, which loses details. Raw takes the least
            time on one machine, the others take fewer bytes.
        task: The server's description of the task at the start of an episode, beside its name and ``episode_idx``:
            ``{"suite": "libero_spatial"}``.
        action_chunk_length: Control steps that are played of an answer; more than 1 only for a server that answers with
            chunks and does not play them itself.
        execute: ``all`` to play every action of an answer, however many, instead of ``action_chunk_length`` of them.
        action_columns: Indices into the server's action for each number of the environment's; None if both are the
            same.
        remote_port: Port of the server.
        timeout_s: How long an answer may take [s]; the first one may have to wait for a compiler.
    """

    address: str | None = None
    images: Mapping[str, str] | None = None
    states: Mapping[str, Sequence[str]] | None = None
    image_size: tuple[int, int] | None = None
    picture_format: vla_eval.PictureFormat = "raw"
    task: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    action_chunk_length: int = 1
    execute: Literal["all"] | None = None
    action_columns: tuple[int, ...] | None = None
    remote_port: int = 8000
    timeout_s: float = 120.0


class VlaEvalRemotePolicy(RemoteChunks[VlaEvalRemotePolicyCfg]):
    """Asks a model server of vla-eval, in one session per env slot."""

    # Env slots are asked all at once, so that a server that batches sessions has full batches. A session carries the
    # start and end of its episodes, and the server may keep state in between. So an episode whose session is lost is an
    # error.
    name: ClassVar[str] = "vla_eval_remote"
    server: ClassVar[str] = "vla-eval model server"
    config_class: ClassVar[type | None] = VlaEvalRemotePolicyCfg
    # A server batches sessions of several clients, so the last digits of their actions depend on each other.
    traits = PolicyTraits(serves_any_num_envs=True, uses_own_device=False, pictures="announced", remote=True)

    def __init__(self, config: VlaEvalRemotePolicyCfg) -> None:
        super().__init__(config, lambda: vla_eval.VlaEvalCodec(config.picture_format))
        self._specs = self._connections.codec.specs
        # Env slots whose session has a running episode.
        self._running: set[int] = set()

    @classmethod
    def check_options(cls, config: Any) -> None:
        """Refuse options that cannot work, without asking the server: ConfigError with every problem."""
        problems = mistaken_options(config)
        if config.address is not None and addressed(config) is config:
            problems.append(Problem(f"must be like ws://localhost:8000, got {config.address!r}", key="address"))
        refuse(problems)

    def check_environment(self, env: Environment) -> None:
        """Refuse an environment that contradicts the job or the server's hello: ConfigError with every problem."""
        options, (action_dim,) = self.config, env.action_spec.shape
        images, states = self.inputs(options, env)
        problems = misfits(env, images, states, options.action_columns)

        # The server's inputs. Names are not compared: servers call any picture ``image``, and take the first one.
        specs, picture = self._specs, "rgb_hwc_uint8"
        formats = {str(name): _entry(part, "format", "") for name, part in specs.get("observation_spec", {}).items()}
        pictures = [name for name, form in formats.items() if form == picture]
        arrays = [name for name, form in formats.items() if form not in (picture, "language")]
        if len(pictures) > len(images):
            message = f"the server wants {len(pictures)} pictures ({_listed(pictures)}), and is shown {len(images)}"
            problems.append(Problem(message, key="images"))
        if arrays and not states:
            problems.append(Problem(f"the server wants {_listed(arrays)}, and is shown pictures alone", key="states"))

        # Its action. Some servers declare only a part of it, so one that is declared too small is no problem. ``dims``
        # is 0 if a server states none.
        dims = [_entry(part, "dims", 0) for part in specs.get("action_spec", {}).values()]
        if options.action_columns is None and all(dims) and sum(dims) > action_dim:
            parts = _listed(list(specs["action_spec"]))
            message = (
                f"the server's action has {sum(dims)} numbers ({parts}), the environment's {action_dim}; "
                "say which to take"
            )
            problems.append(Problem(message, key="action_columns"))
        refuse(problems)

        # The server may expect options of vla-eval's own benchmarks, which only the user can translate.
        if specs.get("observation_params"):
            wanted = plain_text(str(specs["observation_params"])[:500])
            _LOG.warning("the server asks benchmarks of vla-eval for %s; make_kwargs of the job may give it", wanted)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Send each session the start of its env slot's episode."""
        super().start_episodes(env, starts)
        for start in starts:
            name = start.conditions.get("vla_eval.task", start.language_instruction)
            task = {"name": name, "episode_idx": start.episode.episode_index, **self.config.task}
            self._connections.of(start.env_id).begin((vla_eval.EPISODE_START, {"task": task}))
            self._running.add(start.env_id)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Send each session the end of its episode, and stop asking."""
        super().end_episodes(env, env_ids)
        self._end(env_ids)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """End the episodes of `env_ids`, or of all env slots with None, and drop their remaining chunks."""
        super().reset(env_ids)
        self._end(sorted(self._running) if env_ids is None else env_ids.tolist())

    @staticmethod
    def answered_actions(answer: Mapping[str, Any]) -> object:
        """Return the actions of an answer, which may be a single one instead of a chunk."""
        actions = answer.get("actions")
        return actions[None] if isinstance(actions, np.ndarray) and actions.ndim == 1 else actions

    def _end(self, env_ids: Sequence[int]) -> None:
        for env_id in self._running.intersection(env_ids):
            self._connections.of(env_id).end((vla_eval.EPISODE_END, {}))
        self._running.difference_update(env_ids)

    def question(
        self, env: Environment, env_id: int, pictures: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Return pictures, states and instruction of an env slot, whose episode has begun."""
        if env_id not in self._running:
            # A loop that does not announce its episodes plays one in each env slot.
            task = {"name": self._words_for(env, env_id), **self.config.task}
            self._connections.of(env_id).begin((vla_eval.EPISODE_START, {"task": task}))
            self._running.add(env_id)

        # Nest the arrays in dicts, one level for each dot in their names.
        nested: dict[str, Any] = {}
        for name, array in states.items():
            *outer, last = name.split(".")
            place = nested
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = array
        return {**nested, "images": pictures, "task_description": self._words_for(env, env_id)}


def _entry(part: object, name: str, default: Any) -> Any:
    """Return an entry of a part of the server's hello, `default` if it is missing or of another type."""
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if type(value) is type(default) else default


def _listed(names: list[Any]) -> str:
    return f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"[:200]
