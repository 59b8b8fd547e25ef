"""The bin of ``objects/bin.xml``, and what it means to lie in it."""

import torch

from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.math.rotation import rotate_inverse

BIN_INSIDE_M = 0.09
BIN_FLOOR_M = 0.008
BIN_RIM_M = 0.07


def inside_bin(backend: Backend, body: str, bin_body: str, *, half_height: float) -> torch.Tensor:
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
