"""The bin of ``objects/bin.xml``, and what it means to lie in it."""

from collections.abc import Mapping

import torch

from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.workspace import Area
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.sim.math.rotation import rotate_inverse
from isaaclab_arena.sim.named_state import NamedState

BIN_INSIDE_M = 0.09
BIN_FLOOR_M = 0.008
BIN_RIM_M = 0.07
BIN_SIZES: Mapping[str, float] = {"bin_floor": BIN_FLOOR_M, "bin_rim": BIN_RIM_M}


def bin_thing(prefix: str, *, y: float, area: Area) -> SceneObject:
    """Return a bin that starts in an area of the table; the scene is compiled with it at ``y`` [m]."""
    return SceneObject(
        prefix=prefix, asset="objects/bin.xml", position=(0.5, y, 0.0), area=area, loose=True, observed_as=prefix
    )


def refuse_wider_than_bin(thing: ObjectAsset) -> None:
    """Refuse an object that does not fit into the bin.

    Raises:
        ConfigError: If it is wider than the bin is inside.
    """
    if thing.footprint_radius > BIN_INSIDE_M:
        raise ConfigError(
            Problem(
                f"object '{thing.name}' is {2 * thing.footprint_radius:.2f} m across and does not fit into the bin, "
                f"which is {2 * BIN_INSIDE_M:.2f} m wide inside",
                key="object",
            )
        )


def inside_bin(backend: NamedState, body: str, bin_body: str, *, half_height: float) -> torch.Tensor:
    """Return whether a body lies in an upright bin, not higher than on its floor. Shape: (num_envs,), bool.

    Args:
        backend: The simulation.
        body: The body.
        bin_body: The bin's body.
        half_height: From the body's centre to the surface it rests on [m].
    """
    orientation = backend.body_orientation(bin_body)
    local = rotate_inverse(orientation, backend.body_position(body) - backend.body_position(bin_body))
    highest = BIN_FLOOR_M + half_height + 0.02
    in_bin = terms.inside_box(local, (-BIN_INSIDE_M, -BIN_INSIDE_M, 0.0), (BIN_INSIDE_M, BIN_INSIDE_M, highest))
    return in_bin & terms.upright(orientation)
