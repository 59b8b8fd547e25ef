"""Make trackers by their names."""

from collections.abc import Iterable
from dataclasses import replace

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.registry import check_optional_library, imported
from isaaclab_arena.tracking.tracker import TrackedRun, Tracker

# Entries are text, so that a service's library is loaded only for who asked for it.
_CLASSES = {
    TrackerName.WANDB: "isaaclab_arena.tracking.wandb_tracker:WandbTracker",
    TrackerName.TENSORBOARD: "isaaclab_arena.tracking.tensorboard_tracker:TensorboardTracker",
    TrackerName.MLFLOW: "isaaclab_arena.tracking.mlflow_tracker:MlflowTracker",
}


def check_trackers(names: Iterable[str], *, key: str, file: str | None = None) -> None:
    """Refuse trackers whose library is not installed; none is loaded.

    Args:
        names: Those that were asked for.
        key: What they were asked for with, for the message.
        file: The job file that asks for them.

    Raises:
        ConfigError: With the extra to install for each.
    """
    problems: list[Problem] = []
    for name in names:
        try:
            check_optional_library(TrackerName(name), key=key)
        except ConfigError as error:
            problems += [replace(problem, file=file) for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Return a tracker that has begun to follow a run; raises what the service's library raises.

    Args:
        name: A `TrackerName`.
        run: The run.
    """
    return imported(_CLASSES[TrackerName(name)])(run)
