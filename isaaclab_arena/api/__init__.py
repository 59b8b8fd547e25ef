"""The Python interface: results as data frames and typed numbers, the comparison of two runs, and evaluation."""

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from rich.console import Console

from isaaclab_arena.analysis.comparison import (
    ComparisonReport,
    JobComparison,
    Question,
    Verdict,
    check_shares,
    compare_directories,
)
from isaaclab_arena.analysis.comparison_files import markdown, write_comparison
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.paths import given_path
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import Tables, read
from isaaclab_arena.results.rows import scored_episodes
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.ledger import make_output_directory


@dataclass(frozen=True, kw_only=True)
class JobResults:
    """The results of one job.

    Attributes:
        name: The job.
        status: ``completed``, ``failed``, ``interrupted``, ``missing`` or ``skipped``.
        num_episodes: Episodes that finished.
        num_planned: Episodes that were planned, None if unknown.
        num_successes: Number of finished episodes that succeeded, None if success is not measured.
        num_errors: Number of finished episodes that ended in an error.
        success_rate: Share of finished episodes that succeeded, None if not measured or without episodes.
        interval: Lowest and highest success rate of the 95 % Wilson interval; None without a rate.
        num_distinct: Number of different start conditions of the rate's episodes, None without a rate.
        mean_return: Mean sum of rewards of an episode, None without episodes.
        mean_length: Mean number of control steps of an episode, None without episodes.
        reproducible: ``bitwise`` or ``plan``, None if the job was never built.
        error: The reason of its failure, None if it did not fail.
    """

    name: str
    status: str
    num_episodes: int
    num_planned: int | None
    num_successes: int | None
    num_errors: int
    success_rate: float | None
    interval: tuple[float, float] | None
    num_distinct: int | None
    mean_return: float | None
    mean_length: float | None
    reproducible: str | None
    error: str | None


class Results:
    """The results of a run.

    Args:
        merged: The tables of the run.
        output_dir: The run's directory.
        owned: The directory if it is removed with this object, None if it stays.
    """

    def __init__(self, merged: Tables, output_dir: Path, *, owned: "TemporaryDirectory[str] | None" = None) -> None:
        self._merged = merged
        self._owned = owned
        self.output_dir = output_dir

    @property
    def jobs(self) -> pd.DataFrame:
        """The table of jobs, as in ``results.parquet``."""
        return self._merged.in_file("results")

    @property
    def suites(self) -> pd.DataFrame:
        """The table of suites, as in ``suites.parquet``; empty if the job file names none."""
        return self._merged.in_file("suites")

    @property
    def metrics(self) -> pd.DataFrame:
        """The table of declared metrics by job, as in ``metrics.parquet``; empty if none is declared."""
        return self._merged.in_file("metrics")

    @property
    def episodes(self) -> pd.DataFrame:
        """The table of finished episodes, as in ``episodes.parquet``."""
        return self._merged.in_file("episodes")

    @property
    def complete(self) -> bool:
        """True if every job completed with all of its episodes."""
        return self._merged.complete

    @property
    def names(self) -> list[str]:
        """The names of the jobs, in the order of the plan."""
        return [str(name) for name in self._merged.jobs["name"]]

    def job(self, name: str | None = None) -> JobResults:
        """Return the results of one job.

        Args:
            name: The job; None for the only one.

        Raises:
            ConfigError: If there is no such job, or several and no name.
        """
        if name is None and len(self.names) != 1:
            raise ConfigError(f"there are several: {', '.join(self.names)}", key="name")
        found = [each for each in self._merged.rows if name is None or each["name"] == name]
        if not found:
            raise ConfigError(f"there is no job '{name}'{did_you_mean(str(name), self.names)}", key="name")
        known = found[0]
        low, high = known["success_low"], known["success_high"]
        scored = None if known["success_rate"] is None else scored_episodes(known)
        distinct = known.get("distinct_conditions") or scored
        return JobResults(
            name=str(known["name"]),
            status=str(known["status"]),
            num_episodes=int(known["episodes"] or 0),
            num_planned=known["planned"],
            num_successes=known["successes"],
            num_errors=int(known["errors"] or 0),
            success_rate=known["success_rate"],
            interval=None if low is None or high is None else (float(low), float(high)),
            num_distinct=None if distinct is None else int(distinct),
            mean_return=known["mean_return"],
            mean_length=known["mean_length"],
            reproducible=known["reproducible"],
            error=known["error"],
        )

    def save(self, directory: "str | PathLike[str]") -> Path:
        """Copy the run's directory with all its files, and return the copy's path; `load_results` reads it.

        Args:
            directory: A directory that is missing or empty.

        Raises:
            ConfigError: If it is neither.
            StorageError: If a file cannot be copied.
        """
        target = make_output_directory(output_dir=str(given_path(directory)), output_base_dir="")
        with storage_errors("copy to", target):
            shutil.copytree(self.output_dir, target, dirs_exist_ok=True)
        return target

    def __repr__(self) -> str:
        """Return the table that the command line shows."""
        text = io.StringIO()
        print_summary(self._merged, self.output_dir, Console(file=text, width=160, color_system=None))
        return text.getvalue().rstrip()


