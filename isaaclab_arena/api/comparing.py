"""Compare the policies of two runs, or of one, from Python: the same result as the command's."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from isaaclab_arena.analysis.comparison import JobComparison, Question, Verdict
from isaaclab_arena.analysis.comparison_files import markdown, write_comparison
from isaaclab_arena.analysis.report import ComparisonReport, compare_directories
from isaaclab_arena.api.results import Results
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import given_path


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which policy is better, and how surely.

    Attributes:
        report: Everything that is known.
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
    """Say whether a policy is better than another, over the episodes that started from the same conditions.

    Args:
        runs: Results, or directories of runs: the baseline's and the candidate's; or one, with ``baseline``.
        baseline: The job of the one run by which its other jobs are judged; ``best`` for the best by half of the
            episodes, which is then scored and compared over the other half.
        names: Jobs of the baseline to jobs of the candidate that have other names; then these alone are compared.
        margin: Ask whether the candidate is at most this much worse, 0.05 for 5 points, and not whether it is better.
        alpha: How often a difference may be found where there is none.
        partial: Compare jobs that are not finished too, over the episodes before the first that is missing.

    Raises:
        ConfigError: If what is asked for contradicts itself, is out of range, or a run or a job does not exist.
        ArenaError: If nothing can be compared, or a file cannot be read.
    """
    for key, value in (("alpha", alpha), ("margin", margin)):
        if value is not None and not 0.0 < value < 1.0:
            raise ConfigError(Problem(f"must be between 0 and 1, got {value:g}", key=key))
    directories = [run.output_dir if isinstance(run, Results) else given_path(run) for run in runs]
    question = Question(alpha=alpha, margin=margin)
    return Comparison(
        report=compare_directories(directories, question, baseline=baseline, names=names, partial=partial)
    )
