"""Let rank 0 make the directory of a training run, and tell the other ranks its path."""

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.ranks import DistributedError, Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.run_directory import numbered_checkpoints
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.layout import LOCK_FILE
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.options import TrainOptions
from isaaclab_arena.training.settings.request import run_to_resume
from isaaclab_arena.training.settings.run_directory import new_run_directory

LAUNCHER = "launcher"
"""Name of the directory for the ranks' output, in that of a run."""
LATEST = ".latest_run"
_POLL_INTERVAL_S = 0.05
_EARLY = (LAUNCHER, LOCK_FILE, LATEST)
"""Names that a run's directory may contain before the run begins."""


@dataclass(frozen=True, kw_only=True)
class LatestRun:
    """The file in which rank 0 names the directory of the run.

    Attributes:
        launch: Identifies one start of the ranks; files of other starts are ignored.
        run_directory: The directory.
    """

    launch: str
    run_directory: Path


def shared_run_directory(options: TrainOptions, config: TrainingConfig, ranks: Ranks) -> Path:
    """Return the run's directory, made by rank 0 and known to all ranks.

    Raises:
        ConfigError: If it is the directory of something else.
        DistributedError: If the other ranks do not see what rank 0 has made.
    """
    launch = ranks.share_from_rank_zero("launch", uuid.uuid4().hex)
    # All ranks know a directory that the user named, and the directories around it are not ours.
    named = options.resume or options.run_directory
    among = Path(named).absolute() if named else options.log_root / config.experiment_name
    if not ranks.context.is_rank_zero:
        return await_announcement(among, launch, timeout_s=config.distributed.timeout_s)
    run_directory = _own_run_directory(options, config)
    announce(among, LatestRun(launch=launch, run_directory=run_directory))
    return run_directory


def _own_run_directory(options: TrainOptions, config: TrainingConfig) -> Path:
    if options.resume is not None:
        run_directory = run_to_resume(options, config.task, (f"agent.experiment_name={config.experiment_name}",))
        if not numbered_checkpoints(run_directory):
            message = f"'{run_directory}' holds no checkpoint to go on from; begin a new run"
            raise ConfigError(Problem(message, key="--resume"))
        return run_directory
    if options.run_directory is None:
        return new_run_directory(options.log_root, config.experiment_name, config.agent.run_name)
    directory = options.run_directory.absolute()
    if directory.exists() and (not directory.is_dir() or any(path.name not in _EARLY for path in directory.iterdir())):
        message = f"'{directory}' is not empty; go on with --resume, or name a new directory"
        raise ConfigError(Problem(message, key="--run_directory"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def announce(experiment_directory: Path, run: LatestRun) -> None:
    """Write the path of a run's directory into ``.latest_run`` of its experiment.

    Raises:
        StorageError: If it cannot be written.
    """
    content = json.dumps({"launch": run.launch, "run_directory": str(run.run_directory)})
    write_text(experiment_directory / LATEST, content + "\n", overwrite=True)


def await_announcement(experiment_directory: Path, launch: str, *, timeout_s: float) -> Path:
    """Wait for rank 0 of this start to announce the directory, and return it; files of older runs are ignored.

    Args:
        experiment_directory: Directory with the file ``.latest_run``.
        launch: Identifies this start of the ranks.
        timeout_s: How long to wait [s].

    Raises:
        DistributedError: If it does not appear in time.
    """
    deadline = time.monotonic() + timeout_s
    path = experiment_directory / LATEST
    while True:
        found = _read(path)
        if found is not None and found.launch == launch and found.run_directory.is_dir():
            return found.run_directory
        if time.monotonic() > deadline:
            what = "there is none" if found is None else "it is that of another run"
            raise DistributedError(
                f"waited {timeout_s:g} s for rank 0 to name the directory of this run in {path}, and {what}; "
                "all ranks need the same --log_root, or --run_directory, on a disk that all nodes share"
            )
        time.sleep(_POLL_INTERVAL_S)


def _read(path: Path) -> LatestRun | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return LatestRun(launch=content["launch"], run_directory=Path(content["run_directory"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
