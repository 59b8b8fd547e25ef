"""What watches a run without being part of it, and what it is shown."""

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
