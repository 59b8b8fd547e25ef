"""Check the observation of one env slot that a client sends, and combine those of several into a batch."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError, did_you_mean
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, SomePictures
from isaaclab_arena.interfaces.specs import ArraySpec

SlotObservation: TypeAlias = Mapping[str, Mapping[str, torch.Tensor]]
"""Group, then term: what one env slot shows, without the dimension of env slots."""

_POLICY = "the served policy"


class ObservationRefusedError(PolicyError):
    """A client's observation is not what the served policy's environment shows. The client can mend it."""


def checked_observation(observation: Mapping[str, Any], spec: Mapping[str, Any]) -> SlotObservation:
    """Return an env slot's observation as tensors of the types and shapes that the environment has.

    Args:
        observation: Group, then term, then array or tensor. The group of pictures may be missing as a whole.
        spec: Group, then term, then `ArraySpec`.

    Raises:
        ObservationRefusedError: If a term is missing, unknown, of another shape or kind, or not finite.
    """
    due = {group: terms for group, terms in spec.items() if group != CAMERAS or group in observation}
    _refuse_other_names("groups", observation, due)
    checked: dict[str, dict[str, torch.Tensor]] = {}
    for group, terms in due.items():
        given = observation[group]
        if not isinstance(given, Mapping):
            raise ObservationRefusedError(f"'{group}' must hold arrays by name, it is a {type(given).__name__}")
        _refuse_other_names(f"arrays of '{group}'", given, terms)
        checked[group] = {name: _checked(f"{group}.{name}", given[name], terms[name]) for name in terms}
    return checked


def batched(observations: Mapping[int, SlotObservation], spec: Mapping[str, Any], num_envs: int) -> Observation:
    """Return the observations of some env slots as a batch of all, with zeros in the others.

    Args:
        observations: By env slot.
        spec: Group, then term, then `ArraySpec`.
        num_envs: Env slots of the batch.
    """
    batch: Observation = {}
    for group, terms in spec.items():
        batch[group] = {
            name: _pictures(name, observations, term, num_envs)
            if group == CAMERAS
            else _wide({env_id: each[group][name] for env_id, each in observations.items()}, term, num_envs)
            for name, term in terms.items()
        }
    return batch


def _refuse_other_names(what: str, given: Mapping[str, Any], due: Mapping[str, Any]) -> None:
    missing = [name for name in due if name not in given]
    unknown = [str(name)[:100] for name in given if name not in due]
    if missing:
        raise ObservationRefusedError(f"the observation lacks the {what} {_listed(missing)}")
    if unknown:
        hint = did_you_mean(unknown[0], due)
        raise ObservationRefusedError(f"the observation has {what} that are not known: {_listed(unknown)}{hint}")


def _checked(name: str, values: Any, spec: ArraySpec) -> torch.Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        tensor = torch.from_numpy(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False)))
    elif isinstance(values, torch.Tensor):
        tensor = values
    else:
        kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
        raise ObservationRefusedError(f"'{name}' must be an array of numbers, it is {kind}")
    if tuple(tensor.shape) != spec.shape:
        raise ObservationRefusedError(f"'{name}' has shape {tuple(tensor.shape)}, {spec.shape} is due")
    if not spec.dtype.is_floating_point and tensor.dtype != spec.dtype:
        raise ObservationRefusedError(f"'{name}' is of type {tensor.dtype}, {spec.dtype} is due")
    tensor = tensor.to(spec.dtype)
    if spec.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise ObservationRefusedError(f"'{name}' holds NaN or infinity")
    return tensor


def _wide(values: Mapping[int, torch.Tensor], spec: ArraySpec, num_envs: int) -> torch.Tensor:
    wide = torch.zeros((num_envs, *spec.shape), dtype=spec.dtype)
    for env_id, part in values.items():
        wide[env_id] = part
    return wide


def _pictures(
    name: str, observations: Mapping[int, SlotObservation], spec: ArraySpec, num_envs: int
) -> torch.Tensor | SomePictures:
    there = {env_id: each[CAMERAS][name] for env_id, each in observations.items() if CAMERAS in each}
    if len(there) == len(observations):
        return _wide(there, spec, num_envs)
    places = np.full(num_envs, -1)
    places[list(there)] = range(len(there))
    drawn = torch.stack(list(there.values())) if there else torch.zeros((0, *spec.shape), dtype=spec.dtype)
    return SomePictures(name, drawn, places, reader=_POLICY)


def _listed(names: list[str]) -> str:
    return f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"
