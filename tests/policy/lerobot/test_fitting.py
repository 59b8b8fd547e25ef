from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.lerobot_network import Features, LeRobotPolicyCfg, TrainingData
from isaaclab_arena.policy.lerobot_policy import fitted
from tests.gr00t.fakes import LimbEnvironment
from tests.layouts import LAYOUTS

FRONT, STATE = "observation.images.front", "observation.state"
LIMBS = {STATE: ("robot_joint_pos", "fingers")}
NOTHING = TrainingData(terms={}, fps=None)


def features(**case: Any) -> Features:
    """Inputs and outputs of a policy: by default one picture, and actions of the environment's size."""
    usual: dict[str, Any] = {"pictures": {FRONT: (6, 8, 3)}, "states": {}, "action_dim": 5}
    return Features(kind="act", num_observations=1, num_actions=1, remembers=False, **{**usual, **case})


def fit(takes: Features, data: TrainingData = NOTHING, cameras: tuple[str, ...] = ("front", "side"), **options: Any):
    config = LeRobotPolicyCfg(pretrained="policy", **options)
    return fitted(takes, data, config, LimbEnvironment(1, cameras=cameras))


def misfit(*args: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        fit(*args, **options)
    return str(error.value)


def test_a_picture_is_that_of_the_camera_of_its_name_or_that_the_job_names():
    assert fit(features()).cameras == {FRONT: "front"}
    assert fit(features(), images={FRONT: "side"}).cameras == {FRONT: "side"}


def test_a_picture_without_a_name_is_that_of_the_only_camera():
    takes = features(pictures={"observation.image": (6, 8, 3)})
    assert fit(takes, cameras=("front",)).cameras == {"observation.image": "front"}
    assert "images.observation.image: " in misfit(takes)


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_policy_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    environment = LimbEnvironment(2)
    shown = {name: torch.from_numpy(np.stack([lies, lies])) for name in ("front", "side")}
    specs = {name: ArraySpec(shape=lies.shape, dtype=torch.uint8) for name in shown}
    environment.observation_spec = {**environment.observation_spec, "camera_obs": specs}
    inputs = fitted(features(), NOTHING, LeRobotPolicyCfg(pretrained="policy"), environment)
    seen = inputs.seen({"policy": {}, "camera_obs": shown}, [1])
    np.testing.assert_array_equal(seen[FRONT].numpy(), colours[None])


def test_a_policy_of_grey_pictures_is_shown_them_as_they_are():
    environment = LimbEnvironment(1)
    specs = {"front": ArraySpec(shape=(6, 8, 1), dtype=torch.uint8)}
    environment.observation_spec = {**environment.observation_spec, "camera_obs": specs}
    takes = features(pictures={FRONT: (6, 8, 1)})
    assert not fitted(takes, NOTHING, LeRobotPolicyCfg(pretrained="policy"), environment).in_colours


def test_states_are_what_the_job_names_or_else_the_dataset():
    takes, data = features(states={STATE: 6}), TrainingData(terms={STATE: ("fingers", "robot_joint_pos")}, fps=None)
    assert fit(takes, data).terms == {STATE: ("fingers", "robot_joint_pos")}
    assert fit(takes, data, states=LIMBS).terms == LIMBS


def test_one_line_says_what_a_policy_is_shown_and_which_of_its_numbers_are_played():
    options = LeRobotPolicyCfg(pretrained="policy", states=LIMBS, action_columns=(4, 0, 1, 2, 3))
    environment = LimbEnvironment(1)
    inputs = fitted(features(states={STATE: 6}, action_dim=5), NOTHING, options, environment)
    assert str(inputs.connections(options, NOTHING, environment)) == (
        "observation.images.front <- front; observation.state <- robot_joint_pos + fingers; "
        "action[4, 0:4] -> action (wrist to knee)"
    )


def test_what_the_dataset_of_the_training_says_otherwise_is_told():
    environment = LimbEnvironment(1)
    taken = environment.action_spec.names
    assert taken is not None
    data = TrainingData(terms={STATE: ("fingers", "robot_joint_pos")}, fps=None, action_names=taken[::-1])
    options = LeRobotPolicyCfg(pretrained="policy", states=LIMBS)
    inputs = fitted(features(states={STATE: 6}), data, options, environment)
    said, order, action = inputs.connections(options, data, environment, ["the files say no"]).doubts(environment)
    assert said == "the files say no"
    assert order.startswith("its training's dataset forms observation.state of fingers + robot_joint_pos, the job of ")
    assert action.startswith(f"policy has its action in the order {', '.join(taken[::-1])}, the environment takes ")
    columns = LeRobotPolicyCfg(pretrained="policy", action_columns=(4, 3, 2, 1, 0))
    inputs = fitted(features(states={STATE: 6}), data, columns, environment)
    assert inputs.connections(columns, data, environment).doubts(environment) == []


def test_a_state_of_which_nobody_speaks_is_the_only_observation_of_its_size():
    assert fit(features(states={STATE: 4})).terms == {STATE: ("robot_joint_pos",)}
    message = misfit(features(states={STATE: 6}))
    assert "states.observation.state: is missing" in message
    assert "robot_joint_pos 4, fingers 2, nameless 3" in message


@pytest.mark.parametrize(
    ("takes", "options", "message"),
    [
        ({"pictures": {"observation.images.fronts": (6, 8, 3)}}, {}, "'fronts'; did you mean 'front'?"),
        ({}, {"cameras": ()}, "no pictures"),
        ({"pictures": {FRONT: (48, 64, 3)}}, {}, "48 x 64 x 3, and camera 'front'"),
        ({"states": {STATE: 6}}, {"states": {STATE: ("robot_joint_poss",)}}, "did you mean 'robot_joint_pos'?"),
        ({"states": {STATE: 7}}, {"states": LIMBS}, "robot_joint_pos + fingers are 6"),
        (
            {},
            {"images": {"front": "front"}},
            "images.front: ",
        ),
        ({}, {"states": LIMBS}, "states.observation.state: "),
        ({"action_dim": 8}, {}, "8 numbers, the environment's 5"),
        ({}, {"action_columns": (0, 1)}, "action_columns: names 2"),
        ({}, {"action_columns": (0, 1, 2, 3, 5)}, "action_columns: must be 0 to 4"),
        ({"pictures": {FRONT: (8, 6, 3)}}, {}, "8 x 6 x 3, and"),
        ({}, {"fps": 5.0}, "makes 10"),
        ({}, {"fps": 50.0}, "makes 10"),
    ],
)
def test_what_does_not_fit_is_named_with_the_way_out(takes, options, message):
    assert message in misfit(features(**takes), **options)


def test_a_policy_for_another_rate_or_with_a_larger_action_is_played_if_the_job_says_so():
    data = TrainingData(terms={}, fps=50.0)
    assert "fps: 10" in misfit(features(), data)
    fit(features(), data, fps=10.0)
    fit(features(action_dim=8), action_columns=(7, 6, 5, 4, 3))
