"""The merged results as a table for a terminal."""

from collections.abc import Sequence
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isaaclab_arena.logs import plain_text as plain
from isaaclab_arena.results.merge import MergedResults, records

MAX_JOBS_SHOWN = 200
"""Nobody reads more lines than that, and laying them out would take longer than all the other tables."""

_DEFAULT_WIDTH = 140
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("job", "left"),
    ("environment", "left"),
    ("policy", "left"),
    ("episodes", "right"),
    ("success % [95 %]", "right"),
    ("length", "right"),
    ("return", "right"),
    ("errors", "right"),
    ("missing", "right"),
    ("steps/s", "right"),
    ("rank", "right"),
    ("status", "left"),
)
_NUM_NAME_COLUMNS = 3
_LEAVE_OUT_FIRST = ("return", "rank", "environment", "steps/s", "length", "policy")
_STATUS_STYLES = {"completed": "green", "failed": "bold red", "interrupted": "yellow", "missing": "bold red"}


def console_table(merged: MergedResults, width: int = _DEFAULT_WIDTH) -> Table:
    """Return one line for each of the first jobs: what ran, its success with the 95 % interval, and what went wrong.

    Args:
        merged: The results.
        width: Columns of the terminal. Where a line would not fit, what matters least is left out.
    """
    rows = [_cells(row) for row in records(merged.jobs.head(MAX_JOBS_SHOWN))]
    shown = fitting_columns([[cell.cell_len for cell in row] for row in rows], width)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for index in shown:
        heading, justify = _COLUMNS[index]
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=index >= _NUM_NAME_COLUMNS)
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table


def fitting_columns(cell_widths: Sequence[Sequence[int]], width: int) -> list[int]:
    """Return which columns to show, so that a line fits if that can be.

    Args:
        cell_widths: For each row the width of each column's cell.
        width: Columns of the terminal.
    """
    headings = [len(heading) for heading, _ in _COLUMNS]
    widths = [max(column) for column in zip(headings, *cell_widths, strict=True)]
    shown = list(range(len(_COLUMNS)))
    names = [heading for heading, _ in _COLUMNS]
    for heading in _LEAVE_OUT_FIRST:
        if sum(widths[index] + 1 for index in shown) - 1 <= width:
            break
        shown.remove(names.index(heading))
    return shown


def _cells(row: dict[str, Any]) -> list[Text]:
    policy = str(row["policy"]).replace(":", ".").rpartition(".")[2]
    planned = row["planned"]
    of_planned = f"/{planned}" if planned is not None and planned != row["episodes"] else ""
    return [
        Text(plain(row["name"]), style="bold"),
        Text(plain(row["environment"])),
        Text(plain(policy)),
        Text(f"{row['episodes']}{of_planned}"),
        Text(_rate(row)),
        Text(_number(row["mean_length"], ".1f")),
        Text(_number(row["mean_return"], ".2f")),
        _count(row["errors"]),
        _count(row["missing"]),
        Text(_compact(row["env_steps_per_s"])),
        Text(row["rank"] or "-"),
        Text(str(row["status"]), style=_STATUS_STYLES.get(str(row["status"]), "dim")),
    ]


def _rate(row: dict[str, Any]) -> str:
    if row["success_rate"] is None:
        return "-"
    rate, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
    return f"{rate:.1f} [{low:.1f}, {high:.1f}]{'*' if is_partial(row) else ''}"


def is_partial(row: dict[str, Any]) -> bool:
    """Whether a job has a rate that leaves out episodes which started or were planned."""
    return row["success_rate"] is not None and bool(row["errors"] or row["missing"] or row["cut"])


def _number(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


def _compact(value: float | None) -> str:
    """Return a rate in at most five characters: ``950``, ``41.2k``, ``1.3M``."""
    if value is None or value < 9_999.5:
        return _number(value, ".0f")
    return f"{value / 1e3:.1f}k" if value < 999_950 else f"{value / 1e6:.1f}M"


def _count(value: int | None) -> Text:
    """Return how many; red if any, or if nobody knows."""
    if value is None:
        return Text("?", style="bold red")
    return Text(str(value), style="bold red" if value else "")
