"""What a picture of a world depends on, and the pixels that things that move can change."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

# Copies what a picture of a world depends on, so that it can be drawn later while the world moves on.

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


# Finds the pixels of a fixed camera that things that move can change, by being seen there or by their shadows.

_MARGIN_M = 1e-3
"""How much larger things are taken to be than they are, more than what is lost in rounding."""

_CELLS = 512
_REACH_M = 2.0
"""Half the width of the map of shadows, around what moves; whatever is farther away shares the cells at its edge."""

_CELL_M = 2 * _REACH_M / _CELLS
"""Length of a side of a cell."""

_FAR_M = 1e6
"""Farther away than anything is."""

_SLOPES = np.tan(np.pi / 8 * np.arange(-3, 4))
_DIRECTIONS = np.stack([np.append(np.ones(7), 0.0), np.append(_SLOPES, 1.0)], axis=1)
"""Directions in a plane, in each of which the two ends of an outline are found; the last is along the second axis."""

_LENGTHS = np.linalg.norm(_DIRECTIONS, axis=1)

_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
_ENDS = np.array([(0, 0, -1), (0, 0, 1)], np.float64)
_EIGHTHS = np.pi / 4 * np.arange(8)
_RIMS = np.array(
    [(x, y, z) for x, y in np.stack([np.cos(_EIGHTHS), np.sin(_EIGHTHS)], 1) / np.cos(np.pi / 8) for z in (-1, 1)]
)
"""Corners of a prism of eight sides that holds a cylinder of radius 1 and height 2."""


@dataclass(frozen=True, kw_only=True)
class Hulls:
    """Convex hulls that hold things: each is that of some balls.

    Attributes:
        centres: Of all balls, hull by hull, in the world [m]. Shape: (n, 3).
        radii: Of all balls [m]. Shape: (n,).
        starts: Number of the first ball of each hull. Shape: (number of hulls,).
    """

    centres: np.ndarray
    radii: np.ndarray
    starts: np.ndarray


class MovingGeoms:
    """The geoms of a model that move.

    Args:
        model: The model.

    Attributes:
        ids: Which geoms move.
        are_bounded: Whether hulls can hold all of them.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        is_fixed = (model.body_weldid == 0)[model.geom_bodyid] & (model.body_mocapid < 0)[model.geom_bodyid]
        self.ids = np.flatnonzero(~is_fixed)
        types = [mujoco.mjtGeom(int(kind)) for kind in model.geom_type[self.ids]]
        self.are_bounded = all(kind in _SHAPES for kind in types)
        shapes = [_SHAPES.get(kind, _SHAPES[mujoco.mjtGeom.mjGEOM_SPHERE]) for kind in types]
        numbers = np.array([len(shape.points) for shape in shapes], int)
        self._starts = numbers.cumsum() - numbers
        self._geoms = np.repeat(self.ids, numbers)
        self._points = np.concatenate([np.zeros((0, 3)), *(shape.points for shape in shapes)])
        self._sizes = np.array([shape.sizes for shape in shapes], int).reshape(-1, 3).repeat(numbers, axis=0)
        self._is_round = np.array([shape.is_round for shape in shapes], bool).repeat(numbers)
        # A mesh is held by its box, which does not lie around its centre and has no size that a world could change.
        self._is_mesh = np.array([kind == mujoco.mjtGeom.mjGEOM_MESH for kind in types], bool).repeat(numbers)
        boxes = model.geom_aabb.reshape(-1, 6)[self._geoms]
        self._corners = (boxes[:, :3] + self._points * boxes[:, 3:])[self._is_mesh]

    def hulls(self, world: VisibleWorld) -> Hulls:
        """Return hulls that hold all moving geoms of a world, one for each."""
        sizes = world.fields["geom_size"].reshape(-1, 3)[self._geoms]
        points = self._points * np.take_along_axis(sizes, self._sizes, axis=1)
        points[self._is_mesh] = self._corners
        turns = world.poses["geom_xmat"].reshape(-1, 3, 3)[self._geoms]
        return Hulls(
            centres=world.poses["geom_xpos"].reshape(-1, 3)[self._geoms] + np.einsum("nij,nj->ni", turns, points),
            radii=sizes[:, 0] * self._is_round + _MARGIN_M,
            starts=self._starts,
        )


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Balls that hold geoms of one type: where their centres are, in units of which of the geom's three sizes."""

    points: np.ndarray
    sizes: tuple[int, int, int]
    is_round: bool = False


