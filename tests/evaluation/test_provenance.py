"""Software, machine and sources that a run records."""

import gc
import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from yaml.resolver import BaseResolver

from isaaclab_arena.environments.tasks.grasping import REACH
from isaaclab_arena.evaluation.job import ContentReader, modules_of, modules_of_object, provenance_on, source_files
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from tests.evaluation.jobs import coin_job
from tests.fakes import CoinBuilder, CoinConfig, ShrugPolicy


def test_versions_are_read_once_however_often_they_are_asked_for():
    script = (
        "import sys; from isaaclab_arena.storage.contents import versions; opened = []; "
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None); "
        "versions(); once = sum('METADATA' in name for name in opened); "
        "versions(); print(once > 0, sum('METADATA' in name for name in opened) == once)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "True"]


def test_here_and_now_there_are_versions_a_processor_and_a_device():
    here = provenance_on(torch.device("cpu"))
    assert {"python", "torch", "mujoco", "numpy", "cpu", "platform"} <= here.keys()
    assert here["device"] == "cpu"


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


def test_what_an_import_cannot_be_read_from_counts_by_itself(package):
    module = importlib.import_module("package_of_a_stranger.policy")
    (package / "policy.py").write_text("this is no Python (")
    assert list(source_files(modules_of(module.Policy))) == ["package_of_a_stranger.policy"]


def test_classes_of_this_package_have_no_source_of_their_own():
    assert modules_of(ZeroActionPolicy) == []
    assert modules_of_object(REACH) == []
    assert modules_of(ShrugPolicy) == ["tests.fakes"]


def test_an_object_is_its_class_and_the_functions_that_it_is_made_of():
    def make_task():
        return None

    builder = CoinBuilder()
    builder.make_task = make_task  # pyright: ignore[reportAttributeAccessIssue]  as builders have it
    assert modules_of_object(builder) == ["tests.fakes", __name__]


def test_a_class_that_serves_as_a_builder_is_what_its_attributes_are_made_of():
    builder = type("Builder", (ShrugPolicy,), {"config_class": CoinConfig, "build": staticmethod(coin_job)})
    assert modules_of_object(builder) == ["tests.fakes", "tests.evaluation.jobs"]


class ReadsYaml(ShrugPolicy, BaseResolver):
    """Derives from a class of an installed package."""


def test_installed_packages_are_told_from_ones_own_files():
    found = ContentReader().read(coin_job(policy_class=ReadsYaml)).policy
    assert {"package yaml", "module tests.fakes", f"module {__name__}"} <= found.keys()
    assert not any(name.startswith("module yaml") or name == "package tests" for name in found)


class Lingering:
    """Part of a cycle, so that garbage collection runs Python in the middle of whatever a thread does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        """Take long enough for another thread to have its turn."""
        for _ in range(50):
            pass


def test_threads_may_look_for_sources_at_once():
    before, interval = gc.get_threshold(), sys.getswitchinterval()

    def look(_: int) -> list[str]:
        Lingering()
        return list(source_files(["tests.fakes"]))

    try:
        gc.set_threshold(20)
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(look, range(15)))
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)
    assert all(each == found[0] for each in found)
