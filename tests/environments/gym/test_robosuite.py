"""Tasks of robosuite run in workers, with what robomimic's users expect of them; a stand-in has robosuite's names."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.gym.builder import RobosuiteConfig
from isaaclab_arena.environments.gym.env_slots import EnvSlots
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.workers import spare_workers_kept
from tests.environments.gym.gym_running import build, run
from tests.environments.gym.test_builder import problems

ROOT = Path(__file__).parents[3]
VARIABLES = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/environments/elsewhere"}
IN_ROBOSUITE: dict[str, Any] = {"python": sys.executable, "environment_variables": VARIABLES}
CAMERAS = {"enable_cameras": True, "cameras": ("agentview",), "camera_size": 6}


def first(environment, seed: int = 5):
    return environment.reset(torch.tensor([0]), [{"gym.seed": seed}])


def test_a_task_has_robomimics_horizon_rate_and_observations():
    environment = build("robosuite:Lift", **IN_ROBOSUITE)
    observation = first(environment)
    assert (environment.max_episode_length, environment.control_dt) == (400, 0.05)
    assert environment.action_spec.shape == (7,)
    assert set(observation) == {"policy"}
    assert {"robot0_eef_pos", "robot0_gripper_qpos", "cube_pos", "object"} <= set(observation["policy"])
    assert not any(name.endswith("-state") for name in observation["policy"])
    environment.close()


def test_a_task_that_robomimic_does_not_have_has_robosuites_horizon_and_two_arms_get_two_pandas():
    environment = build("robosuite:TwoArmLift", **IN_ROBOSUITE)
    assert environment.max_episode_length == 1000
    assert environment.action_spec.shape == (14,)
    environment.close()


def test_pictures_stand_upright_and_only_where_they_are_asked_for():
    environment = build("robosuite:Lift", **CAMERAS, **IN_ROBOSUITE)
    picture = first(environment)["camera_obs"]["agentview_image"][0].numpy()
    assert picture.shape == (6, 6, 3)
    assert not picture[:-1].any()
    assert picture[-1].any()
    environment.close()


def test_pictures_that_nobody_looks_at_are_not_drawn_and_the_others_are_the_same():
    shown = {}
    for period in (1, 4):
        environment = build("robosuite:Lift", **CAMERAS, **IN_ROBOSUITE)
        first(environment)
        for number in range(1, 9):
            environment.draw_pictures_of([0] if number % period == 0 else [])
            step = environment.step(torch.full((1, 7), 0.1 * number))
            if number % 4 == 0:
                shown[period, number] = step.observation["camera_obs"]["agentview_image"][0].numpy()
        shown[period, "drawn"] = environment.pictures_drawn
        environment.close()
    assert (shown[1, "drawn"], shown[4, "drawn"]) == (9, 3)
    assert all(np.array_equal(shown[1, number], shown[4, number]) for number in (4, 8))
    assert not np.array_equal(shown[1, 4], shown[1, 8])


def test_an_episode_follows_from_its_seed_whatever_ran_before():
    environment = build("robosuite:Stack", **IN_ROBOSUITE)
    again = [first(environment, seed)["policy"]["object"][0].tolist() for seed in (3, 4, 3)]
    assert again[0] == again[2] != again[1]
    environment.close()


def test_tasks_are_played_in_the_same_worker_as_in_workers_of_their_own():
    def started(task: str) -> tuple[int, dict[str, bytes]]:
        environment = build(f"robosuite:{task}", **CAMERAS, **IN_ROBOSUITE)
        observation = first(environment)
        assert isinstance(environment._slots, EnvSlots)
        process = environment._slots.workers[0].process
        assert process is not None
        shown = {**observation["policy"], **observation["camera_obs"]}
        found = process.pid, {name: values.numpy().tobytes() for name, values in shown.items()}
        environment.close()
        return found

    expected = [started(task)[1] for task in ("Lift", "Stack")]
    with spare_workers_kept():
        found = [started(task) for task in ("Lift", "Stack", "Lift")]
    assert len({pid for pid, _ in found}) == 1
    assert [observed for _, observed in found] == [*expected, expected[0]]


def test_success_is_what_the_task_says():
    records = run("robosuite:Lift", policy=RandomActionPolicy(), max_episode_length=5, **IN_ROBOSUITE)
    assert {record.outcome for record in records.values()} == {Outcome.TIMEOUT}


def test_arguments_of_ones_own_reach_robosuite():
    with pytest.raises(Exception, match="seed"):
        build("robosuite:Lift", make_kwargs={"seed": "a word"}, **IN_ROBOSUITE)


def test_a_camera_costs_nothing_unless_cameras_are_enabled():
    assert RobosuiteConfig().maker_arguments()["cameras"] == []
    assert RobosuiteConfig(enable_cameras=True).maker_arguments()["cameras"] == ["agentview", "robot0_eye_in_hand"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("robosuite:Lfit", {}, "environment: robosuite has no task 'Lfit'; did you mean 'Lift'?"),
        ("robosuite:Lift", {"robots": ["Pander"]}, "robots: robosuite has no robot 'Pander'; did you mean 'Panda'?"),
        ("robosuite:Lift", {"camera_size": 0}, "camera_size"),
    ],
)
def test_what_robosuite_does_not_have_is_told_with_a_suggestion(name, options, message):
    assert message in problems(name, **options, **IN_ROBOSUITE)


def test_another_version_is_told_with_the_interpreter_and_the_way_out():
    variables = {**VARIABLES, "FAKE_ROBOSUITE_VERSION": "1.4.0"}
    told = problems("robosuite:Lift", python=sys.executable, environment_variables=variables)
    assert "robosuite 1.4.0 is installed, and 1.5.2 is needed" in told
    assert f"for {sys.executable}: pip install robosuite==1.5.2" in told


@pytest.mark.parametrize("place", [{}, {"python": sys.executable}], ids=["here", "in_workers"])
def test_robosuite_missing_is_told_with_how_to_install_it(place):
    told = problems("robosuite:Lift", **place)
    assert "No module named 'robosuite'" in told
    assert "pip install robosuite==1.5.2 mujoco==3.3.2 gymnasium" in told
