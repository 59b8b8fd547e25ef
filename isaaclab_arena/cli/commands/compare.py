"""``isaaclab-arena compare``: say whether the policy of one run or job is better than that of another."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.text import Text

from isaaclab_arena.analysis import comparison_files
from isaaclab_arena.analysis.comparison import NotComparableError, Verdict, compare_directories
from isaaclab_arena.cli.commands.asking import NOT_COMPARABLE, kept, question_of
from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.console import drawn


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare two runs, or jobs of one run, over the episodes that started from the same conditions.

    The exit code is 0 if the candidate is better, or with --margin no worse; 1 if it is worse, 2 for a mistake in the
    request, 3 if nothing can be compared, or some job cannot and none is worse, 4 if it is undecided.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run of the baseline and that of the candidate, or one run with --baseline."""
    baseline: str | None = None
    """Job of the one run to compare its other jobs with; "best" for the best by half of the episodes."""
    map: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """OLD=NEW: compare the baseline's job OLD with the candidate's job NEW; may be given several times."""
    margin: float | None = None
    """Ask if the candidate is at most this much worse (0.05 for 5 points), instead of if it is better."""
    alpha: float = 0.05
    """Probability of finding a difference if there is none."""
    partial: bool = False
    """Also compare unfinished jobs, over the episodes before the first missing one."""
    output_dir: Path | None = None
    """Directory for comparison.json, .csv, .md and .tex; by default the candidate's run."""
    github_summary: bool = False
    """Also append the tables to the summary of a GitHub workflow."""
    json: bool = False
    """Print comparison.json instead of tables."""


def main(argv: Sequence[str]) -> int:
    """Compare, write the files and show the tables; ConfigError, or StorageError for a file."""
    options = tyro.cli(CompareOptions, args=argv, prog="isaaclab-arena compare", use_underscores=True)
    question = question_of(alpha=options.alpha, margin=options.margin)
    names = {}
    for text in options.map:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise ConfigError(f"give OLD=NEW, two names of jobs, got '{text}'", key="--map")
        names[old] = new
    try:
        report = compare_directories(
            options.runs, question, baseline=options.baseline, names=names, partial=options.partial
        )
    except NotComparableError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return NOT_COMPARABLE

    directory = options.output_dir or options.runs[-1]
    way_out = None if options.output_dir else "name a directory with --output_dir"
    written = kept(lambda: comparison_files.write_comparison(directory, report)[0], way_out=way_out)
    if options.github_summary:
        text, path = comparison_files.markdown(report), os.environ.get("GITHUB_STEP_SUMMARY")
        if not path:
            raise ConfigError("needs GITHUB_STEP_SUMMARY, which GitHub sets", key="--github_summary")
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    if options.json:
        print_json(comparison_files.document(report))
    else:
        # The tables, their limits, and the place of the files.
        console = results_console()
        for table in (
            comparison_files.rates_table(report),
            comparison_files.measures_table(report),
            comparison_files.events_table(report),
        ):
            if len(table):
                console.print(drawn(table))
        limits = f", over what could be compared; {len(report.refused)} could not" if report.refused else ""
        for sentence in comparison_files.sentences(report):
            console.print(Text(plain_text(sentence)))
        console.print(Text(f"verdict: {report.verdict}{limits}", style="bold"))
        if written is not None:
            console.print(Text(f"written to {written}"))

    # A candidate does not pass if a job that may be worse was left out.
    if report.refused and report.verdict is not Verdict.WORSE:
        return NOT_COMPARABLE
    return {Verdict.BETTER: 0, Verdict.NO_WORSE: 0, Verdict.WORSE: 1, Verdict.UNDECIDED: 4}[report.verdict]
