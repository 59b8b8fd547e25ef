"""Base class, options, traits and registration of policies."""

from isaaclab_arena.config.options import ContentSources
from isaaclab_arena.errors import PolicyError, PolicyLostError
from isaaclab_arena.interfaces.connections import Connections, Description
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import AnswersChunks, AsksNetwork, PlaysChunks, PolicyTraits
from isaaclab_arena.interfaces.specs import ChunkTraits, Continuation, Pictures
from isaaclab_arena.policy.action_chunking import ActionChunkScheduler
from isaaclab_arena.policy.catalog import POLICIES, register_policy, resolve_policy_class

__all__ = [
    "POLICIES",
    "ActionChunkScheduler",
    "AnswersChunks",
    "AsksNetwork",
    "ChunkTraits",
    "Connections",
    "ContentSources",
    "Continuation",
    "Description",
    "EpisodeStart",
    "Metric",
    "Pictures",
    "PlaysChunks",
    "PolicyBase",
    "PolicyCfg",
    "PolicyError",
    "PolicyLostError",
    "PolicyTraits",
    "register_policy",
    "resolve_policy_class",
]
