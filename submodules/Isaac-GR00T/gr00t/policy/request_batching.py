"""Putting requests for actions together into one, and taking the answer apart again. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NOISE_SEEDS = "noise_seeds"


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """A request for actions that can be answered together with others.

    Attributes:
        observation: What was observed: modality, then key, then an array or list with one entry per row.
        noise_seeds: One seed per row, None where none were given.
        num_rows: Rows of the batch.
        layout: What must be equal for requests to be answered together: keys, types and shapes of a row.
    """

    observation: Mapping[str, Mapping[str, Any]]
    noise_seeds: list[int] | None
    num_rows: int
    layout: tuple[Any, ...]


def action_request(data: object) -> ActionRequest | None:
    """Return the request for actions that ``data`` is, None if it has to be answered by itself.

    That is so if it is unlike what a policy expects, so that the policy can say why, and if it has options other than
    ``noise_seeds``, which may mean something for all of a batch.

    Args:
        data: What came with the request: ``observation`` and perhaps ``options``.
    """
    if not isinstance(data, Mapping) or not {"observation"} <= set(data) <= {"observation", "options"}:
        return None
    observation, options = data["observation"], data.get("options") or {}
    if not isinstance(observation, Mapping) or not isinstance(options, Mapping) or not set(options) <= {NOISE_SEEDS}:
        return None
    layout = _layout(observation)
    rows = _row_counts(observation)
    noise_seeds = options.get(NOISE_SEEDS)
    if layout is None or len(rows) != 1:
        return None
    (num_rows,) = rows
    if num_rows == 0 or (noise_seeds is not None and not _fits(noise_seeds, num_rows)):
        return None
    return ActionRequest(
        observation=observation,
        noise_seeds=noise_seeds,
        num_rows=num_rows,
        layout=(*layout, noise_seeds is not None),
    )


def join(requests: Sequence[ActionRequest]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the observation and the options of requests of one layout, the rows of the first one first."""
    first = requests[0]
    observation = {
        modality: {key: _concatenated([request.observation[modality][key] for request in requests]) for key in parts}
        for modality, parts in first.observation.items()
    }
    if first.noise_seeds is None:
        return observation, None
    return observation, {NOISE_SEEDS: [seed for request in requests for seed in request.noise_seeds or ()]}


def split(action: Mapping[str, Any], info: Mapping[str, Any], rows: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Return each request's share of an answer: its rows of the actions and of what is told beside them.

    Args:
        action: Key to array. Shape of each: (sum of rows, horizon, dimension).
        info: What is told beside them; arrays and lists with one entry per row are shared out, the rest goes to all.
        rows: Rows of each request.

    Raises:
        ValueError: If an array of the actions has another number of rows.
    """
    total = sum(rows)
    for key, values in action.items():
        if not isinstance(values, np.ndarray) or values.shape[:1] != (total,):
            raise ValueError(f"the policy's action '{key}' is no array of {total} rows")
    shares, start = [], 0
    for num_rows in rows:
        part = slice(start, start + num_rows)
        mine = {key: values[part] for key, values in info.items() if _has_rows(values, total)}
        shares.append([{key: values[part] for key, values in action.items()}, {**info, **mine}])
        start += num_rows
    return shares


def _layout(observation: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    layout = []
    for modality, parts in observation.items():
        if not isinstance(parts, Mapping):
            return None
        for key, values in parts.items():
            if isinstance(values, np.ndarray) and values.ndim > 0:
                layout.append((str(modality), str(key), values.dtype.str, values.shape[1:]))
            elif isinstance(values, list):
                layout.append((str(modality), str(key), "list"))
            else:
                return None
    return tuple(sorted(layout))


def _row_counts(observation: Mapping[Any, Any]) -> set[int]:
    return {
        len(values)
        for parts in observation.values()
        if isinstance(parts, Mapping)
        for values in parts.values()
        if _has_length(values)
    }


def _fits(noise_seeds: object, num_rows: int) -> bool:
    return isinstance(noise_seeds, list) and len(noise_seeds) == num_rows


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return [row for part in values for row in part]


def _has_rows(values: Any, total: int) -> bool:
    return _has_length(values) and len(values) == total


def _has_length(values: Any) -> bool:
    return isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim > 0)
