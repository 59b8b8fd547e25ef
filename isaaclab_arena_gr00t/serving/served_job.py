"""Describe the job whose policy is served: its names, its sizes and the identity of its episodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from isaaclab_arena.evaluation.serving import HostedPolicy, ObservationRefusedError
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena_gr00t.remote.wire.messages import in_words
from isaaclab_arena_gr00t.serving.observation_mapping import ObservationMapping

_DISTRIBUTION = "isaaclab-arena-mujoco"


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedJob:
    """The job whose policy is served.

    Attributes:
        policy: Its policy.
        mapping: What clients call the terms of its environment.
        contents: What its policy is made of, such as the hash of a checkpoint, for clients to record.
    """

    policy: HostedPolicy
    mapping: ObservationMapping
    contents: Mapping[str, str]

    @property
    def program(self) -> str:
        """This program with its version."""
        try:
            return f"isaaclab-arena {metadata.version(_DISTRIBUTION)}"
        except metadata.PackageNotFoundError:
            return "isaaclab-arena"

    @property
    def stated(self) -> dict[str, Any]:
        """What clients are told, and record as the model that they asked."""
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

    def size_of(self, name: str) -> int:
        """Return how many numbers a term of the group ``policy`` has."""
        return math.prod(self.mapping.shapes[name])

    def instruction(self, key: str, words: object) -> str | None:
        """Return a client's instruction, None if the policy reads none or the job states it.

        Args:
            key: The name under which clients send it.
            words: What a client sent; None for nothing.

        Raises:
            ObservationRefusedError: If it is no text, or nothing and the policy needs it.
        """
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
