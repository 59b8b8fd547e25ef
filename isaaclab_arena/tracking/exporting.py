"""Send a run that has ended, or what there is of it, to a tracker."""

from functools import partial
from pathlib import Path

from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.storage.run_plan import read_run_plan
from isaaclab_arena.tracking.trackers import check_trackers, open_tracker
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun, tracked_run


def export_wandb(run: Path, output: Path) -> list[str]:
    """Send a run to Weights & Biases; see `export_to`."""
    return export_to(TrackerName.WANDB, run, output)


def export_tensorboard(run: Path, output: Path) -> list[str]:
    """Write a run for TensorBoard; see `export_to`."""
    return export_to(TrackerName.TENSORBOARD, run, output)


def export_mlflow(run: Path, output: Path) -> list[str]:
    """Send a run to MLflow; see `export_to`."""
    return export_to(TrackerName.MLFLOW, run, output)


def export_to(name: TrackerName, run: Path, output: Path) -> list[str]:
    """Send what a run's directory holds to a tracker, and return lines for the user.

    Args:
        name: The tracker.
        run: The directory of one run.
        output: Where it writes if it runs on no server.

    Raises:
        ConfigError: If the tracker's library is not installed, or ``run`` is no output of a run.
        ArenaError: If the tracker failed.
    """
    check_trackers([name], key=f"--{name}")
    plan = read_run_plan(run)
    tracker = OpenedTracker(name, partial(open_tracker, name, tracked_run(run, plan, output)))
    WatchedRun(run, plan, [tracker]).finish()
    if tracker.failure is not None:
        raise ArenaError(f"{name} did not take the run: {tracker.failure}")
    return [tracker.place or ""]
