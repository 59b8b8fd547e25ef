"""Pictures that readers announce: those that a policy asks for, and the form in which a reader gets them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, Pictures, pictures_of
from isaaclab_arena.interfaces.policy import PolicyBase


def announced_pictures(policy: PolicyBase, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
    """Return the env slots at whose pictures a policy looks next, None for all."""
    if "pictures_to_see" in policy.offers:
        return policy.pictures_to_see(env, starting)
    return () if policy.traits.pictures == "none" else None


def shown_to(policy: PolicyBase, env: Environment, observation: Observation) -> Observation:
    """Return an observation with its pictures in the form of a policy's traits."""
    if CAMERAS not in observation:
        return observation
    shown, form = dict(observation[CAMERAS]), policy.traits.pictures
    for camera, each in shown.items():
        if form == "announced":
            shown[camera] = pictures_of(each)
        elif isinstance(each, Pictures) and form == "all" and "pictures_to_see" not in policy.offers:
            # It announces nothing, so an env slot without a picture does not act.
            shown[camera] = each.frames.new_zeros((env.num_envs, *each.frames.shape[1:]))
            shown[camera][list(each.env_ids)] = each.frames
    return {**observation, CAMERAS: shown}


def seen_by(reader: str, cameras: Mapping[str, torch.Tensor | Pictures], announced: np.ndarray) -> dict[str, Pictures]:
    """Return the pictures that a reader has announced, of those that there are. Shape of the mask: (num_envs,)."""
    seen = {}
    for camera, shown in cameras.items():
        drawn = pictures_of(shown)
        frames, places = drawn.frames, np.flatnonzero(announced[list(drawn.env_ids)])
        if len(places) == 0:
            frames = frames[:0]
        elif len(places) < len(frames):
            frames = frames[torch.from_numpy(places).to(frames.device, non_blocking=True)]
        seen[camera] = Pictures(tuple(drawn.env_ids[place] for place in places), frames, camera, reader)
    return seen


def refuse_misread(error: AttributeError) -> None:
    """Raise `UnannouncedPictureError` if a reader took `Pictures` for the tensor of all env slots."""
    shown = error.obj
    if isinstance(shown, Pictures):
        raise UnannouncedPictureError(
            f"{shown.reader} looks at '{shown.camera}' as a tensor of all env slots without having announced it; "
            "docs/how_to/cameras.md says how pictures are announced, and read by env slot"
        ) from error
