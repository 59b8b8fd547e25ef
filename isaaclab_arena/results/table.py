"""The merged results as a table for a terminal, 120 columns wide."""

import unicodedata
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isaaclab_arena.results.merge import MergedResults

_STATUS_STYLES = {"completed": "green", "failed": "bold red", "interrupted": "yellow", "missing": "bold red"}


def console_table(merged: MergedResults) -> Table:
    """Return one line per job: what ran, how often it succeeded with its 95 % interval, and what went wrong."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading, min_width, max_width in (("job", 12, 34), ("environment", 8, 18), ("policy", 8, 18)):
        table.add_column(heading, overflow="fold", min_width=min_width, max_width=max_width)
    for heading in ("episodes", "success % [95 %]", "length", "return", "errors", "missing", "steps/s", "rank"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for row in merged.jobs.to_dict(orient="records"):
        known = {str(name): None if value is pd.NA else value for name, value in row.items()}
        table.add_row(*_cells(known))
    return table


def plain(text: object) -> str:
    """Return text without what could steer a terminal or turn its lines around."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in {"Cc", "Cf", "Cs"} else character
        for character in str(text)
    )


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
        Text(_number(row["rank"], "d")),
        Text(str(row["status"]), style=_STATUS_STYLES.get(str(row["status"]), "dim")),
    ]


def _rate(row: dict[str, Any]) -> str:
    if row["success_rate"] is None:
        return "-"
    rate, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
    return f"{rate:.1f} [{low:.1f}, {high:.1f}]"


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
