"""The directory of a run, and the contents it was planned with."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from yaml.resolver import BaseResolver

from isaaclab_arena.environments.catalog import CUBE, OBJECTS
from isaaclab_arena.environments.tasks.grasping import REACH
from isaaclab_arena.evaluation.job import (
    ContentReader,
    contents_of_jobs,
    modules_of,
    modules_of_object,
    source_files,
)
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from isaaclab_arena.sim.scene import ASSETS
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, changes, content_hash
from isaaclab_arena.storage.ledger import make_output_directory
from tests.environments.six_axis import DESCRIPTION, MJCF
from tests.evaluation.jobs import coin_job, config_of
from tests.fakes import ShrugPolicy


def test_a_way_up_in_a_name_makes_no_directory_on_the_way_and_leads_where_a_link_leads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_output_directory(output_dir="a/nodir/../../b", output_base_dir="") == tmp_path / "b"
    assert make_output_directory(output_dir=None, output_base_dir="c/../d").parent == tmp_path / "d"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]
    (tmp_path / "b" / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "b" / "inner")
    assert make_output_directory(output_dir="link/../out", output_base_dir="") == tmp_path / "b" / "out"


CARTPOLE = Path("models/cartpole")


def contents(environment: str, policy_type: str = "zero_action", **options: Any) -> Contents:
    arguments = options.pop("environment_args", {})
    config = config_of(environment, policy_type, environment_args=arguments, policy_config_dict=options, num_envs=1)
    return contents_of_jobs(resolve_jobs([config]))["a"]


def test_a_job_is_known_by_its_checkpoint_configuration_motion_and_saved_conditions(tmp_path):
    assert contents("cartpole") == Contents()
    found = contents("cartpole", "rsl_rl", checkpoint_path=str(CARTPOLE))
    assert found.checkpoint is not None
    assert Path(found.checkpoint).parent == CARTPOLE
    assert sorted(name.partition(" ")[0] for name in found.policy) == ["agent_cfg_path", "checkpoint_path"]
    motion = tmp_path / "motion.csv"
    motion.write_bytes((ASSETS / "motions" / "squat_and_wave.csv").read_bytes())
    found = contents("track_motion", environment_args={"motion_file": str(motion)})
    assert list(found.environment) == ["motion_file motion.csv"]
    jobs = [dataclasses.replace(coin_job("a"), saved_conditions=({"coin.x": value},)) for value in (0.5, 0.6)]
    one, other = (contents_of_jobs([job])["a"].environment[SAVED_CONDITIONS] for job in jobs)
    assert one != other


def test_secrets_are_not_hashed_into_the_output_of_a_run(tmp_path):
    (tmp_path / "token").write_text("secret")
    job = dataclasses.replace(coin_job("a"), policy_options={"remote_api_token_file": str(tmp_path / "token")})
    assert not any("token" in name for name in contents_of_jobs([job])["a"].policy)


def test_a_gymnasium_environment_of_ones_own_is_known_by_its_source_also_in_another_interpreter():
    elsewhere = {"python": sys.executable, "environment_variables": {"PYTHONPATH": str(Path.cwd())}}
    for arguments in ({}, elsewhere):
        environment = "gym:tests.environments.gym.gym_fakes:Fake/Draw-v0"
        found = contents(environment, environment_args=arguments).environment
        assert len(found["module tests.environments.gym.gym_fakes"]) == 64


def test_a_robot_of_ones_own_is_its_description_and_every_file_of_its_model(tmp_path):
    (tmp_path / "six_axis.yaml").write_text(DESCRIPTION)
    (tmp_path / "six_axis.xml").write_text(
        MJCF.replace("<worldbody>", '<include file="parts/more.xml"/><worldbody>', 1)
    )
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "more.xml").write_text("<mujoco><size nuserdata='1'/></mujoco>")
    options = {"embodiment": str(tmp_path / "six_axis.yaml"), "action_mode": "joint_position"}
    before = contents("reach", environment_args=options).environment
    assert list(before) == ["robot six_axis.yaml", "robot parts/more.xml", "robot six_axis.xml"]
    (tmp_path / "parts" / "more.xml").write_text("<mujoco><size nuserdata='2'/></mujoco>")
    now = contents("reach", environment_args=options).environment
    assert [name for name, _ in changes(before, now)] == ["robot parts/more.xml"]


def test_a_module_that_was_edited_since_it_was_imported_is_said_to_run_as_it_was(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    source = "def act(observation):\n    return observation['policy']['cart_pos']\n"
    for text in (source, source + "# edited\n"):
        (tmp_path / "edited_between_runs.py").write_text(text)
        contents("cartpole", "edited_between_runs.act")
    assert caplog.text.count("the imported code runs") == 1


def test_an_object_of_ones_own_is_known_by_its_file_under_the_role_that_it_has_in_the_job(tmp_path, monkeypatch):
    own = tmp_path / "own_cube.xml"
    own.write_bytes((ASSETS / CUBE.asset).read_bytes())
    monkeypatch.setitem(OBJECTS._registered, "own_cube", dataclasses.replace(CUBE, name="own_cube", asset=str(own)))
    before = contents("lift_object", environment_args={"object": "own_cube"}).environment
    assert before == {"object own_cube.xml": content_hash(own)}
    own.write_bytes(own.read_bytes() + b"<!-- edited -->")
    now = contents("lift_object", environment_args={"object": "own_cube"}).environment
    assert [name for name, _ in changes(before, now)] == ["object own_cube.xml"]


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[Path]:
    directory = tmp_path / "package_of_a_stranger"
    (directory / "deep").mkdir(parents=True)
    for name in ("__init__", "deep/__init__", "deep/weights", "lazy", "relative", "nobody"):
        (directory / f"{name}.py").touch()
    (directory / "policy.py").write_text(
        "import json, torch\n"
        "from . import relative\n"
        "from package_of_a_stranger.deep.weights import *\n"
        "import beside_it\n"
        "def late():\n    from package_of_a_stranger import lazy\n"
        "class Base: ...\nclass Policy(Base): ...\n"
    )
    (tmp_path / "beside_it.py").write_text("import package_of_a_stranger.policy\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield directory
    for name in [name for name in sys.modules if name.startswith(("package_of_a_stranger", "beside_it"))]:
        del sys.modules[name]


def test_a_class_is_its_module_and_all_that_this_imports_from_beside_it(package):
    policy = importlib.import_module("package_of_a_stranger.policy").Policy
    found = source_files(modules_of(policy))
    assert list(found) == [
        "beside_it",
        "package_of_a_stranger",
        "package_of_a_stranger.deep",
        "package_of_a_stranger.deep.weights",
        "package_of_a_stranger.lazy",
        "package_of_a_stranger.policy",
        "package_of_a_stranger.relative",
    ]
    assert found["package_of_a_stranger.lazy"] == package / "lazy.py"


def test_classes_of_this_package_have_no_source_of_their_own():
    assert modules_of(ZeroActionPolicy) == []
    assert modules_of_object(REACH) == []
    assert modules_of(ShrugPolicy) == ["tests.fakes"]


class ReadsYaml(ShrugPolicy, BaseResolver):
    """Derives from a class of an installed package."""


def test_installed_packages_are_told_from_ones_own_files():
    found = ContentReader().read(coin_job(policy_class=ReadsYaml)).policy
    assert {"package yaml", "module tests.fakes", f"module {__name__}"} <= found.keys()
    assert not any(name.startswith("module yaml") or name == "package tests" for name in found)
