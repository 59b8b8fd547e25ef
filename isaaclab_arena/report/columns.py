"""Columns of episodes in few bytes, for the script of a page: numbers on a decimal grid, and texts by number."""

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

_LARGEST = {2: 2**16 - 1, 4: 2**32 - 1}
"""By bytes of a number, the value that says "none"."""

_MOST_DECIMALS = 6


def packed_numbers(values: np.ndarray) -> dict[str, Any] | None:
    """Return numbers as the script reads them: whole steps of 10^-decimals above the lowest one.

    As many decimals are kept as two bytes a number hold, at most six. Numbers that need no decimals keep all digits.

    Args:
        values: Shape: (num_episodes,), float; NaN for none.

    Returns:
        ``decimals``, ``lowest`` in steps, ``bytes`` of a number and ``data`` in base64, empty where all are equal;
        None where there is no number at all.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return None
    low, high = float(values[finite].min()), float(values[finite].max())
    decimals = _decimals(high - low) if np.any(values[finite] % 1) else 0
    steps = np.round(np.where(finite, values, low) * 10.0**decimals)
    lowest, highest = float(steps.min()), float(steps.max())
    width = 2 if highest - lowest < _LARGEST[2] else 4
    packed: dict[str, Any] = {"decimals": decimals, "lowest": int(lowest), "bytes": width, "data": ""}
    if highest > lowest or not finite.all():
        above = np.where(finite, np.minimum(steps - lowest, _LARGEST[width] - 1), _LARGEST[width])
        packed["data"] = _base64(above.astype(f"<u{width}"))
    return packed


def unpacked_numbers(packed: dict[str, Any] | None, count: int) -> np.ndarray:
    """Return what `packed_numbers` was given, to its number of decimals. Shape: (count,), float; NaN for none."""
    if packed is None:
        return np.full(count, np.nan)
    width, scale = packed["bytes"], 10.0 ** packed["decimals"]
    if not packed["data"]:
        return np.full(count, packed["lowest"] / scale)
    above = np.frombuffer(base64.b64decode(packed["data"]), f"<u{width}").astype(float)
    return np.where(above == _LARGEST[width], np.nan, (above + packed["lowest"]) / scale)


def packed_texts(values: Iterable[Any]) -> dict[str, Any] | None:
    """Return texts as the script reads them: every text once, and its number for each episode, 0 for none.

    Returns:
        ``texts``, ``bytes`` of a number and ``data`` in base64, empty where all are equal; None where there is none.
    """
    codes, texts = pd.factorize(pd.array([*values], dtype="string"))
    if not len(texts):
        return None
    width = 1 if len(texts) < 255 else 4
    packed: dict[str, Any] = {"texts": [str(text) for text in texts], "bytes": width, "data": ""}
    if len(texts) > 1 or (codes < 0).any():
        packed["data"] = _base64((codes + 1).astype(f"<u{width}"))
    return packed


def _decimals(spread: float) -> int:
    fitting = (decimals for decimals in range(_MOST_DECIMALS, 0, -1) if spread * 10.0**decimals < _LARGEST[2] - 1)
    return next(fitting, 0)


def _base64(numbers: np.ndarray) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")
