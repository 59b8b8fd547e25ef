"""``isaaclab-arena merge``: build the table of a run again from the files that its ranks wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.evaluation.run import results_console
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.result_files import write_tables
from isaaclab_arena.results.summary import print_summary


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Build the tables of a run again from the files of its ranks; exit code 1 where something planned is missing."""

    output_directory: tyro.conf.Positional[Path]
    """The folder of one run, which holds run.json."""


def main(argv: Sequence[str]) -> int:
    """Merge one run, write its tables and show them.

    Raises:
        ConfigError: If the folder is no output of a run.
    """
    options = tyro.cli(MergeOptions, args=argv, prog="isaaclab-arena merge")
    merged = merge_results(options.output_directory)
    write_tables(options.output_directory, merged)
    print_summary(merged, options.output_directory, results_console())
    return 0 if merged.complete else 1
