import pytest

from isaaclab_arena.interfaces.connections import Connections, entries, set_entries
from tests.gr00t.fakes import LimbEnvironment


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([0, 1, 2, 3, 4], "arm + hand (a to e)"),
        ([0, 1], "arm[0:2] (a to b)"),
        ([4, 0, 1, 2], "hand[1] + arm (e to c)"),
        ([2, 0], "arm[2, 0] (c to a)"),
        ([3], "hand[0] (d)"),
        ([], "nothing"),
    ],
)
def test_entries_are_told_as_they_would_be_written(places, told):
    assert entries(places, {"arm": 3, "none": 0, "hand": 2}, "abcde") == told


def test_columns_of_a_policys_action_are_told_with_what_they_set():
    environment = LimbEnvironment(1)
    (size,) = environment.action_spec.shape
    assert list(set_entries(environment)) == ["action"]
    assert list(set_entries(environment, [6, *range(size - 1)])) == [f"action[6, 0:{size - 1}]"]


def test_connections_are_one_line():
    connections = Connections(pictures={"front": "front_cam"}, states={"state": "arm + hand"}, actions={"a": "action"})
    assert str(connections) == "front <- front_cam; state <- arm + hand; a -> action"


@pytest.mark.parametrize(
    ("pictures", "cameras", "doubt"),
    [
        ({"ego_view": "wrist_cam_rgb", "wrist_view": "ego_cam_rgb"}, (), "by their names it is the other way round"),
        ({"left": "cam_right", "right": "cam_left", "top": "cam_top"}, (), "'left' by camera 'cam_right' and 'right'"),
        ({"image2": "front", "wrist": "cam2"}, (), "other way round"),
        ({"wristImage": "front_cam"}, ("wrist_cam",), "by its name camera 'wrist_cam' is meant"),
        ({"ego_view": "ego_cam_rgb", "wrist_view": "wrist_cam_rgb"}, (), None),
        ({"exterior_image_1_left": "external_camera_rgb", "wrist_image_left": "wrist_camera_rgb"}, (), None),
        ({"image": "front_cam", "image_2": "wrist_cam"}, ("top_cam",), None),
    ],
)
def test_pictures_whose_names_belong_to_other_cameras_are_doubted(pictures, cameras, doubt):
    environment = LimbEnvironment(1, cameras=(*pictures.values(), *cameras))
    doubts = Connections(pictures=pictures).doubts(environment)
    assert [doubt in each for each in doubts] == [True] if doubt else doubts == []


def test_another_rate_than_the_sources_is_doubted():
    environment = LimbEnvironment(1)
    rate = 1 / environment.control_dt
    assert Connections(source="demos", control_hz=rate * 1.0001).doubts(environment) == []
    (doubt,) = Connections(source="demos", control_hz=2 * rate).doubts(environment)
    assert doubt.startswith(f"demos has {2 * rate:g} control steps per second, the environment {rate:g}")
