"""Finish a run: build its tables from the files on disk, and show them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from isaaclab_arena.distributed.launch_options import leave_last_words
from isaaclab_arena.errors import ArenaError, DiskUnusableError, StorageError
from isaaclab_arena.evaluation.console import as_text, show_results
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.recovery.leftovers import Leftovers, consolidate_leftovers
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.job_reports import ReportedStatus, failed_report, read_job_reports, write_job_report

if TYPE_CHECKING:
    from isaaclab_arena.results.merge import MergedResults

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the end of a run does besides writing the tables.

    Attributes:
        before_showing: Called once the tables are what they should be.
        how_to_go_on: Shown below the table of a run that is not complete, as this program's last words; None where
            the run is only a part of what the program does.
        shows: Whether the tables are shown at all.
        writes_report: Whether the page of the run is written too, and its path shown last.
        ranks_at_work: Other ranks that have not ended; the last of them writes and shows what they have finished since.
    """

    before_showing: Callable[[], None] = lambda: None
    how_to_go_on: str | None = None
    shows: bool = True
    writes_report: bool = False
    ranks_at_work: Sequence[int] = ()


def merge_and_show(output_directory: Path, ending: Ending, *, is_finished: bool = False) -> int:
    """Write the tables and show them.

    Args:
        output_directory: The run's directory.
        ending: What is done besides.
        is_finished: Whether the run had nothing left to do: then tables are written anew only where they are missing,
            old or changed.

    Returns:
        The exit code: 0 if the run is complete, otherwise 1.
    """
    # The first step of a run should not wait for pandas.
    from isaaclab_arena.results.merge import merge_results  # noqa: PLC0415  pandas loads for half a second
    from isaaclab_arena.results.result_files import stale_tables, write_tables  # noqa: PLC0415  pandas
    from isaaclab_arena.results.summary import print_summary  # noqa: PLC0415  pandas

    if is_finished:
        _LOG.info("%s is complete; there is nothing to do", output_directory)
    merged = merge_results(output_directory)
    stale = stale_tables(output_directory, merged) if is_finished else ()
    if stale:
        names = ", ".join(path.name for path in stale)
        _LOG.warning("%s did not hold what the commit record says, and is written anew", names)
    if stale or not is_finished:
        write_tables(output_directory, merged)
    ending.before_showing()
    page = _written_report(output_directory, merged) if ending.writes_report else None
    last_line = "" if merged.complete else ending.how_to_go_on or ""

    def show(console: Console) -> None:
        print_summary(merged, output_directory, console, report=page, last_line=last_line)

    if ending.shows:
        show_results(show)
    if last_line:
        # Below whatever a launcher prints of a rank that ends with a failure, and so below the tables of later ranks.
        leave_last_words(f"{_not_the_last(ending)}\n{last_line}" if ending.ranks_at_work else as_text(show))
    return 0 if merged.complete else 1


def _not_the_last(ending: Ending) -> str:
    ranks = ", ".join(map(str, ending.ranks_at_work))
    return f"still at work when this rank ended: rank {ranks}; what they finished is in the last table above"


def _written_report(output_directory: Path, merged: "MergedResults") -> Path | None:
    """Write the page of a run. That it cannot be written is no failure of the run: the tables hold the results."""
    writing = _writing()
    try:
        return writing.write_page([writing.ReportedRun(directory=output_directory, merged=merged)])
    except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        _LOG.warning("there is no page of this run: %s", error)
        return None


def write_live_report(output_directory: Path) -> None:
    """Write the page of a run that goes on, with paths of its films: they would have to be read anew every time.

    Raises:
        ArenaError: If a file of the run cannot be read, or the page cannot be written.
    """
    _writing().write_report([output_directory], embed_mb=0.0, running=True)


def _writing() -> ModuleType:
    from isaaclab_arena.report import writing  # noqa: PLC0415  pandas, see merge_and_show

    return writing


def consolidate_what_ranks_left(
    attempt: Attempt, output_directory: Path, *, rank: int = 0, is_all: bool = False
) -> None:
    """Put episodes that ranks have left into the datasets that they belong to; all ranks have ended.

    A job of which recordings are lost, or whose dataset cannot be made, has failed, whatever its ranks have said.

    Args:
        attempt: What there was to do.
        output_directory: The run's directory.
        rank: The rank that does it.
        is_all: Whether ranks never make datasets, because they are on other nodes.

    Raises:
        DiskUnusableError: If the disk is full.
    """
    for job in (work.job for work in attempt.jobs):
        directory = job_directory(output_directory, job)
        try:
            done = consolidate_leftovers(directory, job, is_all=is_all)
        except DiskUnusableError:
            raise
        except StorageError as error:
            done = Leftovers(loss=str(error))
        for note in done.notes:
            _LOG.log(logging.DEBUG if is_all else logging.WARNING, "%s", note)
        if done.loss is None or _has_failed(directory, job, attempt):
            continue
        _LOG.error("job '%s' has failed: %s", job, done.loss)
        device = attempt.devices[rank]
        report = failed_report(job, done.loss, rank=rank, device=device, attempt=attempt.number, run=attempt.run)
        write_job_report(directory, report)


def _has_failed(directory: Path, job: str, attempt: Attempt) -> bool:
    reports, _ = read_job_reports(directory, job, attempt.run)
    return any(each.attempt == attempt.number and each.status is ReportedStatus.FAILED for each in reports)
