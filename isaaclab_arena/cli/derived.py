"""``isaaclab-arena merge``, ``report`` and ``export``: write anew what derives from the files of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import Field

from isaaclab_arena.cli.main import print_json, stdout_for_json
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import imported
from isaaclab_arena.report import EMBEDDED_MB
from isaaclab_arena.storage.atomic import read_whole, write_text
from isaaclab_arena.storage.ledger import RESULTS_FILE

# The tables of a run, from the files of its ranks.


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Build the tables of a run again from the files of its ranks; exit code 1 where something planned is missing."""

    output_directory: tyro.conf.Positional[Path]
    """The directory of one run, which holds run.json."""
    by: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Also pool jobs by one of their keys, such as variations.cube.mass.sampler_cfg.high; may be given several
    times."""
    columns: str = ""
    """Show these columns of the table of jobs, or metrics, in place of the usual ones: success_rate,final_height_m."""
    save_conditions: Path | None = None
    """Also save the start of each episode of complete jobs, for a job's 'conditions'."""
    json: bool = False
    """Print results.json, and the text for people on stderr."""


def merge(argv: Sequence[str]) -> int:
    """Merge one run, write its tables and show them; ConfigError if it is no run, or a key is unknown."""
    with without_collecting():
        from isaaclab_arena.evaluation.job import save_conditions  # noqa: PLC0415  torch
        from isaaclab_arena.evaluation.process import results_console  # noqa: PLC0415
        from isaaclab_arena.results import console as texts  # noqa: PLC0415
        from isaaclab_arena.results.merge import csv_text, merge_results, write_tables  # noqa: PLC0415  pandas

    options = read_words(MergeOptions, argv, program="isaaclab-arena merge")
    directory = options.output_directory
    with stdout_for_json(wanted=options.json):
        merged, columns = merge_results(directory), [name for name in options.columns.split(",") if name]
        # An unknown key or column is refused before anything is written.
        groups = texts.group_by(merged, options.by) if options.by else None
        texts.chosen_table(merged, columns)
        write_tables(directory, merged)
        console = results_console()
        texts.print_summary(merged, directory, console, columns=columns)
        if groups is not None:
            console.print(texts.groups_table(groups, options.by))
            write_text(directory / texts.GROUPS_FILE, csv_text(groups), overwrite=True)
        if options.save_conditions is not None:
            for line in save_conditions(options.save_conditions, directory):
                console.print(line, markup=False)
    if options.json:
        print(read_whole(directory / RESULTS_FILE).decode(), end="")
    return 0 if merged.complete else 1


# The page of runs.


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write the page of one run or several: results, films, comparisons, in one file that needs no network."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs (with a run.json), or the directory of a watch, whose page shows its learning curve."""
    output: Path | None = None
    """The file; report.html in the directory of the first run by default."""
    embed_mb: Annotated[float, Field(ge=0, le=2_000)] = EMBEDDED_MB
    """MB of films in the page; further films are linked."""
    json: bool = False
    """Print the path as JSON."""


def report(argv: Sequence[str]) -> int:
    """Write the page and show its path; ConfigError, or StorageError if it cannot be written."""
    with without_collecting():
        from isaaclab_arena.evaluation.learning_curve import (  # noqa: PLC0415  Pillow and Jinja
            points_of_watch,
            read_records,
            write_watch_page,
        )
        from isaaclab_arena.report.writing import write_report  # noqa: PLC0415

    options = read_words(ReportOptions, argv, program="isaaclab-arena report")
    problems = list(wrong_numbers(options))
    if not options.runs:
        problems.append(Problem("name the directory of a run", key="RUNS"))
    refuse(problems)
    directories = list(dict.fromkeys(options.runs))
    watches = [directory for directory in directories if read_records(directory)]
    if not watches:
        path = write_report(directories, options.output, embed_mb=options.embed_mb)
    elif len(directories) > 1:
        raise ConfigError("is a watch, which has a page of its own; name it alone", key=str(watches[0]))
    else:
        path = write_watch_page(watches[0], points_of_watch(watches[0]), options.output)
    if options.json:
        print_json({"report": str(path)})
    else:
        print(f"report in {plain_text(path)}")
    return 0


# A run in the format of another system.

# Writers are text, so that a format imports only its own modules.
_FORMATS: dict[str, tuple[str, Mapping[str, str]]] = {
    "arena": ("isaaclab_arena.results.exports:export_arena", {}),
    "robomimic": (
        "isaaclab_arena.evaluation.robomimic:export_robomimic",
        {"allow_import": "may_import", "job": "jobs"},
    ),
    "lerobot": ("isaaclab_arena.results.exports:export_lerobot", {}),
    "rerun": ("isaaclab_arena.results.exports:export_rerun", {"job": "jobs"}),
    "latex": ("isaaclab_arena.results.exports:export_latex", {}),
    "wandb": ("isaaclab_arena.tracking.watched_run:export_wandb", {}),
    "tensorboard": ("isaaclab_arena.tracking.watched_run:export_tensorboard", {}),
    "mlflow": ("isaaclab_arena.tracking.watched_run:export_mlflow", {}),
}
"""By option, the writer of a format, and the options that become its keywords. It takes the run's directory and the one
to write, which is empty; it returns lines for a person. A new format is a line here and an option below."""


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
    latex: bool = False
    """The table of jobs, and that of suites, for a paper."""
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


def export(argv: Sequence[str]) -> int:
    """Export one run and show its place; ConfigError for wrong options or an occupied destination."""
    options = read_words(ExportOptions, argv, program="isaaclab-arena export")
    chosen = [name for name in _FORMATS if getattr(options, name)]
    if len(chosen) != 1:
        raise ConfigError(f"give the one format to write: {' or '.join(f'--{name}' for name in _FORMATS)}")
    writer, keywords = _FORMATS[chosen[0]]
    for option in ("allow_import", "job"):
        if getattr(options, option) and option not in keywords:
            takers = " and ".join(f"--{name}" for name, (_, taken) in _FORMATS.items() if option in taken)
            raise ConfigError(f"is for {takers} alone", key=f"--{option}")

    # Refuse a destination with files before the export, so that they never mix.
    run = options.output_directory
    output = options.output or run.with_name(f"{run.resolve().name}_{chosen[0]}")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise ConfigError(f"'{output}' is no directory", key="--output")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"'{output}' is not empty; name one that is, or that does not exist", key="--output")

    more = {keyword: getattr(options, option) for option, keyword in keywords.items()}
    for line in imported(writer)(run, output, **more):
        print(plain_text(line), flush=True)
    return 0
