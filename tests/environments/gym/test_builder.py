"""Environments made elsewhere by name, and those that misbehave."""

import importlib.util
import logging
import re
import signal
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.distributed.devices import draw_on
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.builder import GymConfig, RobosuiteConfig
from isaaclab_arena.environments.gym.env_slots import Failures
from isaaclab_arena.errors import EnvironmentBuildError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_mischief import ID as MISCHIEF_ID
from tests.environments.gym.gym_mischief import MischiefEnvironment
from tests.environments.gym.gym_running import IN_WORKERS, Trace, assert_tasks_share_a_worker, build, problems, run
from tests.preloaded.interpreter import preloaded_python

# What is wrong with an environment made elsewhere is told before anything runs.

PLACES = pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
MODULE = ID.partition(":")[0]


def test_a_scheme_makes_a_name_known_without_listing_it():
    assert "gym:Ant-v5" in ENVIRONMENTS
    assert "gym:Ant-v5" not in ENVIRONMENTS.names()
    assert "gymnasium:Ant-v5" not in ENVIRONMENTS
    assert ENVIRONMENTS.patterns() == ["gym:...", "metaworld:...", "libero:...", "robosuite:...", "vla_eval:..."]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:CartPol-v1", "Did you mean: `CartPole`?"),
        ("gym:CartPole-v99", "Environment version `v99`"),
        ("gym:nowhere/Draw-v0", "my_package:nowhere/Draw-v0"),
        (f"gym:{MODULE}:Fake/Drew-v0", "in namespace Fake. Did you mean: `Draw`?"),
        ("gym:no_such_module:Draw-v0", "No module named 'no_such_module'"),
        (f"gym:{MODULE}:Fake/Missing-v0", "No module named 'no_such_package'; "),
        (f"gym:{MODULE}:Fake/Limitless-v0", "max_episode_length: is missing"),
    ],
)
def test_an_environment_that_cannot_be_found_is_told_with_the_way_out(name, message):
    assert message in problems(name)


def test_a_worker_tells_the_same_and_names_the_interpreter_that_lacks_a_package():
    assert "Did you mean: `CartPole`?" in problems("gym:CartPol-v1", **IN_WORKERS)
    told = problems("gym:no_such_module:Draw-v0", **IN_WORKERS)
    assert "No module named 'no_such_module'" in told
    assert f"for {IN_WORKERS['python']}: " in told


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true"])
def test_a_program_that_is_no_interpreter_is_told(python):
    assert problems("gym:CartPole-v1", python=python).startswith(f"python: {python!r} ")


def test_the_interpreter_may_lie_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    build("gym:CartPole-v1", python="~/python").close()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"success_key": "success", "success_reward_threshold": 1.0}, "success_reward_threshold"),
        ({"max_episode_length": 0}, "max_episode_length"),
        ({"control_dt": -0.1}, "control_dt"),
        ({"step_timeout_s": float("inf")}, "step_timeout_s"),
        ({"environment_variables": {"MUJOCO_GL": "egl"}}, "environment_variables"),
    ],
)
def test_options_that_make_no_sense_are_told(options, key):
    assert problems("gym:CartPole-v1", **options).startswith(f"{key}: ")


@PLACES
@pytest.mark.parametrize(
    ("make_kwargs", "message"),
    [
        ({"misbehaviour": "unseeded"}, "differently from the same seed"),
        ({"colour": "red"}, "argument 'colour'"),
        ({"misbehaviour": "bad_reset"}, "no floor"),
    ],
)
def test_an_environment_that_cannot_be_made_or_does_not_repeat_is_refused(place, make_kwargs, message):
    with pytest.raises(Exception, match=message):
        build(make_kwargs=make_kwargs, **place)


def test_as_many_env_slots_pay_as_keep_the_workers_cores_busy_and_that_is_said(caplog):
    builder = ENVIRONMENTS.get(f"gym:{ID}")
    caplog.set_level("INFO")
    assert builder.paying_num_envs(builder.config_class(), num_threads=3) == 1
    assert not caplog.messages
    config = builder.config_class(**IN_WORKERS, envs_per_worker=2)
    assert builder.paying_num_envs(config, num_threads=3) == 6
    assert "num_envs auto: up to 6, 2 for each core" in caplog.text


def test_an_environment_that_ignores_its_seed_runs_if_one_insists():
    assert not build(make_kwargs={"misbehaviour": "unseeded"}, seeded=False).reproducible
    assert build().reproducible


def test_an_option_of_earlier_versions_is_accepted_and_said_to_have_no_effect(caplog):
    caplog.set_level(logging.INFO)
    with closing(build(steps_per_message=7)) as environment:
        assert environment.num_envs == 1
    assert "steps_per_message 7 has no effect" in caplog.text


