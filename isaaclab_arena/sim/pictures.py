"""What a picture of a world depends on, and the pixels that things that move can change."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

VISIBLE_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
"""Fields of a state that a picture shows."""

VISIBLE_FIELDS = (
    *("geom_size", "geom_rgba", "mat_rgba", "mat_texid"),
    *("light_active", "light_ambient", "light_diffuse", "light_specular"),
)
"""Fields of a model that change a picture by other means than a pose; a world may have values of its own."""


@dataclass(frozen=True, kw_only=True)
class VisibleWorld:
    """The visible state of a world at one moment."""

    poses: Mapping[str, np.ndarray]  # `VISIBLE_POSES` -> values in MuJoCo's shapes
    fields: Mapping[str, np.ndarray]  # `VISIBLE_FIELDS` -> values

    @classmethod
    def of(cls, model: mujoco.MjModel, data: mujoco.MjData) -> "VisibleWorld":
        """Copy a world's visible state; ``data`` needs current poses of geoms, cameras and lights."""
        return cls(
            poses={name: getattr(data, name).copy() for name in VISIBLE_POSES},
            fields={name: getattr(model, name).copy() for name in VISIBLE_FIELDS},
        )


# Find the pixels of a fixed camera that moving geoms can change, directly or by their shadows.

_MARGIN_M = 1e-3  # margin around things, larger than any rounding error
_CELLS = 512
_REACH_M = 2.0
"""Half the width of the map of shadows, around the moving geoms; points farther away share the cells at its edge."""

_CELL_M = 2 * _REACH_M / _CELLS  # length of a side of a cell
_FAR_M = 1e6  # farther away than anything is
_SLOPES = np.tan(np.pi / 8 * np.arange(-3, 4))
_DIRECTIONS = np.stack([np.append(np.ones(7), 0.0), np.append(_SLOPES, 1.0)], axis=1)
"""Directions in a plane, each with the two ends of an outline; the last is along the second axis."""

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
    """Convex hulls that enclose geoms; each hull is spanned by some balls."""

    centres: np.ndarray  # of all balls, hull by hull, in the world [m], (n, 3)
    radii: np.ndarray  # of all balls [m], (n,)
    starts: np.ndarray  # index of each hull's first ball, (num_hulls,)


class MovingGeoms:
    """The geoms of a model that move."""

    def __init__(self, model: mujoco.MjModel) -> None:
        is_fixed = (model.body_weldid == 0)[model.geom_bodyid] & (model.body_mocapid < 0)[model.geom_bodyid]
        # Geoms fixed to the world do not move; geoms on mocap bodies do.
        self.ids = np.flatnonzero(~is_fixed)
        types = [mujoco.mjtGeom(int(kind)) for kind in model.geom_type[self.ids]]
        self.are_bounded = all(kind in _SHAPES for kind in types)  # False: some geom has no hull
        shapes = [_SHAPES.get(kind, _SHAPES[mujoco.mjtGeom.mjGEOM_SPHERE]) for kind in types]
        numbers = np.array([len(shape.points) for shape in shapes], int)
        self._starts = numbers.cumsum() - numbers
        self._geoms = np.repeat(self.ids, numbers)
        self._points = np.concatenate([np.zeros((0, 3)), *(shape.points for shape in shapes)])
        self._sizes = np.array([shape.sizes for shape in shapes], int).reshape(-1, 3).repeat(numbers, axis=0)
        self._is_round = np.array([shape.is_round for shape in shapes], bool).repeat(numbers)
        # A mesh is enclosed by its box, which is not around its centre and has no size that varies between worlds.
        self._is_mesh = np.array([kind == mujoco.mjtGeom.mjGEOM_MESH for kind in types], bool).repeat(numbers)
        boxes = model.geom_aabb.reshape(-1, 6)[self._geoms]
        self._corners = (boxes[:, :3] + self._points * boxes[:, 3:])[self._is_mesh]

    def hulls(self, world: VisibleWorld) -> Hulls:
        """Return a hull around each moving geom of a world."""
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
    """Balls that enclose geoms of one type: centres in units of the geom's sizes, by size index per axis."""

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
    """The pixels of a fixed camera that moving geoms can change, with fixed lights and a fixed background."""

    def __init__(
        self, world: VisibleWorld, camera: int, rays: np.ndarray, depth: np.ndarray, lights: np.ndarray, around: Hulls
    ) -> None:
        # ``rays`` (height, width, 3) are unit vectors in the camera's frame. ``depth`` (height, width) is that of the
        # background along the camera's axis [m], 0 for nothing. ``lights`` (n, 3) are the directions of lights with
        # shadows; ``around`` sets the centre of the shadow maps.
        self._place = world.poses["cam_xpos"].reshape(-1, 3)[camera]
        # Axes: right, down, ahead.
        self._axes = world.poses["cam_xmat"].reshape(-1, 3, 3)[camera] * (1, -1, -1)
        rays = rays.astype(np.float64) * (1, -1, -1)
        flat = rays / rays[:, :, 2:]
        self._columns, self._lines = flat[0, :, 0], flat[:, 0, 1]
        hit = np.flatnonzero(depth > 0)
        points = self._place + (flat.reshape(-1, 3) * depth.reshape(-1, 1))[hit] @ self._axes.T
        self._maps = [_ShadowMap(direction, points, hit, around) for direction in lights]

    def of(self, hulls: Hulls) -> np.ndarray | None:
        """Return a mask (height, width), bool, of pixels that geoms in hulls can change; None if it may be any."""
        centres = (hulls.centres - self._place) @ self._axes
        nearest = hulls.radii + _MARGIN_M
        is_ahead = np.logical_and.reduceat(centres[:, 2] > nearest, hulls.starts)
        # A hull that is partly ahead and partly behind the camera has no bounded outline.
        if not (is_ahead | np.logical_and.reduceat(centres[:, 2] < -nearest, hulls.starts)).all():
            return None
        mask = np.zeros((len(self._lines), len(self._columns)), bool)

        # The outlines of the hulls ahead, projected onto a plane at distance 1. `touching` is the length of a tangent
        # to a ball, in the plane of the camera, the direction and the way ahead.
        radii = hulls.radii
        ahead = np.maximum(centres[:, 2], radii + _MARGIN_M)
        across = (_DIRECTIONS / _LENGTHS[:, None]) @ centres[:, :2].T
        touching = np.sqrt(across**2 + ahead**2 - radii**2)
        begin = (across * touching - ahead * radii) / (ahead * touching + across * radii)
        end = (across * touching + ahead * radii) / (ahead * touching - across * radii)
        outlines = _Outlines.around(begin, end, hulls.starts)
        outlines.first[:, ~is_ahead] = np.inf

        line, left, right = outlines.spans(self._lines, self._lines)
        first, last = np.searchsorted(self._columns, left), np.searchsorted(self._columns, right, side="right") - 1
        is_seen = first <= last
        top, covered = _covered(line[is_seen], first[is_seen], last[is_seen], len(self._columns))
        mask[top : top + len(covered)] = covered
        for shadows in self._maps:
            mask.ravel()[shadows.shadowed(hulls)] = True
        return mask


