"""Show the swept keys of a job file as columns of the table of jobs, because a job's name may not tell."""

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.run.run_plan import PlanEntry

PREFIX = "sweep."


def swept_columns(jobs: Sequence[PlanEntry]) -> dict[str, Any]:
    """Return a column for every swept key, ``sweep.seed``: each job's value, empty for a job that does not sweep it.

    Columns are in the order in which the job file names the keys. Whole numbers, numbers and truth values keep their
    type where all values of a key have it; anything else is text, lists and mappings as JSON.
    """
    keys = dict.fromkeys(key for job in jobs for key in job.config.swept)
    return {PREFIX + plain_text(key): _column([job.config.swept.get(key) for job in jobs]) for key in keys}


def _column(values: Sequence[Any]) -> Any:
    given = [value for value in values if value is not None]
    for kind, types in (("boolean", (bool,)), ("Int64", (int,)), ("Float64", (int, float))):
        if given and all(type(value) in types for value in given) and _fits(given):
            return pd.array([*values], dtype=kind)
    return pd.array([None if value is None else _text(value) for value in values], dtype="string")


def _fits(given: Sequence[Any]) -> bool:
    # A seed may have more bits than a column of numbers holds.
    return all(not isinstance(value, int) or abs(value) < 2**53 for value in given)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
