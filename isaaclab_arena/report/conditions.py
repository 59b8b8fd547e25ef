"""What an episode started from as numbers and texts, and how far each of them tells whether it succeeds."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.results.clusters import ScoredEpisodes
from isaaclab_arena.results.statistics import Interval

MEASURE = "mutual information with success, in bits, less its bias (Miller and Madow)"
"""How the conditions that tell most are found, in words."""

_FEWEST_EPISODES = 20
_EPISODES_PER_BIN = 10
_MOST_CONDITION_BINS = 8
_AXES = ("x", "y", "z")


@dataclass(frozen=True, kw_only=True)
class RateBin:
    """The episodes of a range of a condition.

    Attributes:
        label: The range, or the value of a condition that is no number.
        middle: Where it lies on the axis, 0 to 1.
        successes: Scored episodes in it that succeeded.
        scored: Scored episodes in it.
        distinct: How many different conditions these started from.
        rate: Their share.
        interval: Its Wilson interval.
    """

    label: str
    middle: float
    successes: int
    scored: int
    distinct: int
    rate: float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class ConditionRates:
    """Success against one condition.

    Attributes:
        name: The condition.
        bits: See `MEASURE`.
        bins: Ranges of equally many episodes, in order.
    """

    name: str
    bits: float
    bins: tuple[RateBin, ...]


def condition_columns(conditions: Iterable[Any]) -> dict[str, np.ndarray]:
    """Return every condition that is a number or a text as a column; elements of lists have a column each.

    Args:
        conditions: What each episode started from, as JSON objects; what is no text stands for none.

    Returns:
        Name to values. Shape of each: (num_episodes,); float with NaN for none, or object with None for none.
    """
    documents = json.loads("[" + ",".join(text if isinstance(text, str) else "{}" for text in conditions) + "]")
    names = dict.fromkeys(name for document in documents for name in document)
    columns: dict[str, np.ndarray] = {}
    for name in names:
        columns.update(_flat(name, [document.get(name) for document in documents]))
    return columns


def telling_conditions(
    columns: Mapping[str, np.ndarray], success: np.ndarray, started: Sequence[str]
) -> tuple[ConditionRates, ...]:
    """Return success against each condition that varies, the one that tells most first.

    Args:
        columns: Name to values; see `condition_columns`.
        success: 1 and 0, NaN for an episode that is not scored. Shape: (num_episodes,).
        started: What each episode started from, by its `condition_key`.

    Returns:
        The conditions; none for fewer than 20 scored episodes, or where all came out the same.
    """
    scored = np.isfinite(success)
    won, keys = success[scored] > 0, [key for key, counts in zip(started, scored, strict=True) if counts]
    if len(won) < _FEWEST_EPISODES or won.all() or not won.any():
        return ()
    found = (_rates(name, values[scored], won, keys) for name, values in columns.items())
    return tuple(sorted((each for each in found if each is not None), key=lambda each: -each.bits))


def mutual_information_bits(groups: np.ndarray, won: np.ndarray) -> float:
    """Return what the group of an episode tells of its success, in bits, less the bias of finite samples; at least 0.

    Args:
        groups: Number of the group of each episode. Shape: (num_episodes,), int.
        won: Shape: (num_episodes,), bool.
    """
    table = np.zeros((int(groups.max()) + 1, 2))
    np.add.at(table, (groups, won.astype(int)), 1)
    share = table / table.sum()
    independent = share.sum(1, keepdims=True) * share.sum(0, keepdims=True)
    known = share > 0
    bits = float((share[known] * np.log2(share[known] / independent[known])).sum())
    bias = (np.count_nonzero(table.sum(1)) - 1) / (2.0 * table.sum() * np.log(2.0))
    return max(0.0, bits - bias)


def _flat(name: str, values: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    kinds = {*map(type, values)} - {type(None)}
    if kinds == {list} and len(lengths := {len(value) for value in values if value is not None}) == 1:
        (size,) = lengths
        axes = _AXES if size == len(_AXES) else tuple(map(str, range(size)))
        nothing = (None,) * size
        elements = zip(*(nothing if value is None else value for value in values), strict=True)
        for axis, column in zip(axes, elements, strict=True):
            yield from _flat(f"{name}.{axis}", column)
    elif kinds <= {int, float}:
        yield name, np.array(values, float)
    else:
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        yield name, np.array(texts, object)


def _rates(name: str, values: np.ndarray, won: np.ndarray, started: Sequence[str]) -> ConditionRates | None:
    """Return success against one condition, None for one that does not vary."""
    groups, labels, middles = _number_groups(values) if values.dtype == float else _text_groups(values)
    if len(labels) < 2:
        return None
    kept = groups >= 0
    bins = []
    for number, (label, middle) in enumerate(zip(labels, middles, strict=True)):
        members = np.flatnonzero(groups == number)
        inside = ScoredEpisodes(success=won[members].astype(float), conditions=[started[at] for at in members.tolist()])
        interval = inside.wilson()
        if interval is not None:
            bins.append(
                RateBin(
                    label=label,
                    middle=middle,
                    successes=inside.successes,
                    scored=len(inside),
                    distinct=inside.num_distinct,
                    rate=inside.rate or 0.0,
                    interval=interval,
                )
            )
    return ConditionRates(name=name, bits=mutual_information_bits(groups[kept], won[kept]), bins=tuple(bins))


def _number_groups(values: np.ndarray) -> tuple[np.ndarray, list[str], list[float]]:
    """Return the group of each value, -1 for none, and what the groups are called and where they lie."""
    finite = np.isfinite(values)
    distinct = np.unique(values[finite])
    if len(distinct) < 2:
        return np.full(len(values), -1), [], []
    count = int(min(_MOST_CONDITION_BINS, max(2, finite.sum() // _EPISODES_PER_BIN)))
    if len(distinct) <= count:
        groups = np.where(finite, np.searchsorted(distinct, values), -1)
        return groups, [f"{value:.4g}" for value in distinct], _positions(distinct, distinct[0], distinct[-1])
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, count + 1)))
    groups = np.where(finite, np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2), -1)
    labels = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges)]
    return groups, labels, _positions((edges[:-1] + edges[1:]) / 2, edges[0], edges[-1])


def _text_groups(values: np.ndarray) -> tuple[np.ndarray, list[str], list[float]]:
    codes, texts = pd.factorize(pd.array(values, dtype="string"), sort=True)
    if not 2 <= len(texts) <= 2 * _MOST_CONDITION_BINS:
        return np.full(len(values), -1), [], []
    return codes, [str(text) for text in texts], _positions(np.arange(len(texts)), -0.5, len(texts) - 0.5)


def _positions(values: np.ndarray, low: float, high: float) -> list[float]:
    return [float((value - low) / (high - low)) for value in values]
