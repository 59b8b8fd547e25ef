"""Results: tables with intervals from finished episodes, and the recordings behind them."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.results.merge import MergedResults, Tables, merge_results, read
    from isaaclab_arena.results.statistics import Interval, wilson_interval
    from isaaclab_arena.storage.episode_file import RecordedEpisode
    from isaaclab_arena.storage.episodes import (
        list_episodes,
        read_attributes,
        read_episode,
        verify_episodes,
        write_episode,
    )

__all__ = [
    "Interval",
    "MergedResults",
    "RecordedEpisode",
    "Tables",
    "list_episodes",
    "merge_results",
    "read",
    "read_attributes",
    "read_episode",
    "verify_episodes",
    "wilson_interval",
    "write_episode",
]

_HOMES = {
    "Interval": "isaaclab_arena.results.statistics",
    "MergedResults": "isaaclab_arena.results.merge",
    "RecordedEpisode": "isaaclab_arena.storage.episode_file",
    "Tables": "isaaclab_arena.results.merge",
    "list_episodes": "isaaclab_arena.storage.episodes",
    "merge_results": "isaaclab_arena.results.merge",
    "read": "isaaclab_arena.results.merge",
    "read_attributes": "isaaclab_arena.storage.episodes",
    "read_episode": "isaaclab_arena.storage.episodes",
    "verify_episodes": "isaaclab_arena.storage.episodes",
    "wilson_interval": "isaaclab_arena.results.statistics",
    "write_episode": "isaaclab_arena.storage.episodes",
}
"""Public name to the module that defines it, which is imported when the name is first used."""

__getattr__, __dir__ = attach(__name__, _HOMES)