def load_results(directory: "str | PathLike[str]") -> Results:
    """Return the results of a run, from the files of its directory.

    Args:
        directory: The directory that holds ``run.json``; the run may still be under way.

    Raises:
        ConfigError: If it is no directory of a run.
        StorageError: If a file cannot be read.
    """
    path = given_path(directory).absolute()
    return Results(read(path), path)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The better policy, and the certainty of that.

    Attributes:
        report: The full comparison.
    """

    report: ComparisonReport

    @property
    def verdict(self) -> Verdict:
        """``better``, ``no worse``, ``worse`` or ``undecided``, over all tasks."""
        return self.report.verdict

    @property
    def tasks(self) -> tuple[JobComparison, ...]:
        """The pairs of jobs that were compared, each with counts, rates, difference, interval and p-values."""
        return self.report.tasks

    def save(self, output_dir: "str | PathLike[str]") -> tuple[Path, ...]:
        """Write ``comparison.json``, ``.csv``, ``.md`` and ``.tex`` and return their paths; earlier ones are replaced.

        Args:
            output_dir: A directory; it is made if need be.

        Raises:
            StorageError: If a file cannot be written.
        """
        return write_comparison(given_path(output_dir), self.report)

    def __str__(self) -> str:
        """Return the tables and sentences in Markdown."""
        return markdown(self.report)


def compare(
    *runs: "Results | str | PathLike[str]",
    baseline: str | None = None,
    names: Mapping[str, str] | None = None,
    margin: float | None = None,
    alpha: float = 0.05,
    partial: bool = False,
) -> Comparison:
    """Compare a policy with another, over the episodes that started from the same conditions.

    Args:
        runs: Results, or directories of runs: the baseline's and the candidate's; or one, with ``baseline``.
        baseline: The job of the one run with which its other jobs are compared; ``best`` for the best by half of the
            episodes, which is then scored and compared over the other half.
        names: Jobs of the baseline to jobs of the candidate that have other names; then these alone are compared.
        margin: Ask whether the candidate is at most this much worse, 0.05 for 5 points, and not whether it is better.
        alpha: How often a difference may be found where there is none.
        partial: Compare jobs that are not finished too, over the episodes before the first that is missing.

    Raises:
        ConfigError: If arguments contradict each other, are out of range, or a run or a job does not exist.
        ArenaError: If nothing can be compared, or a file cannot be read.
    """
    check_shares(alpha=alpha, margin=margin)
    directories = [run.output_dir if isinstance(run, Results) else given_path(run) for run in runs]
    question = Question(alpha=alpha, margin=margin)
    return Comparison(
        report=compare_directories(directories, question, baseline=baseline, names=names, partial=partial)
    )