_SHAPES = {
    mujoco.mjtGeom.mjGEOM_SPHERE: _Shape(points=np.zeros((1, 3)), sizes=(0, 0, 0), is_round=True),
    mujoco.mjtGeom.mjGEOM_CAPSULE: _Shape(points=_ENDS, sizes=(0, 0, 1), is_round=True),
    mujoco.mjtGeom.mjGEOM_CYLINDER: _Shape(points=_RIMS, sizes=(0, 0, 1)),
    **dict.fromkeys(
        (mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_ELLIPSOID, mujoco.mjtGeom.mjGEOM_MESH),
        _Shape(points=_CORNERS, sizes=(0, 1, 2)),
    ),
}


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
        around: Hulls,
    ) -> None:
        self._place = world.poses["cam_xpos"].reshape(-1, 3)[camera]
        # Axes to the right, down and ahead.
        self._axes = world.poses["cam_xmat"].reshape(-1, 3, 3)[camera] * (1, -1, -1)
        rays = rays.astype(np.float64) * (1, -1, -1)
        flat = rays / rays[:, :, 2:]
        self._columns, self._lines = flat[0, :, 0], flat[:, 0, 1]
        hit = np.flatnonzero(depth > 0)
        points = self._place + (flat.reshape(-1, 3) * depth.reshape(-1, 1))[hit] @ self._axes.T
        self._maps = [_ShadowMap(direction, points, hit, around) for direction in light_directions]

    def of(self, hulls: Hulls) -> np.ndarray | None:
        """Return a mask of the pixels that things within hulls may change, None where it may be any of them.

        Shape: (height, width), bool.
        """
        centres = (hulls.centres - self._place) @ self._axes
        nearest = hulls.radii + _MARGIN_M
        is_ahead = np.logical_and.reduceat(centres[:, 2] > nearest, hulls.starts)
        if not (is_ahead | np.logical_and.reduceat(centres[:, 2] < -nearest, hulls.starts)).all():
            return None
        mask = np.zeros((len(self._lines), len(self._columns)), bool)
        line, left, right = self._outlines(centres, hulls, is_ahead).spans(self._lines, self._lines)
        first, last = np.searchsorted(self._columns, left), np.searchsorted(self._columns, right, side="right") - 1
        is_seen = first <= last
        top, covered = _covered(line[is_seen], first[is_seen], last[is_seen], len(self._columns))
        mask[top : top + len(covered)] = covered
        for shadows in self._maps:
            mask.ravel()[shadows.shadowed(hulls)] = True
        return mask

    @staticmethod
    def _outlines(centres: np.ndarray, hulls: Hulls, is_ahead: np.ndarray) -> "_Outlines":
        """Return where rays to the hulls ahead meet a plane at distance 1."""
        radii = hulls.radii
        ahead = np.maximum(centres[:, 2], radii + _MARGIN_M)
        across = (_DIRECTIONS / _LENGTHS[:, None]) @ centres[:, :2].T
        # Distance to where a ray touches a ball, in the plane that holds the camera, the direction and the way ahead.
        touching = np.sqrt(across**2 + ahead**2 - radii**2)
        first = (across * touching - ahead * radii) / (ahead * touching + across * radii)
        last = (across * touching + ahead * radii) / (ahead * touching - across * radii)
        outlines = _Outlines.around(first, last, hulls.starts)
        outlines.first[:, ~is_ahead] = np.inf
        return outlines


