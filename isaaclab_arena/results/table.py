"""The merged results as a table for a terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isaaclab_arena.errors import shortened
from isaaclab_arena.logs import plain_text as plain
from isaaclab_arena.results.merge import MergedResults, records
from isaaclab_arena.storage.run.job_standing import JobResultStatus

MAX_JOBS_SHOWN = 200
"""Nobody reads more lines than that, and laying them out would take longer than all the other tables."""

SPREAD = "±sd"
"""What stands beside a mean: the standard deviation over episodes."""

_DEFAULT_WIDTH = 160
_LENGTH, _RETURN, _SUCCESS = f"length {SPREAD}", f"return {SPREAD}", "success % [95 %]"
_ASKED, _TOOK = "queries/s", "measured ms"
_LEAVE_OUT_FIRST = ("rank", "steps/s", _ASKED, _TOOK, "stale %", _RETURN, "environment", _LENGTH)
_MOST_SHOWN = 60
_SHOWN_ANYWAY = frozenset({"policy_type", "arena_env_args.environment"})
_STATUS_STYLES = {
    JobResultStatus.COMPLETED: "green",
    JobResultStatus.FAILED: "bold red",
    JobResultStatus.INTERRUPTED: "yellow",
    JobResultStatus.MISSING: "bold red",
    JobResultStatus.SKIPPED: "dim",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        heading: What it holds.
        cells: One per job.
        is_name: Whether cells are names, which may be folded; numbers may not.
        leave_out: How early it goes where a line does not fit: the lowest first; None for never.
    """

    heading: str
    cells: tuple[Text, ...]
    is_name: bool = False
    leave_out: int | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return max(len(self.heading), *(cell.cell_len for cell in self.cells), 0)

    @property
    def justify(self) -> Literal["left", "right"]:
        """Names begin at the left."""
        return "left" if self.is_name or self.heading == "status" else "right"


def console_table(merged: MergedResults, width: int = _DEFAULT_WIDTH) -> Table:
    """Return one line for each of the first jobs: what ran, its success with the 95 % interval, and what went wrong.

    Beside a mean stands the standard deviation over episodes. What a sweep varied has a column per key.

    Args:
        merged: The results.
        width: Columns of the terminal. Where a line would not fit, what matters least is left out.
    """
    columns = fitting_columns(table_columns(merged), width)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        table.add_column(column.heading, justify=column.justify, overflow="fold", no_wrap=not column.is_name)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def suites_table(merged: MergedResults) -> Table:
    """Return one line per suite: the mean of its tasks, all of its episodes, and what went wrong."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("suite", "of", "tasks", "episodes", "mean of tasks % [95 %]", "all episodes % [95 %]", "errors",
                    "missing", "status"):  # fmt: skip
        is_name = heading in {"suite", "of"}
        justify = "left" if is_name or heading == "status" else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_name)
    for row in records(merged.suites):
        rates = (_percent(*(row[f"{kind}_{part}"] for part in ("rate", "low", "high"))) for kind in ("mean", "pooled"))
        star = "*" if row["mean_rate"] is not None and (row["errors"] or row["missing"] or row["cut"]) else ""
        mean, pooled = (Text(f"{rate}{star}" if rate != "-" else rate) for rate in rates)
        table.add_row(
            Text(plain(row["name"]), style="bold"), Text(plain(row["suite"])), Text(str(row["tasks"])),
            Text(_of_planned(row)), mean, pooled, _count(row["errors"]), _count(row["missing"]), _status(row["status"]),
        )  # fmt: skip
    return table


def table_columns(merged: MergedResults) -> list[Column]:
    """Return every column of the table of jobs, for the first of them."""
    rows = records(merged.jobs.head(MAX_JOBS_SHOWN))
    measured = [row["success_rate"] is not None for row in rows if row["episodes"]]
    order = {heading: position for position, heading in enumerate(_LEAVE_OUT_FIRST)}
    if not all(measured):
        # Where nothing says what succeeded, returns are all there is to compare.
        del order[_RETURN]
    if measured and not any(measured):
        order[_SUCCESS] = -1
    swept = _swept(merged, [row["name"] for row in rows])
    return [
        *(_names(heading, rows, order) for heading in ("job", "environment", "policy")),
        *swept,
        *(
            Column(heading=heading, cells=cells, leave_out=order.get(heading))
            for heading, cells in _numbers(rows).items()
        ),
    ]


def fitting_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns to show, so that a line fits if that can be.

    Args:
        columns: All of them.
        width: Columns of the terminal.
    """
    shown = list(columns)
    for column in sorted(
        (each for each in columns if each.leave_out is not None), key=lambda each: each.leave_out or 0
    ):
        if sum(each.width + 1 for each in shown) - 1 <= width:
            break
        shown.remove(column)
    return shown