@dataclass(frozen=True, kw_only=True)
class _Outlines:
    """Convex outlines in a plane, bounded on both sides across each of `_DIRECTIONS`."""

    first: np.ndarray  # least value of direction times point, (8, n)
    last: np.ndarray  # greatest value, (8, n)

    @classmethod
    def around(cls, first: np.ndarray, last: np.ndarray, starts: np.ndarray) -> "_Outlines":
        """Return the outlines of hulls, from the ends of their balls along directions of length 1."""
        first, last = np.minimum.reduceat(first, starts, axis=1), np.maximum.reduceat(last, starts, axis=1)
        return cls(first=first * _LENGTHS[:, None], last=last * _LENGTHS[:, None])

    def spans(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each strip that meets an outline, with the outline's greatest extent there. Shape of each: (n,)."""
        # ``lower`` and ``upper`` bound each strip on the second axis: (num_strips,).
        outline, strip = np.nonzero((self.first[-1, :, None] <= upper) & (self.last[-1, :, None] >= lower))
        sides = np.multiply.outer(_SLOPES, lower), np.multiply.outer(_SLOPES, upper)
        first = self.first[:-1].take(outline, axis=1) - np.maximum(*sides).take(strip, axis=1)
        last = self.last[:-1].take(outline, axis=1) - np.minimum(*sides).take(strip, axis=1)
        return strip, first.max(axis=0), last.min(axis=0)


class _ShadowMap:
    """A light's shadow map: a grid across its direction, and the cell of every visible point."""

    def __init__(self, direction: np.ndarray, points: np.ndarray, pixels: np.ndarray, around: Hulls) -> None:
        # ``direction`` (3,) is a unit vector. ``points`` (n, 3) are visible in ``pixels`` (n,), in the world [m].
        first = np.cross(direction, np.eye(3)[np.abs(direction).argmin()])
        first /= np.linalg.norm(first)
        self._axes = np.stack([first, np.cross(direction, first)], axis=1)
        self._corner = around.centres.mean(axis=0) @ self._axes - _REACH_M
        places = _cell(points @ self._axes - self._corner)
        cells = places[:, 1] * _CELLS + places[:, 0]
        order = cells.argsort(kind="stable")
        self._cells, self._pixels = cells[order], pixels[order]
        # The cells at the edge also cover everything beyond.
        inner = np.arange(1, _CELLS) * _CELL_M
        self._lower, self._upper = np.append(-_FAR_M, inner), np.append(inner, _FAR_M)

    def shadowed(self, hulls: Hulls) -> np.ndarray:
        """Return the pixels of points that geoms in hulls can shadow. Shape: (n,)."""
        places = (hulls.centres @ self._axes - self._corner) @ (_DIRECTIONS / _LENGTHS[:, None]).T
        outlines = _Outlines.around((places.T - hulls.radii), (places.T + hulls.radii), hulls.starts)
        line, left, right = outlines.spans(self._lower, self._upper)
        top, covered = _covered(line, _cell(left), _cell(right), _CELLS)
        begin, end = np.searchsorted(self._cells, (top * _CELLS, (top + len(covered)) * _CELLS))
        return self._pixels[begin:end][covered.ravel()[self._cells[begin:end] - top * _CELLS]]


def _cell(places: np.ndarray) -> np.ndarray:
    """Return the index of each place's cell [m], from the map's corner."""
    return np.clip(places // _CELL_M, 0, _CELLS - 1).astype(np.int64)


def _covered(line: np.ndarray, first: np.ndarray, last: np.ndarray, width: int) -> tuple[int, np.ndarray]:
    """Return the first line with spans, and the mask of covered cells from it to the last one."""
    if not len(line):
        return 0, np.zeros((0, width), bool)
    top, height = int(line.min()), int(np.ptp(line)) + 1
    # Inside a span, one more has begun than ended. A line has one entry more than cells, so no span crosses into the
    # next.
    size, starts = height * (width + 1), (line - top) * (width + 1)
    begun = np.bincount(starts + first, minlength=size) - np.bincount(starts + last + 1, minlength=size)
    return top, (begun.cumsum() > 0).reshape(height, width + 1)[:, :-1]
