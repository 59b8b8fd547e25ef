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

import pytest
import torch

from isaaclab_arena.config.schema import MAX_NAME_CHARACTERS
from isaaclab_arena.distributed.devices import draw_on
from isaaclab_arena.environments.catalog import ENVIRONMENTS, METAWORLD_MT10, METAWORLD_MT50
from isaaclab_arena.environments.gym.builder import GymConfig
from isaaclab_arena.environments.gym.env_slots import Failures
from isaaclab_arena.errors import EnvironmentBuildError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_mischief import ID as MISCHIEF_ID
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
        ("gym:CartPol-v1", "`CartPole`?"),
        ("gym:CartPole-v99", "`v99`"),
        ("gym:nowhere/Draw-v0", "my_package:nowhere/Draw-v0"),
        (f"gym:{MODULE}:Fake/Drew-v0", "`Draw`?"),
        ("gym:no_such_module:Draw-v0", "No module named 'no_such_module'"),
        (f"gym:{MODULE}:Fake/Missing-v0", "No module named 'no_such_package'; "),
        (f"gym:{MODULE}:Fake/Limitless-v0", "max_episode_length: is missing"),
    ],
)
def test_an_environment_that_cannot_be_found_is_told_with_the_way_out(name, message):
    assert message in problems(name)


def test_a_worker_says_so_too_and_names_the_interpreter_that_lacks_a_package():
    assert "`CartPole`?" in problems("gym:CartPol-v1", **IN_WORKERS)
    assert re.search(
        f"'no_such_module'.* for {IN_WORKERS['python']}: ", problems("gym:no_such_module:D-v0", **IN_WORKERS)
    )


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"success_key": "success", "success_reward_threshold": 1.0}, "success_reward_threshold"),
        ({"max_episode_length": 0}, "max_episode_length"),
        ({"control_dt": -0.1}, "control_dt"),
        ({"step_timeout_s": float("inf")}, "step_timeout_s"),
        ({"environment_variables": {"MUJOCO_GL": "egl"}}, "environment_variables"),
        *(({"python": python}, f"python: {python!r} ") for python in ("/no/such/python", "/bin/true")),
    ],
)
def test_options_that_make_no_sense_and_programs_that_are_no_interpreters_are_told(options, key):
    assert problems("gym:CartPole-v1", **options).startswith(key)


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


def test_workers_run_in_an_interpreter_below_home_and_draw_on_the_gpu_of_their_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    # It is in the environment after this test, as it was before.
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "")
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$MUJOCO_EGL_DEVICE_ID" > {tmp_path}/noted\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # EGL counts from the other end.
    builder = replace(ENVIRONMENTS.get("gym:CartPole-v1"), draw_on=partial(draw_on, egl_gpus=lambda: [3, 2, 1, 0]))
    config, device = GymConfig(python="~/python"), torch.device("cuda", 1)
    builder.build(config, num_envs=1, device=device, num_threads=1).close()
    assert (tmp_path / "noted").read_text() == "2\n"


def test_what_workers_draw_with_is_said_once_and_kept_and_not_of_workers_that_draw_nothing(caplog):
    caplog.set_level(logging.INFO)
    drawing = {"make_kwargs": {"render_mode": "rgb_array"}, "environment_variables": {"MUJOCO_GL": "egl"}}
    drawing |= {"python": sys.executable}
    for name, options in ((f"gym:{ID}", IN_WORKERS), *[("gym:InvertedPendulum-v5", drawing)] * 2):
        with closing(build(name, **options)) as environment:
            assert environment.provenance().get("MUJOCO_GL") == ("egl" if options is drawing else None)
    [told] = [record.getMessage() for record in caplog.records]
    assert "MUJOCO_GL=egl" in told


def test_an_environment_that_ignores_its_seed_runs_if_one_insists():
    assert not build(make_kwargs={"misbehaviour": "unseeded"}, seeded=False).reproducible
    assert build().reproducible


def test_an_option_of_earlier_versions_is_accepted_and_said_to_have_no_effect(caplog):
    caplog.set_level(logging.INFO)
    with closing(build(steps_per_message=7)) as environment:
        assert environment.num_envs == 1
    assert "steps_per_message 7 has no effect" in caplog.text


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
        ("print", SOLVED),
        ("move", SOLVED),
        ("steal signals", SOLVED),
        ("doubles", SOLVED),
        ("numpy success", SOLVED),
        ("success in an array", SOLVED),
        ("discrete action", SOLVED),
        ("dict action", SOLVED),
        ("tuple action", SOLVED),
        ("unbounded action", SOLVED),
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
    for slot, line in (*((slot, 7) for slot in range(12)), (3, 8)):
        failures.tell(f"env slot {slot}", f"Traceback:\n  line {line}\nRuntimeError: renderer {slot} lost")
    first, tenth, other = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "env slot 0: Traceback:\n  line 7" in first
    assert "Traceback" not in tenth
    assert "10 times" in tenth
    assert "env slot 3: Traceback:\n  line 8" in other


