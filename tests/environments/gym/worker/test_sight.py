"""A box of which a point may be seen is never left out, and few others are kept."""

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.rendering import Eye, Region, Shape

FACE, UPWARDS = np.array([0.0, 0.0, -1.0]), np.eye(3)
"""A rectangle that faces upwards."""


def boxes(number: int) -> tuple[Shape, np.ndarray]:
    """Return boxes all around, and points in them. Shape of the points: (number, 2000, 3)."""
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(number, 3, 3)))[0]
    made = Shape(generator.normal(size=(number, 3)), axes, generator.uniform(0, 0.5, (number, 3)))
    inside = generator.uniform(-1, 1, (number, 2000, 3)) * made.halves[:, None]
    return made, made.centers[:, None] + np.einsum("nij,nkj->nki", axes, inside)


def eye_above() -> Eye:
    """Return an eye that looks down, turned a little."""
    forward = np.array([0.1, 0.2, -1.0]) / np.linalg.norm([0.1, 0.2, -1.0])
    right = np.cross(forward, [0.0, 1.0, 0.0])
    right /= np.linalg.norm(right)
    return Eye(np.array([0.1, -0.2, 1.0]), np.array([right, np.cross(right, forward), forward]), -0.4, 0.5, -0.3, 0.6)


def in_picture(eye: Eye, points: np.ndarray) -> np.ndarray:
    """Points inside the picture, hidden or not."""
    across, upwards, ahead = np.moveaxis((points - eye.place) @ eye.axes.T, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = across / ahead, upwards / ahead
    return (ahead > 0) & (x > eye.left) & (x < eye.right) & (y > eye.bottom) & (y < eye.top)


def through_face(eye: Eye, points: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Points below the rectangle as seen through it."""
    on_face = eye.place + (points - eye.place) * ((FACE - eye.place)[2] / (points - eye.place)[..., 2])[..., None]
    return (points[..., 2] < FACE[2]) & (np.abs((on_face - FACE)[..., :2]) < halves).all(axis=-1)


def test_the_boxes_that_a_picture_shows_are_kept_and_few_others():
    shape, points = boxes(500)
    shown = in_picture(eye_above(), points).any(axis=1)
    kept = shape.meet(eye_above().sight())
    assert kept[shown].all()
    assert 50 < shown.sum() <= kept.sum() < 1.1 * shown.sum()


def test_the_boxes_that_rise_above_a_floor_within_a_picture_are_kept_and_few_others():
    shape, points = boxes(500)
    shown = (in_picture(eye_above(), points) & (points[..., 2] > FACE[2])).any(axis=1)
    kept = shape.meet(eye_above().sight((FACE, UPWARDS[2])))
    assert kept[shown].all()
    assert 30 < shown.sum() <= kept.sum() < 1.1 * shown.sum()


def test_the_boxes_that_are_seen_through_a_rectangle_are_kept_and_few_others():
    shape, points = boxes(2000)
    halves = np.array([0.5, 0.3])
    shown = through_face(eye_above(), points, halves).any(axis=1)
    behind = eye_above().through(FACE, UPWARDS, halves)
    assert behind is not None
    kept = shape.meet(behind)
    assert kept[shown].all()
    assert 30 < shown.sum() <= kept.sum() < 1.1 * shown.sum()


def test_a_box_that_only_a_plane_along_two_edges_parts_from_a_region_is_left_out():
    # Two dice, an edge of one towards an edge of the other, which lie across.
    upright = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, np.sqrt(2.0)]]) / np.sqrt(2.0)
    lying = np.array([[1.0, 0.0, -1.0], [0.0, np.sqrt(2.0), 0.0], [1.0, 0.0, 1.0]]) / np.sqrt(2.0)
    size, no_rays = np.ones((1, 3)), np.zeros((0, 3))
    corners = Shape(np.zeros((1, 3)), upright[None], size).corners()[0]
    region = Region(corners, no_rays, np.vstack([upright.T, -upright.T]), upright.T)
    near, apart = (Shape(np.array([[distance, 0.0, 0.0]]), lying[None], size) for distance in (2.8, 2.9))
    assert near.meet(region).all()
    assert not apart.meet(region).any()
    assert apart.meet(region._replace(edges=no_rays)).all()


@pytest.mark.parametrize(("halves", "fills"), [((2.0, 2.0), True), ((2.0, 0.5), False)])
def test_a_rectangle_fills_a_picture_where_no_corner_passes_beside_it(halves, fills):
    assert eye_above().is_filled_by(FACE, UPWARDS, np.array(halves)) is fills


def test_from_below_a_rectangle_fills_no_picture_and_shows_nothing():
    below = eye_above()._replace(place=np.array([0.0, 0.0, -1.5]))
    assert not below.is_filled_by(FACE, UPWARDS, np.array([9.0, 9.0]))
    assert below.through(FACE, UPWARDS, np.array([9.0, 9.0])) is None


def test_a_mirrored_box_is_where_its_image_is():
    shape, _ = boxes(3)
    image = shape.mirrored(FACE, UPWARDS[2])
    corners = shape.corners() * [1, 1, -1] + [0, 0, 2 * FACE[2]]
    for found, expected in zip(image.corners(), corners, strict=True):
        assert np.allclose(sorted(found.tolist()), sorted(expected.tolist()))
