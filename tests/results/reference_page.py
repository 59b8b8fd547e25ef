"""The tables of columns in the reference, written from the columns: ``python -m tests.results.reference_page``."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isaaclab_arena.results.columns import EPISODES, JOBS, METRICS, SUITES, Column

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.md"
SWEPT = (
    "| `sweep.<key>` | the job's value of each key that the job file [sweeps](jobs.md#sweeps), in its order; the "
    "terminal shows those whose values differ |"
)
NAME = "| `name` | the job, in `timing` |"
EPISODE = "| `job`, `episode_index` | the episode, in `episode_timing` |"


def lines(columns: Iterable[Column[Any]]) -> list[str]:
    """Return one line per meaning, with all the columns that share it."""
    said: list[tuple[list[str], str]] = []
    for column in columns:
        if column.doc:
            said.append(([], column.doc))
        said[-1][0].append(f"`{column.name}`")
    return [f"| {', '.join(names)} | {doc} |" for names, doc in said]


def split(columns: Iterable[Column[Any]], *, timing: bool = False) -> tuple[list[str], list[str]]:
    """Return the lines of the columns that every run has, and of those that only some have."""
    own = [each for each in columns if (each.file == "timing") == timing]
    return lines(each for each in own if each.when is None), lines(each for each in own if each.when is not None)


def tables() -> dict[str, list[str]]:
    """Map each table of the page to its lines."""
    (jobs, of_jobs), (suites, of_suites), (metrics, of_metrics) = map(split, (JOBS, SUITES, METRICS))
    episodes, of_episodes = split(EPISODES)
    (times, of_times), (places, _) = split(JOBS, timing=True), split(EPISODES, timing=True)
    return {
        "jobs": [*jobs, SWEPT],
        "jobs of some runs": of_jobs,
        "suites": [*suites, *of_suites],
        "metrics": [*metrics, *of_metrics],
        "episodes": [*episodes, *of_episodes],
        "timing": [NAME, *times, EPISODE, *places],
        "timing of some runs": of_times,
    }


def written(page: str) -> str:
    """Return the page with its tables as the columns are now."""
    for name, rows in tables().items():
        begin, end = f"<!-- columns: {name} -->", "<!-- end -->"
        assert page.count(begin) == 1, name
        table = "\n".join([begin, "| column | meaning |", "| --- | --- |", *rows, end])
        page = re.sub(f"{re.escape(begin)}.*?{end}", lambda _, table=table: table, page, count=1, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
