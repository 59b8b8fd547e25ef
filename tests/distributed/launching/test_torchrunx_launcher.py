"""What is asked of torchrunx, which is not installed here: a fake with its interface stands in for it."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from isaaclab_arena.distributed.rank_processes import Launch, run_ranks_over_torchrunx


class FakeLauncher:
    """Calls the function once per worker, one after the other, in this process."""

    asked: dict[str, Any]

    def __init__(self, **asked: Any) -> None:
        FakeLauncher.asked = asked

    def run(self, function, *arguments):
        codes = [function(*arguments) for _ in range(self.asked["workers_per_host"])]
        return SimpleNamespace(results={"localhost": codes})


class BrokenLauncher(FakeLauncher):
    def run(self, function, *arguments):
        raise RuntimeError({"message": "ValueError: rank 1 has had enough", "extraInfo": {}})


@pytest.fixture
def torchrunx(monkeypatch) -> ModuleType:
    """A module of that name; the program that it starts returns the number on its command line."""
    module, program = ModuleType("torchrunx"), ModuleType("program_of_this_test")
    module.Launcher = FakeLauncher  # pyright: ignore[reportAttributeAccessIssue]
    program.main = lambda arguments: int(arguments[0])  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torchrunx", module)
    monkeypatch.setitem(sys.modules, "program_of_this_test", program)
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.setenv("TORCHRUNX_LOG_DIR", "of the user")
    return module


def launch_of(code: int, **more: Any) -> Launch:
    variables = {"CUDA_VISIBLE_DEVICES": "1,0"}
    return Launch(module="program_of_this_test", arguments=(str(code),), num_processes=2, variables=variables, **more)


def test_torchrunx_is_told_what_to_start_where_its_logs_go_and_to_leave_the_group_alone(torchrunx, tmp_path):
    assert run_ranks_over_torchrunx(launch_of(0, log_directory=tmp_path)) == 0
    asked = FakeLauncher.asked
    assert (asked["hostnames"], asked["workers_per_host"], asked["backend"]) == (["localhost"], 2, None)
    assert asked["extra_env_vars"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert asked["extra_env_vars"]["TORCHELASTIC_RUN_ID"]
    assert os.environ["TORCHRUNX_LOG_DIR"] == str(tmp_path)
    run_ranks_over_torchrunx(launch_of(0, log_directory=tmp_path, wants_files=False))
    assert os.environ["TORCHRUNX_LOG_DIR"] == ""


def test_a_mistake_that_every_rank_finds_keeps_its_exit_code(torchrunx):
    assert run_ranks_over_torchrunx(launch_of(2)) == 2


def test_a_rank_that_fails_is_told_with_what_torchrunx_knows_of_it(torchrunx, monkeypatch, caplog):
    monkeypatch.setattr(torchrunx, "Launcher", BrokenLauncher)
    assert run_ranks_over_torchrunx(launch_of(0)) == 1
    assert "a rank failed: ValueError: rank 1 has had enough" in caplog.text
