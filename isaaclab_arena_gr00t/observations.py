"""Convert an environment's observations for a GR00T model, and its answers into actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.pictures import SomePictures, in_colours
from isaaclab_arena.interfaces.policy_traits import Continuation
from isaaclab_arena_gr00t.images import resized_with_padding
from isaaclab_arena_gr00t.joints import from_groups, to_groups
from isaaclab_arena_gr00t.wiring import CAMERA_GROUP, STATE_GROUP, Wiring


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A model's inputs for some env slots.

    Attributes:
        video: Pictures of each video key. Shape of each: (n, video steps, height, width, 3), uint8.
        state: The observations of the state, side by side; None if there are none. Shape: (n, state steps, size),
            float32.
    """

    video: Mapping[str, torch.Tensor]
    state: torch.Tensor | None


def pictures(observation: Observation, wiring: Wiring, env_ids: Sequence[int] | slice) -> dict[str, torch.Tensor]:
    """Return the pictures of some env slots at the present step. Shape of each: (n, height, width, 3), uint8."""
    height, width = wiring.image_size
    shown = {}
    for key, camera in wiring.cameras.items():
        images = in_colours(_of(observation[CAMERA_GROUP][camera], env_ids))
        shown[key] = resized_with_padding(images, height=height, width=width)
    return shown


def state_values(observation: Observation, wiring: Wiring, env_ids: Sequence[int] | slice) -> torch.Tensor | None:
    """Return the state of some env slots at the present step; None if there is none. Shape: (n, size), float32."""
    if not wiring.state_terms:
        return None
    return torch.cat([_of(observation[STATE_GROUP][name], env_ids).float() for name in wiring.state_terms], dim=1)


def shown_now(observation: Observation, wiring: Wiring, env_ids: Sequence[int]) -> Shown:
    """Return the inputs of a model that uses the present step only.

    Args:
        observation: Nested dict of tensors, batched by environment.
        wiring: Location of the model's inputs and outputs.
        env_ids: The env slots, in the order of the model's batch; one may be named several times.
    """
    slots = list(env_ids)
    state = state_values(observation, wiring, slots)
    return Shown(
        video={key: values[:, None] for key, values in pictures(observation, wiring, slots).items()},
        state=None if state is None else state[:, None],
    )


def model_observation(shown: Shown, wiring: Wiring, instructions: Sequence[str]) -> dict[str, Any]:
    """Return the observation of some env slots in the model's format.

    Args:
        shown: The model's inputs for the env slots.
        wiring: Where everything is.
        instructions: The instruction of each env slot.

    Returns:
        ``video``: key to (n, video steps, height, width, 3), uint8; ``state``: key to (n, state steps, size), float32;
        ``language``: key to a list of n lists of one text. Tensors, where the observation is.
    """
    state = {} if shown.state is None else to_groups(shown.state, wiring.state)
    return {
        "video": dict(shown.video),
        "state": state,
        "language": {key: [[text] for text in instructions] for key in wiring.language_keys},
    }


def as_arrays(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `model_observation` returned with arrays in contiguous memory of the CPU in place of tensors."""
    places = [(modality, key) for modality in ("video", "state") for key in observation[modality]]
    arrays: dict[str, Any] = {"video": {}, "state": {}}
    for (modality, key), values in zip(places, on_cpu([observation[m][k] for m, k in places]), strict=True):
        arrays[modality][key] = values.contiguous().numpy()
    return {**observation, **arrays}


def action_chunks(answer: Mapping[str, Any], wiring: Wiring, *, num_slots: int, chunk_length: int) -> torch.Tensor:
    """Return a model's answer as chunks of the environment's actions.

    Args:
        answer: Action key to an array of shape (num_slots, at least chunk_length, size), in physical units.
        wiring: Where everything goes.
        num_slots: Env slots that the model was asked for.
        chunk_length: Control steps that are played.

    Returns:
        Shape: (num_slots, chunk_length, action_dim), float32, on the CPU.

    Raises:
        PolicyError: If the answer lacks a key, has another shape, or holds NaN or infinity.
    """
    groups = {}
    for key, places in wiring.action.items():
        if key not in answer:
            raise PolicyError(
                f"the model's answer has no action '{key}', it has {', '.join(map(str, answer)) or 'none'}"
            )
        values = answered(answer[key], f"the model's action '{key}'")
        due = (num_slots, chunk_length, len(places))
        if values.ndim != 3 or (values.shape[0], values.shape[2]) != (due[0], due[2]) or values.shape[1] < due[1]:
            raise PolicyError(
                f"the model's action '{key}' has shape {values.shape}; {due[0]} env slots, at least {due[1]} steps and "
                f"{due[2]} numbers are due"
            )
        groups[key] = torch.from_numpy(in_float32(values[:, :chunk_length], f"the model's action '{key}'"))
    return from_groups(groups, wiring.action)


def answered(values: object, what: str) -> np.ndarray:
    """Return an array of an answer; nothing is made of words, objects or complex numbers.

    Args:
        values: What stands there.
        what: What it is called in messages.

    Raises:
        PolicyError: If it is no array of real numbers.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise PolicyError(f"{what} must be an array of real numbers, got {type(values).__name__} of {array.dtype}")
    return array


def in_float32(array: np.ndarray, what: str) -> np.ndarray:
    """Return an array of an answer in float32, contiguous.

    Raises:
        PolicyError: If one of its numbers is not finite there.
    """
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(array, dtype=np.float32)
    unsound = ~np.isfinite(numbers)
    if unsound.any():
        raise PolicyError(f"{what} holds numbers that are not finite in float32, such as {array[unsound][0]}")
    return numbers


def continued(going_on: Continuation | None, wiring: Wiring) -> dict[str, Any] | None:
    """Return the actions that chunks go on from in the model's format, None for none.

    Args:
        going_on: Actions of the environment.
        wiring: Where everything goes.

    Returns:
        ``actions``: action key to (n, predicted, size), float32; ``weights``: (n, predicted), float32.
    """
    if going_on is None:
        return None
    groups = to_groups(going_on.actions, wiring.action)
    return {
        "actions": {key: values.numpy() for key, values in groups.items()},
        "weights": going_on.weights.numpy(),
    }


def zero_observation(env: Environment, wiring: Wiring) -> Observation:
    """Return an observation of zeros for one env slot."""
    groups: dict[str, Any] = {}
    wanted = {"camera_obs": set(wiring.cameras.values()), "policy": set(wiring.state_terms)}
    for group, names in wanted.items():
        specs: Any = env.observation_spec.get(group, {})
        groups[group] = {name: torch.zeros((1, *specs[name].shape), dtype=specs[name].dtype) for name in names}
    return groups


def _of(values: torch.Tensor | SomePictures, env_ids: Sequence[int] | slice) -> torch.Tensor:
    """Return the values of some env slots; where these are goes to a GPU without the CPU waiting for it."""
    if isinstance(values, SomePictures) or isinstance(env_ids, slice):
        return values[env_ids]
    return values[torch.tensor(env_ids, dtype=torch.int64).to(values.device, non_blocking=True)]
