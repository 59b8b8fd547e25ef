"""``isaaclab-arena leaderboard``: order runs by success, and say which of them cannot be told apart."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import tyro
from rich.text import Text

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import NotComparableError
from isaaclab_arena.analysis.comparison_files import Leaderboard, leaderboard
from isaaclab_arena.cli.commands.asking import NOT_COMPARABLE, question_of
from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.console import drawn


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    """Order runs by their success over the jobs that all of them have; of one run, its suites or its jobs.

    The exit code is 3 if they cannot be compared.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs, each of one policy; or one run with a suite or a job for each policy."""
    alpha: float = 0.05
    """Probability of telling apart any two equal policies, over all pairs together."""
    json: bool = False
    """Print JSON instead of a table."""


def main(argv: Sequence[str]) -> int:
    """Show the leaderboard; ConfigError if a directory is no output of a run, or the level is out of range."""
    options = tyro.cli(LeaderboardOptions, args=argv, prog="isaaclab-arena leaderboard", use_underscores=True)
    question = question_of(alpha=options.alpha)
    try:
        found = leaderboard([read_run(path) for path in dict.fromkeys(options.runs)], question)
    except NotComparableError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return NOT_COMPARABLE

    repeating = [place for place in found.places if place.distinct < place.episodes]
    if options.json:
        # Numbers of different conditions are for leaderboards in which some repeat.
        places = [vars(place) | {"distinct_conditions": place.distinct} for place in found.places]
        left_out = {"distinct"} if repeating else {"distinct", "distinct_conditions"}
        shown = [{name: value for name, value in place.items() if name not in left_out} for place in places]
        print_json(vars(found) | {"places": shown})
        return 0
    console = results_console()
    console.print(drawn(leaderboard_table(found)))
    test = "McNemar's mid-p over all pairs of episodes, adjusted by Holm's method"
    console.print(Text(f"not told apart: {test} for {found.num_comparisons} comparisons, above {options.alpha:g}"))
    for place in repeating:
        told = f"{place.episodes} episodes have {place.distinct} different conditions and count as a sample of these"
        console.print(Text(plain_text(f"{place.name}: {told}")))
    if found.winner is not None:
        console.print(Text(plain_text(found.winner.sentence)))
    return 0


def leaderboard_table(found: Leaderboard) -> pd.DataFrame:
    """Return one line per policy, the best first, as text."""
    # Numbers stand for names in the last column, which would be too wide with names.
    numbers = {place.name: str(number) for number, place in enumerate(found.places, start=1)}
    rows = [
        (
            plain_text(place.name),
            numbers[place.name],
            str(place.rank),
            f"{100 * place.mean_rate:.1f} [{100 * place.mean_interval.low:.1f}, {100 * place.mean_interval.high:.1f}]",
            f"{place.successes}/{place.episodes}",
            f"{100 * place.interval.low:.1f} to {100 * place.interval.high:.1f}",
            ", ".join(sorted((numbers[name] for name in place.like), key=int)) or "-",
        )
        for place in found.places
    ]
    means, alike = "mean of tasks % [95 %]", "not told apart from no."
    return pd.DataFrame(rows, columns=["policy", "no.", "rank", means, "successes", "95 % of all", alike])
