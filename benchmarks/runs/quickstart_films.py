"""Measure the time of the quickstart with the films of all its episodes, and without.

Starts ``eval_runner`` with both in turn. With ``--before`` a checkout of an earlier program makes the same films too,
for example the one that drew a whole frame of every control step in the loop::

    git worktree add /tmp/before c0b93afe
    python -m benchmarks.runs.quickstart_films --before /tmp/before
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, ratios, run, spread, values
from benchmarks.harness.runs import RUNNER, watched

FILMED = "films of all"


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    repeats: int = 3  # Runs of each kind.
    before: Path | None = None  # A checkout of an earlier program, which films in turn with this one.


@dataclass(frozen=True, kw_only=True)
class Filmed(Timing):
    """The duration and the films of a run."""

    num_films: int  # Films that it made.


def run_once(program: Path, more_options: Sequence[str]) -> Filmed:
    """Run the quickstart with the program of a checkout."""
    with tempfile.TemporaryDirectory(prefix="quickstart_films_") as name:
        output = Path(name) / "out"
        runner = (sys.executable, "-P", "-m", RUNNER)
        jobs = ("--eval_jobs_config", str(ROOT / "jobs" / "quickstart.json"), "--output_dir", str(output))
        variables = {"PYTHONPATH": str(program)}
        took = watched((*runner, *jobs, *more_options), Path(name) / "log.txt", variables, interval_s=0.2)
        num_films = len(list(output.rglob("*.mp4")))
    return Filmed(wall_s=took.wall_s, cpu_s=took.cpu_s, num_films=num_films)


def main(options: Options) -> None:
    """Run the quickstart in every way, and write the page."""
    page = Page("quickstart_films", "The quickstart with all of its films", options, "torch", "warp-lang")
    films = ("--record_viewport_video",)
    calls = {"none": partial(run_once, ROOT, ()), FILMED: partial(run_once, ROOT, films)}
    if options.before is not None:
        calls[f"{FILMED}, by the program before"] = partial(run_once, options.before.resolve(), films)
    runs = in_turn(calls, options.repeats, warm_up=1)
    table = Table("films", "number", "wall s", "CPU s", f"wall s / those of {FILMED}", "CPU s / those")
    for name, found in runs.items():
        over = (spread(ratios(found, runs[FILMED], unit)) for unit in ("wall_s", "cpu_s"))
        seconds = (spread(values(found, unit)) for unit in ("wall_s", "cpu_s"))
        table.add(name, found[0].num_films, *seconds, *over)
    text = f"""\
`jobs/quickstart.json` with `--record_viewport_video`, whole programs. Medians of {options.repeats} runs with the
smallest and the largest; ratios are of runs that are neighbours in time."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
