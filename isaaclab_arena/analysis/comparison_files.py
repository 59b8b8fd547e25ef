"""A comparison as files: JSON with every figure, CSV, Markdown and LaTeX with the tables."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.analysis.comparison import JobComparison
from isaaclab_arena.analysis.comparison_table import (
    TextTable,
    discordant_episodes,
    events_table,
    films_of_pair,
    measures,
    measures_table,
    rates_table,
    sentences,
)
from isaaclab_arena.analysis.report import ComparisonReport, Together
from isaaclab_arena.results.result_files import harmless_text
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text

SCHEMA_VERSION = 1
NAME = "comparison"
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def write_comparison(directory: Path, report: ComparisonReport) -> tuple[Path, ...]:
    """Write ``comparison.json``, ``.csv``, ``.md`` and ``.tex`` over earlier ones.

    Args:
        directory: Where to; it is made if need be.
        report: What the comparison says.

    Returns:
        The files.

    Raises:
        StorageError: If one cannot be written.
    """
    texts = {
        "json": json_text(document(report)),
        "csv": _csv(report),
        "md": markdown(report),
        "tex": latex_table(rates_table(report)),
    }
    paths = []
    for ending, text in texts.items():
        paths.append(directory / f"{NAME}.{ending}")
        write_text(paths[-1], text, overwrite=True)
    return tuple(paths)


def document(report: ComparisonReport) -> dict[str, Any]:
    """Return everything that a comparison says, as JSON holds it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "question": report.question,
        "verdict": report.verdict,
        "family": report.family,
        "choice": report.choice,
        "tasks": [_task(each) for each in report.tasks],
        "together": None if report.together is None else _together(report.together),
        "refused": report.refused,
        "notes": report.notes,
    }


def markdown(report: ComparisonReport) -> str:
    """Return the tables and sentences in Markdown, as ``--github-summary`` wants them too."""
    parts = [f"**{report.verdict}**", markdown_table(rates_table(report))]
    parts += [markdown_table(table) for table in (measures_table(report), events_table(report)) if table.rows]
    parts.append("\n".join(f"- {sentence.strip()}" for sentence in sentences(report)))
    return "\n\n".join(parts) + "\n"


def _task(each: JobComparison) -> dict[str, Any]:
    plain = ("counts", "num_errors", "rates", "intervals", "difference", "interval", "bounds", "mid_p", "exact_p",
             "adjusted_p", "verdict", "detectable", "pairs_needed")  # fmt: skip
    discordant = discordant_episodes(each)
    videos = {
        index: [str(path) for path in films_of_pair(each, index)] for both in discordant.values() for index in both
    }
    return {
        "candidate": _arm(each.first),
        "baseline": _arm(each.second),
        **{name: getattr(each, name) for name in plain},
        **_repeats(each),
        "measures": measures(each),
        **({"events": each.events} if each.events else {}),
        "discordant_episodes": discordant,
        "videos": {str(index): paths for index, paths in videos.items() if paths},
        "unequal_conditions": each.matched.unequal,
        "without_counterpart": {"candidate": each.matched.only_first, "baseline": each.matched.only_second},
    }


def _together(together: Together) -> dict[str, Any]:
    return {name: value for name, value in vars(together).items() if name != "distinct"} | _repeats(together)


def _repeats(each: JobComparison | Together) -> dict[str, int]:
    """Return how many different conditions pairs started from, where some started from the same."""
    return {"distinct_conditions": each.distinct} if each.distinct < each.counts.total else {}


def _arm(arm: Arm) -> Mapping[str, Any]:
    contents = arm.contents
    return {
        "run": str(arm.directory),
        "job": arm.entry.name,
        "policy": arm.entry.config.policy_type,
        "checkpoint": None if contents is None else contents.checkpoint,
        "policy_sha256": None if contents is None else contents.policy_sha256,
        "episodes": len(arm.episodes),
    }


def _csv(report: ComparisonReport) -> str:
    table = pd.DataFrame([_numbers(each) for each in report.tasks])
    if any(map(_repeats, report.tasks)):
        table["distinct_conditions"] = [each.distinct for each in report.tasks]
    return table.to_csv(index=False, lineterminator="\n")


def _numbers(each: JobComparison) -> dict[str, Any]:
    """Return the figures of a task for a program or a spreadsheet: rates as 0 to 1."""
    sides = {"candidate": each.first, "baseline": each.second}
    named = {f"{side}_run": harmless_text(str(arm.directory)) for side, arm in sides.items()}
    named |= {f"{side}_job": harmless_text(arm.entry.name) for side, arm in sides.items()}
    rates = {
        "pairs": each.counts.total,
        **vars(each.counts),
        "pairs_with_error": each.num_errors,
        "candidate_rate": each.rates[0],
        "baseline_rate": each.rates[1],
        "difference": each.difference,
        "difference_low": each.interval.low,
        "difference_high": each.interval.high,
        "mid_p": each.mid_p,
        "exact_p": each.exact_p,
        "adjusted_p": each.adjusted_p,
        "verdict": str(each.verdict),
    }
    means: dict[str, Any] = {}
    for name, measure in measures(each).items():
        column = name.replace(" ", "_")
        means[f"{column}_difference"] = measure.mean
        means[f"{column}_low"] = None if measure.interval is None else measure.interval.low
        means[f"{column}_high"] = None if measure.interval is None else measure.interval.high
    return named | rates | means


def markdown_table(table: TextTable) -> str:
    """Return a table as Markdown has it."""
    lines = [table.headings, tuple("---" if at == 0 else "--:" for at in range(len(table.headings))), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex_table(table: TextTable) -> str:
    """Return a table as LaTeX has it, every character of its cells as it is."""
    return "\n".join(_latex_lines(table)) + "\n"


def _latex_lines(table: TextTable) -> Iterator[str]:
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}"
    yield r"\hline"
    for position, line in enumerate((table.headings, *table.rows)):
        cells = ("".join(_LATEX.get(character, character) for character in cell) for cell in line)
        yield " & ".join(cells) + r" \\"
        if position == 0:
            yield r"\hline"
    yield r"\hline"
    yield r"\end{tabular}"
