"""What a policy promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError, UnannouncedPictureError
from isaaclab_arena.interfaces.connections import Connections, entries, set_entries
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import refuse_misread, seen_by
from isaaclab_arena.interfaces.specs import Pictures, in_colours, picture_layout
from tests.fakes import ShrugPolicy
from tests.gr00t.fakes import LimbEnvironment
from tests.layouts import COLOURS, LAYOUTS, UNCLEAR


def test_a_class_keeps_promises_of_its_bases_that_it_does_not_make_itself():
    asks = type("Asks", (ShrugPolicy,), {"traits": PolicyTraits(remote=True)})
    quiet = type("Quiet", (asks,), {"traits": PolicyTraits(reproducible=True, pictures="none")})
    assert quiet.traits == PolicyTraits(reproducible=True, pictures="none", remote=True)
    assert not ShrugPolicy.traits.remote
    helper = type("Helper", (PolicyBase,), {"reset": ShrugPolicy.reset})
    promise = type("Promise", (PolicyBase,), {"traits": PolicyTraits(reproducible=True)})
    assert type("Both", (helper, promise), {"get_action": ShrugPolicy.get_action}).traits.reproducible


@pytest.mark.parametrize(
    "none",
    [PolicyTraits(pictures="none"), *(PolicyTraits(sees_pictures=no) for no in (False, 0, np.bool_(False)))],  # pyright: ignore[reportArgumentType]
)
def test_promises_that_are_changed_see_the_pictures_that_the_change_names(none):
    assert not none.sees_pictures
    assert replace(none, reproducible=True) == PolicyTraits(reproducible=True, pictures="none")
    assert replace(none, pictures="all") == PolicyTraits()
    assert replace(PolicyTraits(), sees_pictures=False) == none


@pytest.mark.parametrize("name", ["reproducible", "batch_invariant", "serves_any_num_envs", "uses_own_device"])
def test_a_trait_that_is_set_in_the_class_itself_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(ConfigError, match=rf"Old.{name} .* PolicyTraits\({name}="):
        type("Old", (ShrugPolicy,), {name: True})


def test_a_class_may_call_something_of_its_own_metrics_but_declares_none_by_it():
    type("Own", (ShrugPolicy,), {"metrics": lambda _: {"loss": 0.0}})
    with pytest.raises(ConfigError, match=r"Old\.metrics"):
        type("Old", (ShrugPolicy,), {"metrics": (Metric(name="loss"),)})


def test_a_class_takes_an_offer_of_its_base_back_by_none():
    names = {"planned", "with_own_memory", "description"}
    able = type("Able", (ShrugPolicy,), {**dict.fromkeys(names, lambda *_: 1), "get_action": ShrugPolicy.get_action})
    unable = type("Unable", (able,), dict.fromkeys(names))
    assert able.offers >= names
    assert not names & type("Below", (unable,), {}).offers
    assert unable().with_own_memory() is None


# Pictures of some env slots, read as those of all are, and pictures in any layout, in colours.


ALL = torch.arange(4 * 2 * 2 * 3, dtype=torch.uint8).reshape(4, 2, 2, 3)


def of_slots_1_and_3() -> Pictures:
    return Pictures((1, 3), ALL[[1, 3]], "eye", "Looker")


@pytest.mark.parametrize(
    "index", [1, np.int64(3), [3, 1, 3], torch.tensor([False, True, False, True]), np.array([3]), []]
)
def test_they_are_read_by_env_slot_as_those_of_all_env_slots_are_and_belong_to_the_reader(index):
    pictures = of_slots_1_and_3()
    assert torch.equal(pictures[index], ALL[index])
    pictures[index].zero_()
    assert torch.equal(pictures[index], ALL[index])


@pytest.mark.parametrize("index", [0, [1, 0, 2], torch.tensor([0, 1])])
def test_a_look_that_was_not_announced_is_refused_by_name(index):
    with pytest.raises(UnannouncedPictureError, match=r"Looker looks at 'eye' of env slots 0\b"):
        of_slots_1_and_3()[index]


def test_who_takes_them_for_the_tensor_of_all_env_slots_is_told_so():
    with pytest.raises(AttributeError) as caught:
        of_slots_1_and_3().float()  # pyright: ignore[reportAttributeAccessIssue]  the mistake that is tested
    with pytest.raises(UnannouncedPictureError, match="Looker looks at 'eye'"):
        refuse_misread(caught.value)
    refuse_misread(AttributeError("another one"))


@pytest.mark.parametrize("cameras", [{"eye": of_slots_1_and_3()}, {"eye": ALL}])
def test_a_reader_sees_what_it_announced_of_what_was_drawn(cameras):
    seen = seen_by("Other", cameras, np.array([False, True, False, False]))["eye"]
    assert seen.env_ids == (1,)
    assert torch.equal(seen.frames, ALL[[1]])
    with pytest.raises(UnannouncedPictureError, match=r"Other .* slots 3 "):
        seen[3]


@pytest.mark.parametrize(("shown", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_pictures_have_their_colours_in_whichever_layout_an_environment_shows_them(shown, colours):
    assert picture_layout(shown.shape, shown.dtype).shape == colours.shape
    batch = np.stack([shown, 255 - shown])
    found, tensors = in_colours(batch), in_colours(torch.from_numpy(batch))
    assert (found.flags.c_contiguous, tensors.is_contiguous()) == (True, True)
    assert found.tolist() == tensors.tolist() == np.stack([colours, 255 - colours]).tolist()
    assert in_colours(ALL) is ALL, "what lies as all want it is not copied"


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        *((shape, torch.uint8, reason) for shape, reason in UNCLEAR.items()),
        *((COLOURS.shape, dtype, "32 of shape") for dtype in (torch.float32, np.dtype(np.float32), np.dtype(np.int32))),
    ],
)
def test_a_layout_that_is_not_certain_and_what_is_not_in_bytes_is_refused(shape, dtype, reason):
    with pytest.raises(ValueError, match=reason) as refusal:
        picture_layout(shape, dtype)
    assert str(shape) in str(refusal.value)


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


def test_connections_are_one_line_with_what_columns_of_an_action_set():
    environment = LimbEnvironment(1)
    (size,) = environment.action_spec.shape
    assert list(set_entries(environment)) == ["action"]
    assert list(set_entries(environment, [6, *range(size - 1)])) == [f"action[6, 0:{size - 1}]"]
    connections = Connections(pictures={"front": "front_cam"}, states={"state": "arm + hand"}, actions={"a": "action"})
    assert str(connections) == "front <- front_cam; state <- arm + hand; a -> action"


@pytest.mark.parametrize(
    ("pictures", "cameras", "doubt"),
    [
        ({"ego_view": "wrist_cam_rgb", "wrist_view": "ego_cam_rgb"}, (), "opposite"),
        ({"left": "cam_right", "right": "cam_left", "top": "cam_top"}, (), "'left' from camera 'cam_right'"),
        ({"image2": "front", "wrist": "cam2"}, (), "opposite"),
        ({"wristImage": "front_cam"}, ("wrist_cam",), "camera 'wrist_cam'"),
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
    assert all(part in doubt for part in ("demos", f"{2 * rate:g}", f"{rate:g}"))
