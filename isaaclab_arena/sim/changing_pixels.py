"""Finds the pixels of a fixed camera that things that move can change, by being seen there or by their shadows."""

from dataclasses import dataclass

import mujoco
import numpy as np

from isaaclab_arena.sim.visible_world import VisibleWorld

_MARGIN_M = 2e-3
"""How much larger things are taken to be than they are, more than what is lost in rounding."""

_CELLS = 256
_REACH_M = 2.0
"""Half the width of the map of shadows, around what moves; whatever is farther away shares the cells at its edge."""

_CELL_M = 2 * _REACH_M / _CELLS
"""Length of a side of a cell."""

_ROUND = (mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_CYLINDER)
_BOUNDED = {
    int(kind)
    for kind in (
        mujoco.mjtGeom.mjGEOM_SPHERE,
        mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        mujoco.mjtGeom.mjGEOM_BOX,
        mujoco.mjtGeom.mjGEOM_MESH,
        *_ROUND,
    )
}


@dataclass(frozen=True, kw_only=True)
class Balls:
    """Balls that hold a shape.

    Attributes:
        centres: In the world [m]. Shape: (n, 3).
        radii: [m]. Shape: (n,).
    """

    centres: np.ndarray
    radii: np.ndarray


class MovingGeoms:
    """The geoms of a model that move.

    Args:
        model: The model.

    Attributes:
        ids: Which geoms move.
        are_bounded: Whether balls can hold all of them.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        is_fixed = (model.body_weldid == 0)[model.geom_bodyid] & (model.body_mocapid < 0)[model.geom_bodyid]
        self.ids = np.flatnonzero(~is_fixed)
        self._types = model.geom_type[self.ids].astype(int)
        self.are_bounded = set(self._types.tolist()) <= _BOUNDED
        self._is_mesh = self._types == int(mujoco.mjtGeom.mjGEOM_MESH)
        self._is_capsule = self._types == int(mujoco.mjtGeom.mjGEOM_CAPSULE)
        self._is_round = self._is_capsule | (self._types == int(mujoco.mjtGeom.mjGEOM_CYLINDER))
        self._is_ball = self._is_mesh | (self._types == int(mujoco.mjtGeom.mjGEOM_SPHERE))
        self._mesh_radius = model.geom_rbound[self.ids]

    def balls(self, world: VisibleWorld) -> Balls:
        """Return balls that hold all moving geoms of a world."""
        places = world.poses["geom_xpos"].reshape(-1, 3)[self.ids]
        sizes = world.fields["geom_size"].reshape(-1, 3)[self.ids]
        numbers = np.arange(len(sizes))
        # Half the length along the axis of a round geom, or along the longest side of another.
        axis = np.where(self._is_round, 1, sizes.argmax(axis=1))
        half = np.where(self._is_ball, 0.0, sizes[numbers, axis])
        across = np.sqrt(np.maximum((sizes**2).sum(axis=1) - half**2, 0.0))
        across[self._is_mesh] = self._mesh_radius[self._is_mesh]
        radii = np.where(self._is_capsule, across + half, np.hypot(across, half))
        # A long geom is held by three balls along its axis rather than by one that is as wide as it is long: one for
        # each third of it, but for a capsule with two at the centres of its round ends.
        long = half > 0.3 * across
        radii[long] = np.hypot(across, half / np.where(self._is_capsule, 2, 3))[long]
        directions = world.poses["geom_xmat"].reshape(-1, 3, 3)[self.ids, :, np.where(self._is_round, 2, axis)]
        steps = (np.where(self._is_capsule, half, half * 2 / 3)[:, None] * directions)[long]
        ends = (places[long] - steps, places[long] + steps)
        return Balls(
            centres=np.concatenate([places, *ends]),
            radii=np.concatenate([radii, radii[long], radii[long]]) + _MARGIN_M,
        )


class ChangingPixels:
    """Which pixels of a camera moving things can change, while camera, lights and all else stay as they are.

    Args:
        world: A world with that camera and these lights.
        camera: Index of the camera.
        rays: Direction of each pixel's ray in the camera's frame, of length 1. Shape: (height, width, 3).
        depth: Distance of what does not move along the camera's axis [m], 0 where there is nothing.
            Shape: (height, width).
        light_directions: Where each light that casts shadows shines, of length 1. Shape: (n, 3).
        around: What moves, about which the map of shadows is laid.
    """

    def __init__(
        self,
        world: VisibleWorld,
        camera: int,
        rays: np.ndarray,
        depth: np.ndarray,
        light_directions: np.ndarray,
        around: Balls,
    ) -> None:
        self._place = world.poses["cam_xpos"].reshape(-1, 3)[camera]
        self._rotation = world.poses["cam_xmat"].reshape(-1, 3, 3)[camera]
        self._rays = rays.astype(np.float64)
        flat = self._rays / -self._rays[:, :, 2:]
        self._columns, self._lines = flat[0, :, 0], -flat[:, 0, 1]
        self._hit = np.flatnonzero(depth > 0)
        points = self._place + (flat.reshape(-1, 3) * depth.reshape(-1, 1))[self._hit] @ self._rotation.T
        self._maps = [_ShadowMap(direction, points, around) for direction in light_directions]

    def of(self, balls: Balls) -> np.ndarray | None:
        """Return a mask of the pixels that things within balls may change, None where it may be any of them.

        Shape: (height, width), bool.
        """
        centres = (balls.centres - self._place) @ self._rotation
        distances = np.linalg.norm(centres, axis=1)
        if (distances <= 1.1 * balls.radii).any():
            return None
        mask = np.zeros(self._rays.shape[:2], bool)
        for shadows in self._maps:
            mask.ravel()[self._hit[shadows.shadowed(balls)]] = True
        cosines = np.sqrt(1 - (balls.radii / distances) ** 2) - 1e-6
        lines = self._spans(self._lines, -centres[:, 1], -centres[:, 2], balls.radii)
        columns = self._spans(self._columns, centres[:, 0], -centres[:, 2], balls.radii)
        for line, column, towards, cosine in zip(lines, columns, centres / distances[:, None], cosines, strict=True):
            mask[line, column] |= self._rays[line, column] @ towards >= cosine
        return mask

    @staticmethod
    def _spans(tangents: np.ndarray, across: np.ndarray, ahead: np.ndarray, radii: np.ndarray) -> list[slice]:
        """Return which of the ascending tangents rays to each ball can have, with one to spare on either side."""
        distances = np.hypot(across, ahead)
        middles, halves = np.arctan2(across, ahead), np.arcsin(np.minimum(1, radii / distances))
        limit = np.pi / 2 - 1e-3
        first = np.searchsorted(tangents, np.tan(np.clip(middles - halves, -limit, limit))) - 1
        last = np.searchsorted(tangents, np.tan(np.clip(middles + halves, -limit, limit))) + 1
        # From within a ball, across this direction, it is everywhere.
        everywhere = distances <= radii
        first[everywhere], last[everywhere] = 0, len(tangents)
        return [slice(max(0, low), high) for low, high in zip(first.tolist(), last.tolist(), strict=True)]


class _ShadowMap:
    """Where a light throws shadows: a map across its direction, and the cell of every point that is seen."""

    def __init__(self, direction: np.ndarray, points: np.ndarray, around: Balls) -> None:
        first = np.cross(direction, np.eye(3)[np.abs(direction).argmin()])
        first /= np.linalg.norm(first)
        self._axes = np.stack([first, np.cross(direction, first)], axis=1)
        self._corner = around.centres.mean(axis=0) @ self._axes - _REACH_M
        cells = self._cell(points @ self._axes - self._corner)
        self._cells = cells[:, 0] * _CELLS + cells[:, 1]
        # The cells at the edge stand for all that is beyond.
        inner = np.arange(1, _CELLS) * _CELL_M
        self._lower, self._upper = np.append(-np.inf, inner), np.append(inner, np.inf)

    def shadowed(self, balls: Balls) -> np.ndarray:
        """Return which points things within balls may take the light from. Shape: (number of points,), bool."""
        x, y = (balls.centres @ self._axes - self._corner).T[:, :, None]
        # A ball's shadow is a circle, which covers one span of each of the map's lines.
        apart = np.maximum(0, np.maximum(self._lower - x, x - self._upper))
        squares = balls.radii[:, None] ** 2 - apart**2
        ball, line = np.nonzero(squares >= 0)
        halves = np.sqrt(squares[ball, line])
        first, last = self._cell(y[ball, 0] - halves), self._cell(y[ball, 0] + halves)
        # Within a span one more has begun than has ended. A line has one entry more than cells: no span goes beyond.
        size, starts = _CELLS * (_CELLS + 1), line * (_CELLS + 1)
        begun = np.bincount(starts + first, minlength=size) - np.bincount(starts + last + 1, minlength=size)
        return (begun.cumsum() > 0).reshape(_CELLS, _CELLS + 1)[:, :-1].ravel()[self._cells]

    @staticmethod
    def _cell(places: np.ndarray) -> np.ndarray:
        """Return the index of the cell that holds each place [m], counted from the map's corner."""
        return np.clip(places // _CELL_M, 0, _CELLS - 1).astype(np.int64)