@dataclass(frozen=True, kw_only=True)
class _Outlines:
    """Convex outlines in a plane, each held by the lines that touch it from both sides, across each of `_DIRECTIONS`.

    Attributes:
        first: Smallest value of a direction times a point of an outline. Shape: (8, n).
        last: The largest one.
    """

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def around(cls, first: np.ndarray, last: np.ndarray, starts: np.ndarray) -> "_Outlines":
        """Return those of hulls, from where their balls begin and end in directions of length 1."""
        first, last = np.minimum.reduceat(first, starts, axis=1), np.maximum.reduceat(last, starts, axis=1)
        return cls(first=first * _LENGTHS[:, None], last=last * _LENGTHS[:, None])

    def spans(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find all outlines that meet strips across the plane.

        Args:
            lower: Where each strip begins on the second axis. Shape: (number of strips,).
            upper: Where it ends.

        Returns:
            The strip, and where in it the outline begins and ends at most. Shape of each: (n,).
        """
        outline, strip = np.nonzero((self.first[-1, :, None] <= upper) & (self.last[-1, :, None] >= lower))
        sides = np.multiply.outer(_SLOPES, lower), np.multiply.outer(_SLOPES, upper)
        first = self.first[:-1].take(outline, axis=1) - np.maximum(*sides).take(strip, axis=1)
        last = self.last[:-1].take(outline, axis=1) - np.minimum(*sides).take(strip, axis=1)
        return strip, first.max(axis=0), last.min(axis=0)


class _ShadowMap:
    """Where a light throws shadows: a map across its direction, and the cell of every point that is seen.

    Args:
        direction: Where the light shines, of length 1. Shape: (3,).
        points: What is seen, in the world [m]. Shape: (n, 3).
        pixels: The pixels in which they are seen. Shape: (n,).
        around: The middle of the map.
    """

    def __init__(self, direction: np.ndarray, points: np.ndarray, pixels: np.ndarray, around: Hulls) -> None:
        first = np.cross(direction, np.eye(3)[np.abs(direction).argmin()])
        first /= np.linalg.norm(first)
        self._axes = np.stack([first, np.cross(direction, first)], axis=1)
        self._corner = around.centres.mean(axis=0) @ self._axes - _REACH_M
        places = _cell(points @ self._axes - self._corner)
        cells = places[:, 1] * _CELLS + places[:, 0]
        order = cells.argsort(kind="stable")
        self._cells, self._pixels = cells[order], pixels[order]
        # The cells at the edge stand for all that is beyond.
        inner = np.arange(1, _CELLS) * _CELL_M
        self._lower, self._upper = np.append(-_FAR_M, inner), np.append(inner, _FAR_M)

    def shadowed(self, hulls: Hulls) -> np.ndarray:
        """Return the pixels of points that things within hulls may take the light from. Shape: (n,)."""
        places = (hulls.centres @ self._axes - self._corner) @ (_DIRECTIONS / _LENGTHS[:, None]).T
        outlines = _Outlines.around((places.T - hulls.radii), (places.T + hulls.radii), hulls.starts)
        line, left, right = outlines.spans(self._lower, self._upper)
        top, covered = _covered(line, _cell(left), _cell(right), _CELLS)
        begin, end = np.searchsorted(self._cells, (top * _CELLS, (top + len(covered)) * _CELLS))
        return self._pixels[begin:end][covered.ravel()[self._cells[begin:end] - top * _CELLS]]


def _cell(places: np.ndarray) -> np.ndarray:
    """Return the index of the cell that holds each place [m], counted from the map's corner."""
    return np.clip(places // _CELL_M, 0, _CELLS - 1).astype(np.int64)


def _covered(line: np.ndarray, first: np.ndarray, last: np.ndarray, width: int) -> tuple[int, np.ndarray]:
    """Return the first of the lines that have spans, and which cells are covered from there to the last of them.

    Args:
        line: Line of each span. Shape: (n,).
        first: Its first cell.
        last: Its last cell, at or behind the first one.
        width: Number of cells of a line.
    """
    if not len(line):
        return 0, np.zeros((0, width), bool)
    top, height = int(line.min()), int(np.ptp(line)) + 1
    # Within a span one more has begun than has ended. A line has one entry more than cells: no span goes beyond.
    size, starts = height * (width + 1), (line - top) * (width + 1)
    begun = np.bincount(starts + first, minlength=size) - np.bincount(starts + last + 1, minlength=size)
    return top, (begun.cumsum() > 0).reshape(height, width + 1)[:, :-1]
