"""What clients show is what the environment shows, or is refused by name."""

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.evaluation.serving import ObservationRefusedError, batched, checked_observation
from isaaclab_arena.interfaces.specs import ArraySpec

SPEC = {
    "policy": {"joints": ArraySpec(shape=(3,)), "stage": ArraySpec(shape=(1,), dtype=torch.int64)},
    "camera_obs": {"front": ArraySpec(shape=(2, 2, 3), dtype=torch.uint8)},
}


def shown(**changes) -> dict:
    policy = {"joints": np.arange(3.0), "stage": np.array([2]), **changes}
    return {"policy": {name: value for name, value in policy.items() if value is not None}}


def pictures(value: int = 7) -> dict:
    return {"camera_obs": {"front": np.full((2, 2, 3), value, np.uint8)}}


def test_numbers_come_in_the_types_of_the_environment():
    checked = checked_observation({**shown(), **pictures()}, SPEC)
    assert checked["policy"]["joints"].dtype == torch.float32
    assert checked["policy"]["joints"].tolist() == [0.0, 1.0, 2.0]
    assert checked["camera_obs"]["front"].tolist() == torch.full((2, 2, 3), 7).tolist()
    big_endian = checked_observation(shown(joints=np.arange(3, dtype=">f8")), SPEC)
    assert big_endian["policy"]["joints"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (shown(joints=None), "lacks the arrays of 'policy' 'joints'"),
        (shown(joint=np.zeros(3)), "that are not known: 'joint'; did you mean 'joints'"),
        ({**shown(), "camera": {}}, "groups that are not known: 'camera'"),
        ({"policy": [1, 2]}, "'policy' must hold arrays by name, it is a list"),
        (shown(joints=np.zeros(4)), r"'policy.joints' has shape \(4,\), \(3,\) is due"),
        (shown(joints=np.array([0, np.nan, 0])), "'policy.joints' holds NaN or infinity"),
        (shown(joints=np.array([0, np.inf, 0])), "'policy.joints' holds NaN or infinity"),
        (shown(joints=np.array(["a", "b", "c"])), "'policy.joints' must be an array of numbers, it is an array of <U1"),
        (shown(joints=[1.0, 2.0, 3.0]), "'policy.joints' must be an array of numbers, it is a list"),
        (shown(stage=np.array([2.5])), "'policy.stage' is of type torch.float64, torch.int64 is due"),
        (
            {**shown(), "camera_obs": {"front": np.zeros((3, 2, 2), np.uint8)}},
            r"'camera_obs.front' has shape \(3, 2, 2\)",
        ),
        ({**shown(), "camera_obs": {"front": np.zeros((2, 2, 3))}}, "'camera_obs.front' is of type torch.float64"),
        ({**shown(), "camera_obs": {}}, "lacks the arrays of 'camera_obs' 'front'"),
    ],
)
def test_anything_else_is_refused_by_name(observation, message):
    with pytest.raises(ObservationRefusedError, match=message):
        checked_observation(observation, SPEC)


def test_a_batch_has_zeros_where_nobody_asks_and_no_picture_that_nobody_sent():
    one, other = checked_observation({**shown(), **pictures()}, SPEC), checked_observation(shown(), SPEC)
    batch = batched({1: one, 3: one}, SPEC, 4)
    assert batch["policy"]["joints"].tolist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0], [0, 1, 2]]
    assert batch["camera_obs"]["front"].float().mean(dim=(1, 2, 3)).tolist() == [0, 7, 0, 7]
    some = batched({1: one, 3: other}, SPEC, 4)["camera_obs"]["front"]
    assert some[1].float().mean() == 7
    with pytest.raises(UnannouncedPictureError, match="the served policy looks at 'front' of env slots 3"):
        some[3]
