"""``isaaclab-arena merge``: build the table of a run again from the files that its ranks wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.cli.json_output import stdout_for_json
from isaaclab_arena.evaluation.condition_sets import save_conditions
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.results.console import GROUPS_FILE, group_by, groups_table, print_summary
from isaaclab_arena.results.merge import csv_text, merge_results, write_tables
from isaaclab_arena.storage.disk import read_whole, write_text
from isaaclab_arena.storage.reports import RESULTS_FILE


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


def main(argv: Sequence[str]) -> int:
    """Merge one run, write its tables and show them; ConfigError if it is no run, or a key is unknown."""
    options = tyro.cli(MergeOptions, args=argv, prog="isaaclab-arena merge")
    directory = options.output_directory
    with stdout_for_json(wanted=options.json):
        merged = merge_results(directory)
        write_tables(directory, merged)
        console = results_console()
        print_summary(merged, directory, console, columns=[name for name in options.columns.split(",") if name])
        if options.by:
            groups = group_by(merged, options.by)
            console.print(groups_table(groups, options.by))
            write_text(directory / GROUPS_FILE, csv_text(groups), overwrite=True)
        if options.save_conditions is not None:
            for line in save_conditions(options.save_conditions, directory):
                console.print(line, markup=False)
    if options.json:
        print(read_whole(directory / RESULTS_FILE).decode(), end="")
    return 0 if merged.complete else 1
