"""Read, merge and write the results of ``make gpu-check`` on one machine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import ROW_KEYS
from isaaclab_arena.storage.atomic import write_text

_MACHINE = ("gpu", "cpu", "versions")


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with later ones added: what is there again is replaced, in its place.

    Results of another machine, or of other versions, do not belong beside these and are dropped.

    Args:
        before: The machine, ``checks``, and the rows of each part; empty for none.
        after: The same, with whatever is new.
    """
    if any(before.get(name) != after[name] for name in _MACHINE):
        before = {}
    result = {name: after[name] for name in _MACHINE}
    for part, fields in {"checks": ("name",), **ROW_KEYS}.items():
        rows = _merged_rows(before.get(part, ()), after.get(part, ()), fields)
        result[part] = rows if part == "checks" else sorted(rows, key=lambda row: _order(row, fields))
    return result


def _merged_rows(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> list[Mapping[str, Any]]:
    rows = {tuple(row[name] for name in fields): row for row in before}
    rows |= {tuple(row[name] for name in fields): row for row in after}
    return list(rows.values())


def _order(row: Mapping[str, Any], fields: Sequence[str]) -> tuple[Any, ...]:
    """Return where a row stands: by what it is of, with the number of worlds last."""
    return (*(row[name] for name in fields if name != "worlds"), row["worlds"])


def read(path: Path) -> dict[str, Any]:
    """Return what a results file holds, nothing where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a results file as a whole or not at all: the machine may be taken away at any moment."""
    write_text(path, json.dumps(result, indent=2) + "\n", overwrite=True)
