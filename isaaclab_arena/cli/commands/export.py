"""``isaaclab-arena export``: write a run in the format of another system, or send it to a service, for its tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import imported

# Entries are text, so that a format imports only its own modules.
_FORMATS = {
    "arena": "isaaclab_arena.results.exports:export_arena",
    "robomimic": "isaaclab_arena.evaluation.gym_ids:export_robomimic",
    "lerobot": "isaaclab_arena.results.exports:export_lerobot",
    "rerun": "isaaclab_arena.results.rerun_recordings:export_rerun",
    "wandb": "isaaclab_arena.tracking.watched_run:export_wandb",
    "tensorboard": "isaaclab_arena.tracking.watched_run:export_tensorboard",
    "mlflow": "isaaclab_arena.tracking.watched_run:export_mlflow",
}
"""By the option that asks for it, what writes a run in a format: takes the run's directory and that to write, which is
empty; returns lines for a person."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write a run in the format of another system, or send it to a service, and leave the run as it is."""

    output_directory: tyro.conf.Positional[Path]
    """The directory of one run, which holds run.json; for robomimic also that of a job, or a recording."""
    arena: bool = False
    """Isaac Lab Arena's episode_results_rebuild<k>.jsonl, arena_experiment_result.json and experiment_manifest.json."""
    robomimic: bool = False
    """A file per job that robomimic's SequenceDataset loads, and whose environment robomimic can build."""
    lerobot: bool = False
    """An eval_info.json as lerobot-eval writes it, for the run and for each job."""
    rerun: bool = False
    """A Rerun recording (.rrd) per recorded episode: cameras, joints, actions, rewards and outcome."""
    wandb: bool = False
    """Weights & Biases: sent if a key is known, otherwise files for 'wandb sync'."""
    tensorboard: bool = False
    """Event files of TensorBoard."""
    mlflow: bool = False
    """MLflow: the server of MLFLOW_TRACKING_URI, otherwise an SQLite file."""
    job: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only this job, for robomimic and rerun; may be given several times."""
    allow_import: bool = False
    """For robomimic: import the module, or run the interpreter, that a recording names. Use it for authors you
    trust."""
    output: Path | None = None
    """The directory to write, missing or empty; beside the run by default, with the format's name after its own."""


def main(argv: Sequence[str]) -> int:
    """Export one run and show its place; ConfigError for wrong options or an occupied destination."""
    config = (tyro.conf.FlagCreatePairsOff,)
    options = tyro.cli(
        ExportOptions, args=list(argv), prog="isaaclab-arena export", use_underscores=True, config=config
    )
    chosen = [name for name in _FORMATS if getattr(options, name)]
    if len(chosen) != 1:
        raise ConfigError(f"give the one format to write: {' or '.join(f'--{name}' for name in _FORMATS)}")
    if options.allow_import and not options.robomimic:
        raise ConfigError("is for --robomimic alone", key="--allow_import")
    takes_jobs = chosen[0] in {"robomimic", "rerun"}
    if options.job and not takes_jobs:
        raise ConfigError("is for --robomimic and --rerun alone", key="--job")

    # Refuse a destination with files before the export, so that they never mix.
    run = options.output_directory
    output = options.output or run.with_name(f"{run.resolve().name}_{chosen[0]}")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise ConfigError(f"'{output}' is no directory", key="--output")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"'{output}' is not empty; name one that is, or that does not exist", key="--output")

    more: dict[str, Any] = {"jobs": options.job} if takes_jobs else {}
    if options.robomimic:
        more["may_import"] = options.allow_import
    for line in imported(_FORMATS[chosen[0]])(run, output, **more):
        print(plain_text(line), flush=True)
    return 0