def test_an_environment_that_raises_while_it_is_made_in_this_process_is_named():
    with pytest.raises(EnvironmentBuildError, match=r"Mischief/Env-v0' .* StorageError: no disk"):
        build(NAME, make_kwargs={"mischief": StorageError("no disk")})


# Tasks of robosuite run in workers, with what robomimic's users expect of them; a stand-in has robosuite's names.

ROOT = Path(__file__).parents[3]
VARIABLES = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/environments/elsewhere"}
IN_ROBOSUITE: dict[str, Any] = {"python": preloaded_python(), "environment_variables": VARIABLES}
CAMERAS = {"enable_cameras": True, "cameras": ("agentview",), "camera_size": 6}


@pytest.mark.parametrize(("name", "steps", "numbers"), [("Lift", 400, 7), ("TwoArmLift", 1000, 14)])
def test_a_task_has_robomimics_horizon_if_it_knows_it_robosuites_actions_and_follows_from_its_seed(
    name, steps, numbers
):
    with closing(build(f"robosuite:{name}", **IN_ROBOSUITE)) as environment:
        assert (environment.max_episode_length, environment.control_dt) == (steps, 0.05)
        assert environment.action_spec.shape == (numbers,)
        first, other, again = (environment.reset(torch.tensor([0]), [{"gym.seed": seed}]) for seed in (3, 4, 3))
        assert set(first) == {"policy"}
        assert {"robot0_eef_pos", "robot0_gripper_qpos", "cube_pos", "object"} <= set(first["policy"])
        assert not any(name.endswith("-state") for name in first["policy"])
        places = [each["policy"]["object"].tolist() for each in (first, other, again)]
        assert places[0] == places[2] != places[1]
        assert not environment.step(torch.zeros(1, numbers)).success


def test_pictures_stand_upright_and_those_that_nobody_looks_at_are_not_drawn():
    with closing(build("robosuite:Lift", **CAMERAS, **IN_ROBOSUITE)) as environment:
        environment.reset(torch.tensor([0]), [{"gym.seed": 5}])
        for announced in ([], [], [0]):
            environment.draw_pictures_of(announced)
            shown = environment.step(torch.full((1, 7), 0.1)).observation["camera_obs"]["agentview_image"]
        assert environment.pictures_drawn == 2
        assert shown[0].shape == (6, 6, 3)
        assert shown[0][-1].any()
        assert not shown[0][:-1].any()
    with closing(build("robosuite:Lift", enable_cameras=True, camera_size=6, **IN_ROBOSUITE)) as environment:
        pictures = environment.observation_spec["camera_obs"]
        assert isinstance(pictures, dict)
        assert set(pictures) == {"agentview_image", "robot0_eye_in_hand_image"}


def test_tasks_are_played_in_the_same_worker_as_in_workers_of_their_own():
    assert_tasks_share_a_worker("robosuite:Lift", "robosuite:Stack", {"gym.seed": 5}, **CAMERAS, **IN_ROBOSUITE)


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
        ("robosuite:Lift", {"python": None, "environment_variables": {}}, "robosuite==1.5.2 mujoco==3.3.2"),
        ("robosuite:Lift", {"environment_variables": {}}, "'robosuite'.*robosuite==1.5.2 mujoco==3.3.2"),
    ],
)
def test_what_robosuite_does_not_have_or_is_not_is_told_with_the_way_out(name, options, told):
    assert re.search(told, problems(name, **{**IN_ROBOSUITE, **options}))


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is not None, reason="Meta-World is installed")
def test_meta_world_missing_is_told_with_how_to_install_it():
    assert "pip install --no-deps metaworld==3.1.1" in problems("metaworld:reach-v3")
    told = problems("metaworld:reach-v3", **IN_WORKERS)
    assert f"for {IN_WORKERS['python']}: pip install metaworld==3.1.1" in told


@pytest.mark.parametrize("suite", [METAWORLD_MT10, METAWORLD_MT50], ids=["mt10", "mt50"])
def test_tasks_of_a_suite_are_environments_whose_labels_leave_room_in_a_name(suite):
    tasks = suite.tasks({})
    assert len({task.label for task in tasks}) == len(tasks) == {METAWORLD_MT10: 10, METAWORLD_MT50: 50}[suite]
    assert all(task.environment in ENVIRONMENTS for task in tasks)
    assert max(len(task.label) for task in tasks) <= MAX_NAME_CHARACTERS // 2
    assert set(METAWORLD_MT10.names) < set(METAWORLD_MT50.names)
