"""The page of the results names every column of the tables."""

import re
from pathlib import Path

from isaaclab_arena.results.columns import (
    BENCHMARK_COLUMNS,
    EPISODE_COLUMNS,
    EPISODE_TIMING_COLUMNS,
    JOB_COLUMNS,
    JOB_TIMING_COLUMNS,
    SUITE_COLUMNS,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.md"


def documented(heading: str) -> list[str]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_column_is_documented_in_its_order_and_no_other():
    assert documented("Jobs") == list(JOB_COLUMNS)
    assert documented("Suites") == [*SUITE_COLUMNS, *BENCHMARK_COLUMNS]
    assert documented("Episodes") == list(EPISODE_COLUMNS)
    assert documented("Timing") == ["name", *JOB_TIMING_COLUMNS, "job", "episode_index", *EPISODE_TIMING_COLUMNS]
