"""Combine requests for actions into one batch, and split the answer. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NOISE_SEEDS = "noise_seeds"


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """A request for actions that can be combined with others.

    Attributes:
        observation: The observation: modality, then key, then an array or list as long as the batch.
        noise_seeds: One seed per batch entry, None if none were given.
        batch_size: Entries of the batch.
        layout: Keys, types and shapes of an entry; only requests with equal layouts can be combined.
    """

    observation: Mapping[str, Mapping[str, Any]]
    noise_seeds: list[int] | None
    batch_size: int
    layout: tuple[Any, ...]


def action_request(data: object) -> ActionRequest | None:
    """Return a request's ``data`` as a request for actions, None if it must be answered separately."""
    # The policy must report the error of a malformed request, so it is answered separately. So are options other than
    # ``noise_seeds``, because they may affect a whole batch.
    if not isinstance(data, Mapping) or not {"observation"} <= set(data) <= {"observation", "options"}:
        return None
    observation, options = data["observation"], data.get("options") or {}
    if not isinstance(observation, Mapping) or not isinstance(options, Mapping) or not set(options) <= {NOISE_SEEDS}:
        return None
    layout = _layout(observation)
    sizes = _batch_sizes(observation)
    noise_seeds = options.get(NOISE_SEEDS)
    if layout is None or len(sizes) != 1:
        return None
    (batch_size,) = sizes
    if batch_size == 0 or (noise_seeds is not None and not _fits(noise_seeds, batch_size)):
        return None
    return ActionRequest(
        observation=observation,
        noise_seeds=noise_seeds,
        batch_size=batch_size,
        layout=(*layout, noise_seeds is not None),
    )


def join(requests: Sequence[ActionRequest]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the observation and the options of requests with one layout, the entries of the first request first."""
    first = requests[0]
    observation = {
        modality: {key: _concatenated([request.observation[modality][key] for request in requests]) for key in parts}
        for modality, parts in first.observation.items()
    }
    if first.noise_seeds is None:
        return observation, None
    return observation, {NOISE_SEEDS: [seed for request in requests for seed in request.noise_seeds or ()]}


def split(action: Mapping[str, Any], info: Mapping[str, Any], sizes: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Return each request's part of actions (sum of sizes, horizon, dimension) and info; ValueError on a misfit."""
    total = sum(sizes)
    for key, values in action.items():
        if not isinstance(values, np.ndarray) or values.shape[:1] != (total,):
            raise ValueError(f"the policy's action '{key}' is no array of {total} batch entries")
    # Arrays and lists of the batch's length are split; other information goes to all requests.
    shares, start = [], 0
    for batch_size in sizes:
        part = slice(start, start + batch_size)
        mine = {key: values[part] for key, values in info.items() if _is_batch(values, total)}
        shares.append([{key: values[part] for key, values in action.items()}, {**info, **mine}])
        start += batch_size
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


def _batch_sizes(observation: Mapping[Any, Any]) -> set[int]:
    return {
        len(values)
        for parts in observation.values()
        if isinstance(parts, Mapping)
        for values in parts.values()
        if _has_length(values)
    }


def _fits(noise_seeds: object, batch_size: int) -> bool:
    return isinstance(noise_seeds, list) and len(noise_seeds) == batch_size


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return [entry for part in values for entry in part]


def _is_batch(values: Any, total: int) -> bool:
    return _has_length(values) and len(values) == total


def _has_length(values: Any) -> bool:
    return isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim > 0)