def test_what_workers_draw_with_is_said_once_and_kept(caplog):
    caplog.set_level(logging.INFO)
    variables: dict[str, Any] = {
        "make_kwargs": {"render_mode": "rgb_array"},
        "environment_variables": {"MUJOCO_GL": "egl"},
    }
    for _ in range(2):
        environment = build("gym:InvertedPendulum-v5", python=sys.executable, **variables)
        environment.close()
        assert environment.provenance()["MUJOCO_GL"] == "egl"
    [told] = [record.getMessage() for record in caplog.records]
    assert "MUJOCO_GL=egl" in told
    # Of workers that draw nothing it is not said.
    environment = build(**IN_WORKERS)
    environment.close()
    assert "MUJOCO_GL" not in environment.provenance()


def test_workers_that_draw_are_told_which_gpu_is_their_ranks(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    # EGL counts from the other end.
    draw = partial(draw_on, egl_gpus=lambda: [3, 2, 1, 0])
    noted = tmp_path / "noted"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$MUJOCO_EGL_DEVICE_ID" > {noted}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    builder = replace(ENVIRONMENTS.get("gym:CartPole-v1"), draw_on=draw)
    try:
        device = torch.device("cuda", 1)
        builder.build(GymConfig(python=str(python)), num_envs=1, device=device, num_threads=1).close()
    finally:
        monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    assert noted.read_text() == "2\n"


# Whatever an environment made elsewhere does wrong is an error of its episode, or refused, and no success.

NAME = f"gym:{MISCHIEF_ID}"
SOLVED = (Outcome.SUCCESS, 3)


@pytest.fixture
def _where_it_was(monkeypatch):
    monkeypatch.chdir(Path.cwd())
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("_where_it_was")
@pytest.mark.parametrize(
    ("mischief", "end"),
    [
        ("", SOLVED),
        ("print", SOLVED),
        ("move", SOLVED),
        ("steal signals", SOLVED),
        ("doubles", SOLVED),
        ("numpy success", SOLVED),
        ("success in an array", SOLVED),
        ("discrete action", SOLVED),
        ("dict action", SOLVED),
        ("tuple action", SOLVED),
        ("one step", (Outcome.SUCCESS, 1)),
        ("both ends", SOLVED),
        ("leave", (Outcome.ERROR, 2)),
        ("words", (Outcome.ERROR, 2)),
        ("two successes", (Outcome.ERROR, 3)),
        ("success in words", (Outcome.ERROR, 3)),
        ("no success", (Outcome.ERROR, 3)),
    ],
)
def test_an_environment_of_mischief_costs_at_most_its_own_episodes_and_gains_none(mischief, end):
    records = run(NAME, num_envs=2, num_episodes=3, make_kwargs={"mischief": mischief}, success_key="success")
    assert [(record.outcome, record.length) for record in records.values()] == [end] * 3


@pytest.mark.parametrize(
    ("name", "mischief"), [(NAME, "text action"), (NAME, "sequence observation"), ("gym:Blackjack-v1", None)]
)
def test_spaces_that_have_no_flat_form_are_refused_by_name(name, mischief):
    with pytest.raises(EnvironmentBuildError, match=rf"{name.rpartition(':')[2]}' .*not supported"):
        build(name, make_kwargs={"mischief": mischief} if mischief else {}, max_episode_length=10)


def test_an_environment_in_this_process_is_made_with_the_arguments_themselves_and_named_if_it_raises(monkeypatch):
    made, make = [], MischiefEnvironment.__init__

    def keep(self, mischief):
        made.append(mischief)
        if mischief == "fail":
            raise StorageError("no disk")
        make(self)

    monkeypatch.setattr(MischiefEnvironment, "__init__", keep)
    given = object()
    build(NAME, make_kwargs={"mischief": given}).close()
    assert made == [given]
    with pytest.raises(EnvironmentBuildError, match=r"Mischief/Env-v0' .* StorageError: no disk"):
        build(NAME, make_kwargs={"mischief": "fail"})


def test_an_action_space_without_bounds_has_none_and_is_clipped_by_nobody():
    assert build(NAME, make_kwargs={"mischief": "unbounded action"}).action_spec.low is None


@pytest.mark.parametrize(
    ("mischief", "group", "shape"),
    [("float picture", "policy", (1, 4, 4, 3)), ("empty picture", "camera_obs", (1, 0, 4, 3))],
)
def test_a_picture_of_another_kind_reaches_the_policy_as_it_is_and_is_never_filmed(mischief, group, shape):
    environment = build(NAME, make_kwargs={"mischief": mischief})
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    assert observation[group]["obs"].shape == shape
    assert environment.filmable == ()


def test_an_environment_that_resets_itself_loses_neither_its_last_observation_nor_its_success():
    plain, automatic = Trace(), Trace()
    run(NAME, num_envs=2, observer=plain, success_key="success")
    records = run(NAME.replace("Env-v0", "Automatic-v0"), num_envs=2, observer=automatic, success_key="success")
    assert automatic.steps == plain.steps
    assert {record.outcome for record in records.values()} == {Outcome.SUCCESS}


def test_a_traceback_is_logged_once_and_then_counted(caplog):
    failures = Failures("Arm-v0")
    for slot in range(12):
        failures.tell(f"env slot {slot}", f"Traceback:\n  line 7\nRuntimeError: renderer {slot} lost")
    failures.tell("env slot 3", "Traceback:\n  line 8\nRuntimeError: renderer 3 lost")
    first, tenth, other = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "env slot 0: Traceback:\n  line 7\nRuntimeError: renderer 0 lost" in first
    assert "Traceback" not in tenth
    assert "10 times" in tenth
    assert "env slot 3: Traceback:\n  line 8\n" in other


# Tasks of robosuite run in workers, with what robomimic's users expect of them; a stand-in has robosuite's names.

ROOT = Path(__file__).parents[3]
VARIABLES = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/environments/elsewhere"}
IN_ROBOSUITE: dict[str, Any] = {"python": preloaded_python(), "environment_variables": VARIABLES}
CAMERAS = {"enable_cameras": True, "cameras": ("agentview",), "camera_size": 6}


def first(environment, seed: int = 5):
    return environment.reset(torch.tensor([0]), [{"gym.seed": seed}])


def test_a_task_has_robomimics_horizon_rate_and_observations_and_follows_from_its_seed():
    environment = build("robosuite:Lift", **IN_ROBOSUITE)
    observation = first(environment)
    assert (environment.max_episode_length, environment.control_dt) == (400, 0.05)
    assert environment.action_spec.shape == (7,)
    assert set(observation) == {"policy"}
    assert {"robot0_eef_pos", "robot0_gripper_qpos", "cube_pos", "object"} <= set(observation["policy"])
    assert not any(name.endswith("-state") for name in observation["policy"])
    again = [first(environment, seed)["policy"]["object"][0].tolist() for seed in (3, 4, 3)]
    assert again[0] == again[2] != again[1]
    environment.close()


def test_a_task_that_robomimic_does_not_have_has_robosuites_horizon_and_two_arms_get_two_pandas():
    environment = build("robosuite:TwoArmLift", **IN_ROBOSUITE)
    assert environment.max_episode_length == 1000
    assert environment.action_spec.shape == (14,)
    environment.close()


def test_pictures_stand_upright_and_those_that_nobody_looks_at_are_not_drawn():
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
    assert shown[1, 8].shape == (6, 6, 3)
    assert not shown[1, 8][:-1].any()
    assert shown[1, 8][-1].any()


def test_tasks_are_played_in_the_same_worker_as_in_workers_of_their_own():
    assert_tasks_share_a_worker("robosuite:Lift", "robosuite:Stack", {"gym.seed": 5}, **CAMERAS, **IN_ROBOSUITE)


def test_success_is_what_the_task_says():
    records = run("robosuite:Lift", num_episodes=2, max_episode_length=5, **IN_ROBOSUITE)
    assert {record.outcome for record in records.values()} == {Outcome.TIMEOUT}


def test_arguments_of_ones_own_reach_robosuite():
    with pytest.raises(Exception, match="seed"):
        build("robosuite:Lift", make_kwargs={"seed": "a word"}, **IN_ROBOSUITE)


def test_a_camera_costs_nothing_unless_cameras_are_enabled():
    assert RobosuiteConfig().maker_arguments()["cameras"] == []
    assert RobosuiteConfig(enable_cameras=True).maker_arguments()["cameras"] == ["agentview", "robot0_eye_in_hand"]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("robosuite:Lfit", {}, "environment: .*'Lfit'; did you mean 'Lift'"),
        ("robosuite:Lift", {"robots": ["Pander"]}, "robots: .*'Pander'; did you mean 'Panda'"),
        ("robosuite:Lift", {"camera_size": 0}, "camera_size"),
        (
            "robosuite:Lift",
            {"environment_variables": {**VARIABLES, "FAKE_ROBOSUITE_VERSION": "1.4.0"}},
            f"robosuite 1.4.0 .*for {re.escape(preloaded_python())}: pip install robosuite==1.5.2",
        ),
        ("robosuite:Lift", {"python": None, "environment_variables": {}}, "pip install robosuite==1.5.2 mujoco==3.3.2"),
        ("robosuite:Lift", {"environment_variables": {}}, "'robosuite'.*pip install robosuite==1.5.2 mujoco==3.3.2"),
    ],
)
def test_what_robosuite_does_not_have_or_is_not_is_told_with_the_way_out(name, options, told):
    assert re.search(told, problems(name, **{**IN_ROBOSUITE, **options}))


def test_a_task_that_meta_world_does_not_have_is_told():
    pytest.importorskip("metaworld", reason="Meta-World is not installed")
    assert re.search("'reach-v9'; it has .*reach-v3", problems("metaworld:reach-v9"))


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is not None, reason="Meta-World is installed")
def test_meta_world_missing_is_told_with_how_to_install_it():
    assert "pip install --no-deps metaworld==3.1.1" in problems("metaworld:reach-v3")
    told = problems("metaworld:reach-v3", **IN_WORKERS)
    assert f"for {IN_WORKERS['python']}: pip install metaworld==3.1.1" in told
