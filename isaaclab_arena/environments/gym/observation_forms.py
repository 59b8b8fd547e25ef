"""The forms in which Gymnasium's interfaces show observations: nested as they are, one dict of terms, or one vector."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import gymnasium
import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec
from isaaclab_arena.storage.robomimic_file import flat_array

_POLICY, _CAMERAS = "policy", "camera_obs"
_NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.uint8: np.uint8,
    torch.int32: np.int32,
    torch.int64: np.int64,
}


class ObservationForm(StrEnum):
    """How an observation is shown.

    ``NESTED``: groups of terms, as in `isaaclab_arena.interfaces.environment.Environment`. ``DICT``: all terms in one
    dict, of which those of groups other than ``policy`` and ``camera_obs`` have their group's name in front. ``FLAT``:
    the terms of group ``policy`` in one vector, in alphabetical order of their names.
    """

    NESTED = "nested"
    DICT = "dict"
    FLAT = "flat"


def default_form(*, enable_cameras: bool) -> ObservationForm:
    """Return the form that learning libraries take without a wrapper: one vector, or a dict where there are pictures.

    Args:
        enable_cameras: Whether there are pictures.
    """
    return ObservationForm.DICT if enable_cameras else ObservationForm.FLAT


def formed_space(spec: ObservationSpec, form: ObservationForm, batch: tuple[int, ...]) -> gymnasium.Space[Any]:
    """Return the space of observations in a form.

    Args:
        spec: What is observed of one env slot.
        form: The form.
        batch: Leading dimensions: (num_envs,), or none for one env slot.

    Raises:
        ConfigError: If nothing is left to be shown.
    """
    if form is ObservationForm.NESTED:
        return _nested_space(spec, batch)
    if form is ObservationForm.DICT:
        return gymnasium.spaces.Dict({name: _box(part, batch, least_dims=1) for name, part in _terms(spec)})
    group = spec.get(_POLICY)
    if not isinstance(group, Mapping):
        raise ConfigError(Problem("flat shows group policy, which this environment does not have", key="observations"))
    size = sum(int(np.prod(part.shape)) for _, part in _terms({_POLICY: group}))
    return gymnasium.spaces.Box(-np.inf, np.inf, (*batch, size), np.float32)


def formed(observation: Mapping[str, Any], form: ObservationForm, *, batch_dims: int) -> Any:
    """Return an observation in a form.

    Args:
        observation: Nested arrays. Shape of each: (*batch, ...).
        form: The form.
        batch_dims: Number of leading dimensions.
    """
    if form is ObservationForm.NESTED:
        return observation
    if form is ObservationForm.DICT:
        return {name: part if part.ndim > batch_dims else part[..., None] for name, part in _terms(observation)}
    return flat_array(dict(_terms({_POLICY: observation[_POLICY]})), batch_dims=batch_dims)


def _terms(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of every term; names have no dots, which torch takes in no name of a module."""
    for group, terms in tree.items():
        prefix = "" if group in (_POLICY, _CAMERAS) else f"{group}_"
        if not isinstance(terms, Mapping):
            yield group, terms
            continue
        for name, part in terms.items():
            if isinstance(part, Mapping):
                yield from _terms({f"{prefix}{name}": part})
            else:
                yield f"{prefix}{name}", part


def _nested_space(spec: ObservationSpec | ArraySpec, batch: tuple[int, ...]) -> gymnasium.Space[Any]:
    if isinstance(spec, ArraySpec):
        return _box(spec, batch)
    return gymnasium.spaces.Dict({name: _nested_space(part, batch) for name, part in spec.items()})


def _box(spec: ArraySpec, batch: tuple[int, ...], *, least_dims: int = 0) -> gymnasium.spaces.Box:
    dtype = _NUMPY_TYPES[spec.dtype]
    whole = not np.issubdtype(dtype, np.floating)
    low = np.iinfo(dtype).min if whole else -np.inf
    high = np.iinfo(dtype).max if whole else np.inf
    shape = spec.shape if len(spec.shape) >= least_dims else (1,)
    return gymnasium.spaces.Box(low=low, high=high, shape=(*batch, *shape), dtype=dtype)
