"""A module that is put off is executed when something of it is used, and not before."""

import importlib
import sys
from collections.abc import Iterator

import pytest

from isaaclab_arena.policy.lerobot_worker import deferred_imports

HEAVY = """
class Robot:
    arms = 2

    def __init__(self, name):
        self.name = name
"""
LIGHT = """
from sky.heavy.robots import Robot

def made(name: Robot | None = None):
    return Robot(name).name

def arms():
    return Robot.arms

def is_robot(thing):
    return isinstance(thing, Robot)
"""
HASTY = "from sky.heavy.robots import Robot\nROBOT = Robot('R2')\n"


@pytest.fixture(autouse=True)
def sky(tmp_path, monkeypatch) -> Iterator[None]:
    """A package whose light part imports its heavy part."""
    (tmp_path / "sky" / "heavy").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "heavy/__init__": "",
        "heavy/robots": HEAVY,
        "light": LIGHT,
        "hasty": HASTY,
    }.items():
        (tmp_path / "sky" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "sky"]:
        del sys.modules[name]


def imported_without_heavy(name: str):
    with deferred_imports(["sky.heavy"]):
        return importlib.import_module(name)


def test_it_is_executed_when_something_of_it_is_used():
    light = imported_without_heavy("sky.light")
    assert not light.is_robot("R2")
    assert not any(name.startswith("sky.heavy") for name in sys.modules)
    assert not hasattr(sys.modules["sky"], "heavy")
    assert light.made("R2") == "R2"
    assert light.arms() == 2
    assert sys.modules["sky.heavy.robots"].Robot("C3").name == "C3"


def test_one_that_is_needed_at_once_is_said():
    with pytest.raises(ImportError, match=r"'sky\.heavy\.robots\.Robot' is needed for the import of another module"):
        imported_without_heavy("sky.hasty")
    assert importlib.import_module("sky.hasty").ROBOT.name == "R2"


def test_one_that_is_there_already_stays():
    robots = importlib.import_module("sky.heavy.robots")
    assert imported_without_heavy("sky.light").Robot is robots.Robot
    assert sys.modules["sky.heavy.robots"] is robots
