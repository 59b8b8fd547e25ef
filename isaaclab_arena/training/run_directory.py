"""Where training runs lie: a new one's folder, the newest one's, and what was asked for in one."""

from pathlib import Path

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.dated_folders import make_dated_folder
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.atomic import storage_errors

SETTINGS = Path("params") / "train.yaml"


def new_run_directory(log_root: Path, experiment: str, run_name: str) -> Path:
    """Make a folder for a run, ``<log_root>/<experiment>/<time>[_<run_name>]``, which did not exist before.

    Raises:
        StorageError: If it cannot be made.
    """
    folder = log_root / experiment
    with storage_errors("make a folder in", folder):
        folder.mkdir(parents=True, exist_ok=True)
        return make_dated_folder(folder, suffix=f"_{run_name}" if run_name else "").absolute()


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
