"""``isaaclab-arena report``: write the page of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import Field

from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation.learning_curve import points_of_watch, read_records, write_watch_page
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.writing import EMBEDDED_MB, write_report


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


def main(argv: Sequence[str]) -> int:
    """Write the page and show its path; ConfigError, or StorageError if it cannot be written."""
    options = tyro.cli(ReportOptions, args=argv, prog="isaaclab-arena report", use_underscores=True)
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
