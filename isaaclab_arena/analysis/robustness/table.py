"""The costs of changed episodes as a table of text, as CSV, as Markdown and in sentences."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from isaaclab_arena.analysis.comparison_table import TextTable
from isaaclab_arena.analysis.robustness.drops import Drop
from isaaclab_arena.environments.variations.axes import ALL_AXES, AXES, BENIGN
from isaaclab_arena.results.result_files import harmless_text
from isaaclab_arena.results.statistics import Interval

_ALPHA = 0.05


def drops_table(found: Sequence[Drop]) -> TextTable:
    """Return one line per job, axis and level."""
    headings = ("job", "axis", "level", "LIBERO-plus", "episodes", "success % [95 %]", "pairs", "only benign",
                "only changed", "drop [95 %]", "mid-p", "Holm")  # fmt: skip
    return TextTable(headings=headings, rows=tuple(_row(each) for each in found))


def csv_of(found: Sequence[Drop]) -> str:
    """Return every figure for a program or a spreadsheet: rates and drops as 0 to 1."""
    table = pd.DataFrame([_figures(each) for each in found])
    if any(each.distinct < each.episodes for each in found):
        table["distinct_conditions"] = [each.distinct for each in found]
    return table.to_csv(index=False, lineterminator="\n")


def sentences(found: Sequence[Drop]) -> Iterator[str]:
    """Yield what the table says, job by job, and what it cannot say."""
    for job in dict.fromkeys(each.job for each in found):
        own = [each for each in found if each.job == job]
        last = max((each.level for each in own), default=0)
        edge = [each for each in own if each.level == last and each.axis not in (BENIGN, ALL_AXES)]
        hurt = sorted(
            (each for each in edge if each.holm_p is not None and each.holm_p <= _ALPHA and (each.drop or 0.0) > 0),
            key=lambda each: -(each.drop or 0.0),
        )
        if edge:
            told = ", ".join(f"{each.axis} ({100 * (each.drop or 0.0):.0f} points)" for each in hurt)
            yield f"{job}: at level {last} success drops along {told or 'no axis'} {_tested(own, last)}"
        blind = [each.axis for each in edge if each.axis in AXES and AXES[each.axis].pictures_only]
        if blind:
            yield f"{job}: only pictures change along {', '.join(blind)}"
        left_out = sum(each.left_out for each in own)
        if left_out:
            yield f"{job}: {left_out} episodes have no pair and count in their own rate alone"
        for each in own:
            if each.distinct < each.episodes:
                yield f"{job}: {each.axis} {each.level}: {each.episodes} episodes, {each.distinct} different conditions"
        if not any(each.axis == BENIGN for each in own):
            yield f"{job}: the run has no benign arm, so nothing can be compared"


def _tested(own: Sequence[Drop], level: int) -> str:
    """Return how it was tested, where all axes together are a test too."""
    tests = sum(each.level == level and each.holm_p is not None for each in own)
    return f"(5 % after Holm's correction for {tests} tests)"


def _row(each: Drop) -> tuple[str, ...]:
    counts = each.counts
    return (
        each.job,
        each.axis,
        str(each.level),
        each.libero_plus or "-",
        str(each.episodes),
        _percent(each.rate, each.interval),
        "-" if counts is None else str(counts.total),
        "-" if counts is None else str(counts.only_first),
        "-" if counts is None else str(counts.only_second),
        _percent(each.drop, each.drop_interval, sign="+"),
        "-" if each.mid_p is None else f"{each.mid_p:.3g}",
        "-" if each.holm_p is None else f"{each.holm_p:.3g}",
    )


def _percent(value: float | None, interval: Interval | None, *, sign: str = "") -> str:
    if value is None or interval is None:
        return "-"
    return f"{100 * value:{sign}.1f} [{100 * interval.low:{sign}.1f}, {100 * interval.high:{sign}.1f}]"


def _figures(each: Drop) -> dict[str, Any]:
    counts, interval, drop = each.counts, each.interval, each.drop_interval
    return {
        "job": harmless_text(each.job),
        "axis": each.axis,
        "level": each.level,
        "libero_plus": each.libero_plus,
        "episodes": each.episodes,
        "successes": each.successes,
        "success_rate": each.rate,
        "success_low": None if interval is None else interval.low,
        "success_high": None if interval is None else interval.high,
        "pairs": None if counts is None else counts.total,
        "both": None if counts is None else counts.both,
        "only_benign": None if counts is None else counts.only_first,
        "only_changed": None if counts is None else counts.only_second,
        "neither": None if counts is None else counts.neither,
        "drop": each.drop,
        "drop_low": None if drop is None else drop.low,
        "drop_high": None if drop is None else drop.high,
        "mid_p": each.mid_p,
        "holm_p": each.holm_p,
        "left_out": each.left_out,
    }
