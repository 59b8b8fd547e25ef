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

__getattr__, __dir__ = attach(
    __name__,
    {
        "results.merge": "MergedResults Tables merge_results read",
        "results.statistics": "Interval wilson_interval",
        "storage.episode_file": "RecordedEpisode",
        "storage.episodes": "list_episodes read_attributes read_episode verify_episodes write_episode",
    },
)
