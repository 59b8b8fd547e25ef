"""Copies what a picture of a world depends on, so that it can be drawn later while the world moves on."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

VISIBLE_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
"""Fields of a state that a picture shows."""

VISIBLE_FIELDS = (
    "geom_size",
    "geom_rgba",
    "mat_rgba",
    "mat_texid",
    "light_active",
    "light_ambient",
    "light_diffuse",
    "light_specular",
)
"""Fields of a model that change a picture by other means than a pose; a world may have values of its own."""


@dataclass(frozen=True, kw_only=True)
class VisibleWorld:
    """A world as cameras see it, in one moment.

    Attributes:
        poses: `VISIBLE_POSES` to their values, of the shapes that MuJoCo gives them.
        fields: `VISIBLE_FIELDS` to theirs.
    """

    poses: Mapping[str, np.ndarray]
    fields: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, model: mujoco.MjModel, data: mujoco.MjData) -> "VisibleWorld":
        """Copy it.

        Args:
            model: The world's model.
            data: Its state, with current poses of geoms, cameras and lights.
        """
        return cls(
            poses={name: getattr(data, name).copy() for name in VISIBLE_POSES},
            fields={name: getattr(model, name).copy() for name in VISIBLE_FIELDS},
        )
