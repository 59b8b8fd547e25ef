"""The contract of observers, and the data that they receive."""

from isaaclab_arena.interfaces.environment import EpisodeStart, Observer, Step, Transition
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome

__all__ = [
    "Episode",
    "EpisodeRecord",
    "EpisodeStart",
    "Observer",
    "Outcome",
    "Step",
    "Transition",
]
