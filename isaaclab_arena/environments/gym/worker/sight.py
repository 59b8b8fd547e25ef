"""Knows by geometry which boxes a camera may see, directly or in a mirror; one that may be seen is never left out."""

from __future__ import annotations

import typing

import numpy as np

MARGIN_M = 1e-3
"""Faces that hide are taken for smaller and lower by this, and mirrors for larger and higher."""

_MARGIN_PX = 2
_LARGEST_SHIFT = 1e-9
_LARGEST_TURN = 1e-12


class Region(typing.NamedTuple):
    """A convex part of space, with flat faces: all that lies between some points, and from there along some rays.

    Shape of each: (k, 3), none of the rays where it has an end.

    Attributes:
        points: Its corners.
        rays: Directions in which it has no end.
        normals: Of its faces, outwards.
        edges: Directions of the edges between them.
    """

    points: np.ndarray
    rays: np.ndarray
    normals: np.ndarray
    edges: np.ndarray


class Shape(typing.NamedTuple):
    """Boxes around geoms: where they are, the axes of each as columns, and half of its lengths along them.

    Shapes: (n, 3), (n, 3, 3) and (n, 3).
    """

    centers: np.ndarray
    axes: np.ndarray
    halves: np.ndarray

    def mirrored(self, point: np.ndarray, normal: np.ndarray) -> Shape:
        """Return the boxes as they are seen in the plane through a point."""
        flip = np.eye(3) - 2.0 * np.outer(normal, normal)
        return Shape((self.centers - point) @ flip + point, flip @ self.axes, self.halves)

    def corners(self) -> np.ndarray:
        """Shape: (n, 8, 3)."""
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        return self.centers[:, None] + np.einsum("nij,nkj->nki", self.axes, signs * self.halves[:, None])

    def meet(self, region: Region) -> np.ndarray:
        """Return which boxes are not parted from a region by a plane. Shape: (n,), bool.

        Convex bodies with flat faces that are apart are parted by a plane along a face of one of them, or along an edge
        of each (Gottschalk, Lin and Manocha, OBBTree, 1996).
        """
        own = np.swapaxes(self.axes, 1, 2)
        along_edges = np.cross(region.edges[:, None], own[:, None]).reshape(len(own), -1, 3)
        across = np.concatenate([own, along_edges], axis=1)
        faces = np.broadcast_to(region.normals, (len(own), *region.normals.shape))
        outwards = np.concatenate([faces, across, -across], axis=1)
        farthest = ((region.points - region.points[0]) @ np.swapaxes(outwards, 1, 2)).max(axis=1)
        nearest = np.einsum("nki,ni->nk", outwards, self.centers - region.points[0])
        nearest -= np.einsum("nkj,nj->nk", np.abs(outwards @ self.axes), self.halves)
        parted = nearest > farthest + _LARGEST_SHIFT
        if len(region.rays):
            parted &= (region.rays @ np.swapaxes(outwards, 1, 2)).max(axis=1) <= _LARGEST_TURN
        return ~parted.any(axis=1)


class Eye(typing.NamedTuple):
    """What a camera sees: its place, its axes (right, up and forward), and the edges of its picture at distance 1."""

    place: np.ndarray
    axes: np.ndarray
    left: float
    right: float
    bottom: float
    top: float

    def sight(self, floor: tuple[np.ndarray, np.ndarray] | None = None) -> Region:
        """Return what lies in the picture, down to a floor that hides what is below it.

        Args:
            floor: A point of it and its normal; it lies below the whole picture. None for none.
        """
        rays = self._rays()
        sides = np.array([(-1, 0, self.left), (1, 0, -self.right), (0, -1, self.bottom), (0, 1, -self.top)])
        normals = np.concatenate([sides, [(0, 0, -1)]]) @ self.axes
        if floor is None:
            return Region(self.place[None], rays, normals, rays)
        point, normal = floor
        ends = self.place + rays * ((point - self.place) @ normal / (rays @ normal))[:, None]
        edges = np.concatenate([rays, ends[[1, 2, 1, 2]] - ends[[0, 0, 3, 3]]])
        return Region(np.concatenate([self.place[None], ends]), np.zeros((0, 3)), np.vstack([normals, -normal]), edges)

    def is_filled_by(self, face: np.ndarray, axes: np.ndarray, halves: np.ndarray) -> bool:
        """Return whether nothing in the picture passes beside a rectangle, seen from its upper side.

        Args:
            face: Its middle.
            axes: Its own axes, of which the third is its normal, as columns.
            halves: Half of its two lengths.
        """
        rays = self._rays()
        height, falling = (self.place - face) @ axes[:, 2], -rays @ axes[:, 2]
        if height <= MARGIN_M or (falling <= 0).any():
            return False
        met = (self.place - face + rays * (height / falling)[:, None]) @ axes
        return bool((np.abs(met[:, :2]) <= halves).all())

    def through(self, face: np.ndarray, axes: np.ndarray, halves: np.ndarray) -> Region | None:
        """Return what lies behind a rectangle for this eye; None if it has no end, or is not seen from its upper side.

        For the arguments see `is_filled_by`.
        """
        if (halves <= 0).any() or (self.place - face) @ axes[:, 2] <= 2 * MARGIN_M:
            return None
        wide, middle = halves + MARGIN_M, face + MARGIN_M * axes[:, 2]
        corners = middle + np.array([(-1, -1), (-1, 1), (1, 1), (1, -1)]) * wide @ axes[:, :2].T
        rays = corners - self.place
        normals = np.cross(rays, np.roll(rays, -1, axis=0))
        normals *= -np.sign(normals @ (face - self.place))[:, None]
        return Region(corners, rays, np.vstack([normals, axes[:, 2]]), np.vstack([rays, axes[:, :2].T]))

    def part(self, shape: Shape, width: int, height: int) -> tuple[int, int, int, int] | None:
        """Return the pixels around boxes: first column, first line from below, columns and lines; None if too near."""
        seen = (shape.corners().reshape(-1, 3) - self.place) @ self.axes.T
        if (seen[:, 2] < _MARGIN_PX * 1e-3).any():
            return None
        across = (seen[:, 0] / seen[:, 2] - self.left) / (self.right - self.left) * width
        upwards = (seen[:, 1] / seen[:, 2] - self.bottom) / (self.top - self.bottom) * height
        ends = []
        for values, size in ((across, width), (upwards, height)):
            low, high = np.floor(values.min()) - _MARGIN_PX, np.ceil(values.max()) + _MARGIN_PX
            ends.append(np.clip((low, high), 0, size).astype(int))
        (first, last), (lowest, highest) = ends
        return int(first), int(lowest), int(last - first), int(highest - lowest)

    def narrowed(self, part: tuple[int, int, int, int], width: int, height: int) -> Eye:
        """Return what is seen in some of its pixels."""
        first, lowest, columns, lines = part
        across, upwards = (self.right - self.left) / width, (self.top - self.bottom) / height
        left, bottom = self.left + first * across, self.bottom + lowest * upwards
        return self._replace(left=left, right=left + columns * across, bottom=bottom, top=bottom + lines * upwards)

    def _rays(self) -> np.ndarray:
        """Return where the corners of the picture lie, seen from the eye. Shape: (4, 3)."""
        corners = [(across, upwards, 1.0) for across in (self.left, self.right) for upwards in (self.bottom, self.top)]
        return np.array(corners) @ self.axes
