"""Make trackers by their names."""

from collections.abc import Iterable

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.registry import check_optional_library, imported
from isaaclab_arena.tracking.tracker import TrackedRun, Tracker

# Entries are text, so that a service's library is loaded only for who asked for it.
_CLASSES = {
    TrackerName.WANDB: "isaaclab_arena.tracking.wandb_tracker:WandbTracker",
    TrackerName.TENSORBOARD: "isaaclab_arena.tracking.tensorboard_tracker:TensorboardTracker",
    TrackerName.MLFLOW: "isaaclab_arena.tracking.mlflow_tracker:MlflowTracker",
}


def check_trackers(names: Iterable[str], *, key: str) -> None:
    """Refuse trackers whose library is not installed; none is loaded.

    Args:
        names: Those that were asked for.
        key: What they were asked for with, for the message.

    Raises:
        ConfigError: With the extra to install.
    """
    for name in names:
        check_optional_library(TrackerName(name), key=key)


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Return a tracker that has begun to follow a run; raises what the service's library raises.

    Args:
        name: A `TrackerName`.
        run: The run.
    """
    return imported(_CLASSES[TrackerName(name)])(run)