def is_partial(row: Mapping[str, Any]) -> bool:
    """Whether a job has a rate that leaves out episodes which started or were planned."""
    return row["success_rate"] is not None and bool(row["errors"] or row["missing"] or row["cut"])


def mean_and_spread(mean: float | None, spread: float | None, pattern: str) -> str:
    """Return a mean with the standard deviation beside it, ``38.1 ±4.2``, where more than one episode gives one."""
    if mean is None:
        return "-"
    return f"{mean:{pattern}}" if spread is None else f"{mean:{pattern}} ±{spread:{pattern}}"


def _names(heading: str, rows: Sequence[Mapping[str, Any]], order: Mapping[str, int]) -> Column:
    texts = {
        "job": [Text(plain(row["name"]), style="bold") for row in rows],
        "environment": [Text(plain(row["environment"])) for row in rows],
        "policy": [Text(plain(str(row["policy"]).replace(":", ".").rpartition(".")[2])) for row in rows],
    }
    last = len(_LEAVE_OUT_FIRST) + 1 if heading == "policy" else None
    return Column(heading=heading, cells=tuple(texts[heading]), is_name=True, leave_out=order.get(heading, last))


def _swept(merged: MergedResults, names: Sequence[str]) -> list[Column]:
    """Return a column per swept key whose values differ and are not in the table anyway."""
    swept = {job.name: job.config.swept for job in merged.plan.jobs}
    keys = [key for key in dict.fromkeys(key for own in swept.values() for key in own) if key not in _SHOWN_ANYWAY]
    leaves = [key.rpartition(".")[2] for key in keys]
    columns = []
    for key, leaf in zip(keys, leaves, strict=True):
        cells = tuple(_value(swept[name], key) for name in names)
        if len({cell.plain for cell in cells}) > 1:
            heading = plain(leaf if leaves.count(leaf) == 1 else key)
            columns.append(Column(heading=heading, cells=cells, leave_out=len(_LEAVE_OUT_FIRST)))
    return columns


def _value(swept: Mapping[str, Any], key: str) -> Text:
    if key not in swept:
        return Text("-")
    value = swept[key]
    return Text(plain(shortened(value if isinstance(value, str) else json.dumps(value), _MOST_SHOWN)))


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Text, ...]]:
    """Return the cells of the columns that the run filled, by heading."""
    return {
        "episodes": tuple(Text(_of_planned(row)) for row in rows),
        _SUCCESS: tuple(Text(_rate(row)) for row in rows),
        _LENGTH: tuple(Text(mean_and_spread(row["mean_length"], row["std_length"], ".1f")) for row in rows),
        _RETURN: tuple(Text(mean_and_spread(row["mean_return"], row["std_return"], ".2f")) for row in rows),
        **_late(rows),
        "errors": tuple(_count(row["errors"]) for row in rows),
        "missing": tuple(_count(row["missing"]) for row in rows),
        "steps/s": tuple(Text(_compact(row["env_steps_per_s"])) for row in rows),
        "rank": tuple(Text(row["rank"] or "-") for row in rows),
        "status": tuple(_status(row["status"]) for row in rows),
    }


def _late(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Text, ...]]:
    """Return the cells of what late answers came to, the median and the 95 % quantile of what was measured among them.

    How late they are stands in the column of the job's sweep, or in its file.
    """
    if not any(row.get("meanwhile") for row in rows):
        return {}
    took = [[row.get(f"measured_latency_p{part}_ms") for part in (50, 95)] for row in rows]
    stale = [row.get("stale_action_share") for row in rows]
    asked = [row.get("queries_per_s") for row in rows]
    return {
        "stale %": tuple(Text("-" if each is None else f"{100 * each:.0f}") for each in stale),
        _ASKED: tuple(Text("-" if each is None else f"{each:.2f}") for each in asked),
        _TOOK: tuple(Text("-" if None in each else "{:.0f}, {:.0f}".format(*each)) for each in took),
    }


def _of_planned(row: Mapping[str, Any]) -> str:
    planned = row["planned"]
    return (
        f"{row['episodes']}/{planned}" if planned is not None and planned != row["episodes"] else f"{row['episodes']}"
    )


def _rate(row: Mapping[str, Any]) -> str:
    rate = _percent(row["success_rate"], row["success_low"], row["success_high"])
    return f"{rate}*" if is_partial(row) else rate


def _percent(rate: float | None, low: float, high: float) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _status(status: str) -> Text:
    return Text(status, style=_STATUS_STYLES[JobResultStatus(status)])


def _compact(value: float | None) -> str:
    """Return a rate in at most five characters: ``950``, ``41.2k``, ``1.3M``."""
    if value is None:
        return "-"
    if value < 9_999.5:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 999_950 else f"{value / 1e6:.1f}M"


def _count(value: int | None) -> Text:
    """Return how many; red if any, or if nobody knows."""
    if value is None:
        return Text("?", style="bold red")
    return Text(str(value), style="bold red" if value else "")
