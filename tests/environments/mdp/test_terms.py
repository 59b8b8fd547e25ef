import math

import pytest
import torch

from isaaclab_arena.environments.mdp import terms


def test_distance_is_euclidean():
    assert terms.distance(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 5.0, 7.0]])).item() == 5.0


def test_closeness_falls_from_1_through_one_half_and_never_to_0():
    closeness = terms.closeness(torch.tensor([0.0, 0.1, 0.3, 10.0]), half_at=0.1)
    torch.testing.assert_close(closeness, torch.tensor([1.0, 0.5, 0.1, 0.0001]), rtol=1e-3, atol=1e-5)


def test_progress_is_clipped_at_both_ends():
    assert terms.progress(torch.tensor([-1.0, 0.05, 2.0]), start=0.0, goal=0.1).tolist() == [0.0, 0.5, 1.0]


def test_a_count_grows_breaks_off_and_waits_while_its_env_slot_rests():
    condition = torch.tensor([True, False, True])
    running = torch.tensor([True, True, False])
    assert terms.count_while(condition, torch.tensor([3, 3, 3]), running).tolist() == [4, 0, 3]


def test_things_below_or_beside_the_table_are_off_it():
    places = torch.tensor([[0.5, 0.0, 0.025], [0.5, 0.0, -0.1], [1.2, 0.0, 0.1], [0.5, -0.7, 0.1]])
    assert terms.off_the_table(places).tolist() == [False, True, True, True]


def test_a_box_contains_what_lies_between_its_corners():
    points = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [-0.2, 0.0, 0.0], [0.0, 0.11, 0.0]])
    assert terms.inside_box(points, (-0.1, -0.1, -0.1), (0.1, 0.1, 0.1)).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("hand_x", "expected_x"),
    [(-0.2, -0.06), (-0.05, -0.05), (-0.025, -0.03), (0.0, -0.06), (0.1, -0.06)],
    ids=["far behind", "behind", "touching", "on it", "on the wrong side"],
)
def test_a_hand_pushes_from_behind(hand_x, expected_x):
    hand = torch.tensor([[hand_x, 0.0, 0.3]])
    point = terms.push_point(hand, torch.tensor([[0.0, 0.0, 0.02]]), torch.tensor([[0.5, 0.0, 0.0]]), (0.03, 0.06))
    assert point[0].tolist() == pytest.approx([expected_x, 0.0, 0.02])


def test_a_thing_that_is_at_its_goal_has_a_push_point_nonetheless():
    place = torch.tensor([[0.1, 0.2, 0.02]])
    assert torch.isfinite(terms.push_point(place, place, place, (0.03, 0.06))).all()


@pytest.mark.parametrize(
    ("quaternion", "tilt"),
    [((0.0, 1.0, 0.0, 0.0), 0.0), ((1.0, 0.0, 0.0, 0.0), 1.0), ((0.5**0.5, 0.5**0.5, 0, 0), 0.5)],
)
def test_tilt_is_how_far_a_hand_is_from_pointing_down(quaternion, tilt):
    assert terms.tilt_from_down(torch.tensor([quaternion])).item() == pytest.approx(tilt)


def leaning(degrees: float, axis: tuple[float, float, float]) -> list[float]:
    half = math.radians(degrees) / 2
    return [math.cos(half), *(math.sin(half) * part for part in axis)]


def test_upright_is_a_lean_of_less_than_18_2_degrees_in_any_direction():
    """The cosine of the lean is more than 0.95; how a thing is turned about its own axis counts for nothing."""
    x, y, z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
    turns = [(18.19, x), (18.2, x), (18.19, y), (-18.2, y), (-18.19, x), (90.0, z), (180.0, x), (162.0, y)]
    upright = terms.upright(torch.tensor([leaning(*turn) for turn in turns], dtype=torch.float64))
    assert upright.tolist() == [True, False, True, False, True, True, False, False]


def test_way_counts_where_a_hand_touches_and_is_no_faster_than_a_hand_is():
    so_far = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    way = torch.tensor([0.05, 0.05, 0.051, -0.05, -0.2, -0.05])
    touched = torch.tensor([True, False, True, True, True, False])
    counted = terms.moved_by_hand(so_far, way, touched, fastest=0.05)
    assert counted.tolist() == pytest.approx([0.15, 0.1, 0.1, 0.05, 0.0, 0.1])


def test_the_table_top_ends_where_it_does_in_every_direction():
    little = 1e-6
    edges = [(-0.22, 0.0, 0.0), (1.02, 0.0, 0.0), (0.5, -0.6, 0.0), (0.5, 0.6, 0.0), (0.5, 0.0, -0.02)]
    outward = [(-little, 0, 0), (little, 0, 0), (0, -little, 0), (0, little, 0), (0, 0, -little)]
    edge, out = torch.tensor(edges, dtype=torch.float64), torch.tensor(outward, dtype=torch.float64)
    assert terms.off_the_table(edge - out).tolist() == [False] * 5
    assert terms.off_the_table(edge + out).tolist() == [True] * 5


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(("corner", "side"), [((-0.1, -0.2, -0.3), -1), ((0.4, 0.5, 0.6), 1)])
def test_a_box_ends_at_every_one_of_its_faces(axis, corner, side):
    at_the_face = torch.zeros(3, dtype=torch.float64)
    at_the_face[axis] = corner[axis]
    beyond = at_the_face.clone()
    beyond[axis] += side * 1e-6
    points = torch.stack((at_the_face, beyond))
    assert terms.inside_box(points, (-0.1, -0.2, -0.3), (0.4, 0.5, 0.6)).tolist() == [True, False]


def test_horizontal_distance_knows_no_height():
    distance = terms.horizontal_distance(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 6.0, 9.0]]))
    assert distance.item() == 5.0
