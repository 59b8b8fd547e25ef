"""The one folder of a training run, which all ranks use and only rank 0 makes."""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.atomic import storage_errors, write_text

LATEST = ".latest_run"
SETTINGS = Path("params") / "train.yaml"
_POLL_INTERVAL_S = 0.05
_STAMP = "%Y-%m-%d_%H-%M-%S"


@dataclass(frozen=True, kw_only=True)
class LatestRun:
    """What rank 0 leaves for the others.

    Attributes:
        launch: Names one start of the ranks; what another start has left does not count.
        run_directory: The folder.
    """

    launch: str
    run_directory: Path


def new_run_directory(log_root: Path, experiment: str, run_name: str, *, now: datetime | None = None) -> Path:
    """Make a folder for a run, ``<log_root>/<experiment>/<time>[_<run_name>]``, which did not exist before.

    Raises:
        StorageError: If it cannot be made.
    """
    name = (now or datetime.now().astimezone()).strftime(_STAMP) + (f"_{run_name}" if run_name else "")
    folder = log_root / experiment
    with storage_errors("make a folder in", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            path = folder / (name if number == 0 else f"{name}_{number + 1}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path.absolute()
    raise ConfigError(f"there are a thousand runs called '{name}' in {folder}; choose another --run_name")


def announce(experiment_directory: Path, run: LatestRun) -> None:
    """Leave word of a run's folder, in ``.latest_run`` of its experiment.

    Raises:
        StorageError: If it cannot be written.
    """
    content = json.dumps({"launch": run.launch, "run_directory": str(run.run_directory)})
    write_text(experiment_directory / LATEST, content + "\n", overwrite=True)


def await_announcement(experiment_directory: Path, launch: str, *, timeout_s: float) -> Path:
    """Return the folder that rank 0 of this start has announced, once it has; what an older run left is ignored.

    Args:
        experiment_directory: Where the word is left.
        launch: Names this start of the ranks.
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
                f"waited {timeout_s:g} s for rank 0 to name the folder of this run in {path}, and {what}; "
                "all ranks need the same --log_root, on a disk that all machines share"
            )
        time.sleep(_POLL_INTERVAL_S)


def newest_run(log_root: Path, experiment: str) -> Path:
    """Return the newest run of an experiment that has something to go on from.

    Raises:
        ConfigError: If there is none.
    """
    folder = log_root / experiment
    runs = sorted({path.parent for path in folder.glob("*/model_*.pt") if (path.parent / SETTINGS).is_file()})
    if not runs:
        raise ConfigError(Problem(f"there is no run in {folder} to go on with", key="--resume"))
    return runs[-1].absolute()


def settings_of(run_directory: Path) -> dict[str, object]:
    """Return what a run was asked for.

    Raises:
        ConfigError: If the folder holds no training run.
    """
    path = run_directory / SETTINGS
    if not path.is_file():
        raise ConfigError(Problem(f"'{run_directory}' holds no training run: there is no {SETTINGS}", key="--resume"))
    settings = read_document(path)
    if not isinstance(settings, dict):
        raise ConfigError(Problem("holds no settings of a training run", file=str(path)))
    return settings


def _read(path: Path) -> LatestRun | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return LatestRun(launch=content["launch"], run_directory=Path(content["run_directory"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
