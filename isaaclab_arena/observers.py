"""The contract of observers, and the data that they receive."""

from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition

__all__ = [
    "Episode",
    "EpisodeRecord",
    "EpisodeStart",
    "Observer",
    "Outcome",
    "Step",
    "Transition",
]
