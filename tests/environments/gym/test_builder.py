"""What is wrong with an environment made elsewhere is told before anything runs."""

import importlib.util
import logging
import re
import sys
from functools import partial
from typing import Any

import pytest
import torch

from isaaclab_arena.config.options import read_options
from isaaclab_arena.distributed.devices import draw_on
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.builder import GymBuilder, GymConfig
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS, build

PLACES = pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
MODULE = ID.partition(":")[0]


def problems(name: str, **options) -> str:
    builder = ENVIRONMENTS.get(name)
    with pytest.raises(ConfigError) as caught:
        builder.check(read_options(builder.config_class, options, owner="environment"))
    return str(caught.value)


def test_a_scheme_makes_a_name_known_without_listing_it():
    assert "gym:Ant-v5" in ENVIRONMENTS
    assert "gym:Ant-v5" not in ENVIRONMENTS.names()
    assert "gymnasium:Ant-v5" not in ENVIRONMENTS
    assert ENVIRONMENTS.patterns() == ["gym:...", "metaworld:...", "libero:...", "robosuite:...", "vla_eval:..."]


@PLACES
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:CartPol-v1", "environment: Environment `CartPol` doesn't exist. Did you mean: `CartPole`?"),
        ("gym:CartPole-v99", "Environment version `v99` for environment `CartPole` doesn't exist."),
        ("gym:nowhere/Draw-v0", "The module that registers it stands before a colon: my_package:nowhere/Draw-v0"),
        (f"gym:{MODULE}:Fake/Drew-v0", "Environment `Drew` doesn't exist in namespace Fake. Did you mean: `Draw`?"),
        ("gym:no_such_module:Draw-v0", "No module named 'no_such_module'"),
        (f"gym:{MODULE}:Fake/Missing-v0", "No module named 'no_such_package'; "),
        (f"gym:{MODULE}:Fake/Limitless-v0", "max_episode_length: is missing: "),
    ],
)
def test_an_environment_that_cannot_be_found_is_told_with_the_way_out(place, name, message):
    assert message in problems(name, **place)


def test_the_interpreter_has_to_exist():
    assert problems("gym:CartPole-v1", python="/no/such/python") == (
        "python: '/no/such/python' is no program that can be run; name an interpreter"
    )


def test_the_interpreter_may_lie_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    build("gym:CartPole-v1", python="~/python").close()


def test_a_program_that_is_no_interpreter_is_told():
    told = problems("gym:CartPole-v1", python="/bin/true")
    assert told.startswith("python: '/bin/true' cannot be used: the worker died with exit code 0")
    assert told.endswith("name a Python that has the packages of 'gym:'")


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
def test_an_environment_that_ignores_its_seed_is_refused(place):
    wanted = {"misbehaviour": "unseeded"}
    with pytest.raises(EnvironmentBuildError, match="starts differently from the same seed"):
        build(make_kwargs=wanted, **place)


def test_an_environment_that_ignores_its_seed_runs_if_one_insists():
    environment = build(make_kwargs={"misbehaviour": "unseeded"}, seeded=False)
    assert not environment.reproducible
    assert build().reproducible


@PLACES
def test_arguments_that_the_maker_does_not_take_are_told(place):
    with pytest.raises(EnvironmentBuildError, match="unexpected keyword argument 'colour'"):
        build(make_kwargs={"colour": "red"}, **place)


@PLACES
def test_an_environment_that_cannot_be_reset_is_told(place):
    with pytest.raises(Exception, match="no floor"):
        build(make_kwargs={"misbehaviour": "bad_reset"}, **place)


def test_what_workers_draw_with_is_said_once_and_kept(caplog):
    caplog.set_level(logging.INFO)
    wanted: dict[str, Any] = {
        "make_kwargs": {"render_mode": "rgb_array"},
        "environment_variables": {"MUJOCO_GL": "egl"},
    }
    for _ in range(2):
        environment = build("gym:InvertedPendulum-v5", python=sys.executable, **wanted)
        environment.close()
        assert environment.provenance()["MUJOCO_GL"] == "egl"
    told = [record.getMessage() for record in caplog.records]
    assert told == ["workers draw with MUJOCO_GL=egl: as the variable says"]


def test_of_workers_that_draw_nothing_it_is_not_said_what_draws():
    environment = build(**IN_WORKERS)
    environment.close()
    assert "MUJOCO_GL" not in environment.provenance()


def test_spaces_that_are_not_supported_are_told():
    with pytest.raises(EnvironmentBuildError, match=r"observations in Tuple.* are not supported"):
        build("gym:Blackjack-v1", max_episode_length=10)


def test_a_task_that_meta_world_does_not_have_is_told():
    pytest.importorskip("metaworld", reason="Meta-World is not installed")
    assert re.search("has no task 'reach-v9'; it has .*reach-v3", problems("metaworld:reach-v9"))


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is not None, reason="Meta-World is installed")
def test_meta_world_missing_is_told_with_how_to_install_it():
    assert "packaging && pip install --no-deps metaworld==3.1.1" in problems("metaworld:reach-v3")
    told = problems("metaworld:reach-v3", **IN_WORKERS)
    assert f"for {IN_WORKERS['python']}: pip install metaworld==3.1.1 packaging" in told


def test_a_worker_names_the_interpreter_that_lacks_the_package():
    assert f"for {IN_WORKERS['python']}: " in problems("gym:no_such_module:Draw-v0", **IN_WORKERS)


def test_workers_that_draw_are_told_which_gpu_is_their_ranks(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    # EGL counts from the other end.
    draw = partial(draw_on, egl_gpus=lambda: [3, 2, 1, 0])
    noted = tmp_path / "noted"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$MUJOCO_EGL_DEVICE_ID" > {noted}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    builder = GymBuilder(config_class=GymConfig, kind="gym", name="CartPole-v1", install_hint="", draw_on=draw)
    try:
        device = torch.device("cuda", 1)
        builder.build(GymConfig(python=str(python)), num_envs=1, device=device, num_threads=1).close()
    finally:
        monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    assert noted.read_text() == "2\n"
