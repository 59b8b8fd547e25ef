"""What an environment shows, as a GR00T model takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena_gr00t.images import resized_with_padding
from isaaclab_arena_gr00t.joints import from_groups, to_groups
from isaaclab_arena_gr00t.wiring import CAMERA_GROUP, STATE_GROUP, Wiring


def model_observation(
    observation: Observation, wiring: Wiring, env_ids: Sequence[int], instructions: Sequence[str]
) -> dict[str, Any]:
    """Return the observation of some rows as a model takes it.

    Args:
        observation: Nested dict of tensors, batched by environment.
        wiring: Where everything is.
        env_ids: The rows, in the order in which the model is to get them; one may be named several times.
        instructions: What each of them is told.

    Returns:
        ``video``: key to (n, 1, height, width, 3), uint8; ``state``: key to (n, 1, size), float32; ``language``: key
        to a list of n lists of one text.
    """
    height, width = wiring.image_size
    rows = list(env_ids)
    video = {
        key: _array(resized_with_padding(observation[CAMERA_GROUP][camera][rows], height=height, width=width))
        for key, camera in wiring.cameras.items()
    }
    state: dict[str, np.ndarray] = {}
    if wiring.state_terms:
        terms = [observation[STATE_GROUP][name][rows].to(torch.float32) for name in wiring.state_terms]
        state = {key: _array(value) for key, value in to_groups(torch.cat(terms, dim=1), wiring.state).items()}
    return {"video": video, "state": state, "language": {wiring.language_key: [[text] for text in instructions]}}


def action_chunks(answer: Mapping[str, Any], wiring: Wiring, *, num_rows: int, chunk_length: int) -> torch.Tensor:
    """Return a model's answer as chunks of the environment's actions.

    Args:
        answer: Action key to an array of shape (num_rows, at least chunk_length, size), in physical units.
        wiring: Where everything goes.
        num_rows: Rows that the model was asked for.
        chunk_length: Control steps that are played.

    Returns:
        Shape: (num_rows, chunk_length, action_dim), float32, on the CPU.

    Raises:
        PolicyError: If the answer lacks a key, or has another shape.
    """
    groups = {}
    for key, places in wiring.action.items():
        if key not in answer:
            raise PolicyError(
                f"the model's answer has no action '{key}', it has {', '.join(map(str, answer)) or 'none'}"
            )
        values = np.asarray(answer[key], dtype=np.float32)
        due = (num_rows, chunk_length, len(places))
        if values.ndim != 3 or (values.shape[0], values.shape[2]) != (due[0], due[2]) or values.shape[1] < due[1]:
            raise PolicyError(
                f"the model's action '{key}' has shape {values.shape}; {due[0]} rows, at least {due[1]} steps and "
                f"{due[2]} numbers are due"
            )
        groups[key] = torch.from_numpy(values[:, :chunk_length])
    return from_groups(groups, wiring.action)


def _array(values: torch.Tensor) -> np.ndarray:
    """Return values with a dimension for time behind the rows, in memory that is laid out in order."""
    return values[:, None].contiguous().cpu().numpy()
