"""The answers of a worker, for each version of Gymnasium."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import spaces

from isaaclab_arena.environments.gym.env_slots import SlotSource
from isaaclab_arena.environments.gym.worker.answers import (
    MOVE,
    MOVE_AND_LOOK,
    Answers,
    SharedArrays,
    commit_at,
    origin,
    revision,
    versions_of,
)
from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, flat_actions
from tests.environments.gym import gym_fakes
from tests.environments.gym.gym_fakes import ID


class Asked:
    """What a worker would answer with, around the fake environment, and the arrays that it shows."""

    def __init__(self, memory: int, num_slots: int = 1, **make_kwargs) -> None:
        self.answers = Answers(memory, lambda error: {"error": str(error)})
        request = SlotSource(kind="gym", name=ID, make_kwargs=make_kwargs).request("make")
        description = self.ask({**request, "num_slots": num_slots, "num_made": num_slots})
        self.shared = SharedArrays(memory, description, num_slots)
        self.ask({"request": "reset", "slots": [0], "starts": [{"seed": 1, "options": None}], "pictures": [True]})

    def ask(self, message: Mapping) -> dict:
        return self.answers.answer(dict(message), {})[0]

    def step(self, *, pictures: bool = True) -> dict:
        """Answer about an environment's step without its observation."""
        self.shared.asked[0] = MOVE_AND_LOOK if pictures else MOVE
        return self.ask({}).get(0, {})


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("answers")
    yield descriptor
    os.close(descriptor)


def test_all_environments_are_closed_also_if_one_of_them_raises(memory):
    asked = Asked(memory, num_slots=3, misbehaviour="raise_at_close")
    gym_fakes.CLOSED.clear()
    with pytest.raises(OSError, match="the door is stuck"):
        asked.answers.close()
    assert len({id(each) for each in gym_fakes.CLOSED}) == 3


def test_pictures_that_nobody_wants_do_not_travel(memory):
    asked = Asked(memory, picture=True)
    for pictures, clock_shown in ((False, 0), (True, 2)):
        assert asked.step(pictures=pictures) == {}
        assert (asked.shared.arrays["eye.front"] == clock_shown).all()
    assert asked.shared.arrays["numbers"][0, 1] == 2


# Actions of any space travel as flat float32; observations are shown as their space declares them, or not at all.


def flat(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2)), flat(0.5, -2.0, 3.0, 0.0), [[0.5, -1.0], [1.0, 0.0]]),
        (spaces.Box(-np.inf, np.inf, (1,)), flat(1e6), [1e6]),
        (spaces.Box(0, 4, (2,), np.int32), flat(1.6, 9.0), [2, 4]),
        (spaces.Discrete(3), flat(1.4), 1),
        (spaces.Discrete(3), flat(7.0), 2),
        (spaces.Discrete(3, start=-1), flat(-4.0), -1),
        (spaces.MultiDiscrete([2, 5]), flat(0.8, 3.2), [1, 3]),
        (spaces.MultiDiscrete([2, 5], start=[0, -2]), flat(9.0, 9.0), [1, 2]),
        (spaces.MultiDiscrete([2, 5], start=[0, -2]), flat(-9.0, -9.0), [0, -2]),
        (spaces.MultiBinary(3), flat(0.2, 0.9, -5.0), [0, 1, 0]),
    ],
)
def test_an_action_is_clipped_and_whole_numbers_are_rounded(space, action, expected):
    native = flat_actions(space).native(action)
    assert space.contains(native)
    assert np.array_equal(native, expected)


ARM_AND_GRIPPER = spaces.Dict(
    {"gripper": spaces.Discrete(3), "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(1)))}
)


def test_the_parts_of_an_action_follow_each_other_in_the_order_of_the_space_and_have_its_names():
    low, high, names, to_native, choices = flat_actions(ARM_AND_GRIPPER)
    assert (low.tolist(), high.tolist()) == ([-1.0, -1.0, -0.5, -0.5], [1.0, 1.0, 1.5, 2.5])
    assert names == ["arm.0.0", "arm.0.1", "arm.1", "gripper"]
    assert choices == [0, 0, 2, 3]
    assert flat_actions(spaces.Box(-1.0, 1.0, (2,))).names is None
    native = to_native(flat(0.5, 3.0, 0.9, 1.6))
    assert ARM_AND_GRIPPER.contains(native)
    assert (native["arm"][0].tolist(), native["arm"][1].tolist(), native["gripper"]) == ([0.5, 1.0], [1], 2)


class Showing(gymnasium.Env):
    """Observes what it is told to."""

    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, space: spaces.Space, shown: Any) -> None:
        self.observation_space, self._shown = space, shown

    def reset(self, *, seed=None, options=None):
        return self._shown, {}


def shown(space: spaces.Space, delivered: Any, *, checks_ranges: bool = True) -> Any:
    """Observation of a reset, or the error if the environment's does not fit."""
    slot = EnvSlot(Showing(space, delivered), (), checks_ranges=checks_ranges)
    observation, words = slot.reset(0, pictures=True)
    return words["error"] or observation["obs"].tolist()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), True),
        (spaces.Box(0, 255, (128,), np.uint8), False),
        (spaces.Box(0.0, 1.0, (8, 8, 3)), False),
    ],
)
def test_bytes_in_two_dimensions_are_a_picture(space, expected):
    [term] = EnvSlot(Showing(space, None), ()).description()["observation"].values()
    assert term["image"] is expected


PICTURE, UNIT, ANY = (
    spaces.Box(0, 255, (1, 2), np.uint8),
    spaces.Box(-1.0, 1.0, (2,)),
    spaces.Box(-np.inf, np.inf, (1,)),
)


@pytest.mark.parametrize(
    ("space", "delivered", "expected"),
    [
        (PICTURE, np.array([[7, 255]], np.uint8), [[7, 255]]),
        (PICTURE, np.array([[7, 255]], np.int64), [[7, 255]]),
        (UNIT, np.array([-1.0, 1.0]), [-1.0, 1.0]),
        (UNIT, [0.5, 1.2], [0.5, pytest.approx(1.2)]),
        (spaces.Box(0.0, np.pi, (1,), np.float64), np.array([np.pi]), [np.float32(np.pi)]),
        (ANY, np.array([1e-300]), [0.0]),
        (spaces.Discrete(3, start=4), 6, 6.0),
        (spaces.MultiBinary(2), np.array([True, False]), [1.0, 0.0]),
        (spaces.Box(0, 9, (1,), np.int64), np.array([3.0]), [3.0]),
    ],
)
def test_what_fits_its_space_is_shown_also_where_numpy_is_told_to_raise(space, delivered, expected):
    with np.errstate(all="raise"):
        assert shown(space, delivered) == expected


@pytest.mark.parametrize(
    ("space", "delivered", "message"),
    [
        (PICTURE, np.full((1, 2), 0.8, np.float32), "'obs'[0, 0] is 0.8 as float32"),
        (PICTURE, np.array([[7, 300]]), "'obs'[0, 1] is 300 as int64"),
        (PICTURE, np.array([[-1, 7]]), "'obs'[0, 0] is -1 as int64"),
        (UNIT, [0.0, 1.3], "'obs'[1] is 1.3 as float64"),
        (UNIT, ["0.0", "1.0"], "'obs' holds <U3"),
        (spaces.Box(0.0, np.inf, (1,)), np.array([-1.0]), "'obs'[0] is -1.0 as float64"),
        (spaces.Discrete(3), 3, "out_of_range: keep"),
        (spaces.Discrete(3), 1.5, "'obs' is 1.5 as float64"),
        (spaces.Box(0, 2**62, (1,), np.int64), np.array([2**53 + 1]), "'obs'[0] is 9007199254740993 as int64"),
        (ANY, [1e300], "'obs'[0] is 1e+300 as float64"),
        (spaces.Dict({"x": UNIT, "y": UNIT}), {"x": np.zeros(2)}, "lacks 'y'"),
        (spaces.Dict({"x": UNIT}), np.zeros(2), "lacks 'x'"),
    ],
)
def test_what_does_not_fit_its_space_is_told_with_entry_value_type_and_range(space, delivered, message):
    assert message in shown(space, delivered)


def test_numbers_beyond_their_range_are_kept_if_one_insists_but_nothing_is_cast():
    assert shown(UNIT, [0.0, 1.5], checks_ranges=False) == [0.0, 1.5]
    assert shown(spaces.Discrete(3), 7, checks_ranges=False) == 7.0
    assert "is 0.5 as float64" in shown(spaces.Discrete(3), 0.5, checks_ranges=False)
    assert "is 16777217 as int64" in shown(spaces.Discrete(3), 2**24 + 1, checks_ranges=False)
    assert "is 256 as int64" in shown(PICTURE, np.array([[0, 256]]), checks_ranges=False)


def test_bounds_of_actions_beyond_float32_are_none_and_those_that_are_no_range_are_refused():
    low, high, *_ = flat_actions(spaces.Box(-1e300, np.array([1.0, 1e300]), (2,), np.float64))
    assert (low.tolist(), high.tolist()) == ([-np.inf, -np.inf], [1.0, np.inf])
    turned, nowhere = spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (1,))
    turned.low[:], nowhere.low[:] = 2.0, np.nan
    for space in (turned, nowhere, spaces.Discrete(10, start=2**24)):
        with pytest.raises(TypeError):
            flat_actions(space)


@pytest.mark.parametrize("answer", [np.zeros(2), (np.zeros(2), 0.0, False, {})])
def test_an_answer_of_gyms_older_interface_is_told(answer):
    environment = Showing(UNIT, np.zeros(2))
    environment.reset = environment.step = lambda *_, **__: answer
    with pytest.raises(ValueError, match="Gymnasium"):
        EnvSlot(environment, ()).reset(0, pictures=True)
    with pytest.raises(ValueError, match="Gymnasium"):
        EnvSlot(environment, ()).step(np.zeros(1, np.float32), pictures=True)
    no_info: Any = (np.zeros(2), None)
    environment.reset = lambda **_: no_info
    with pytest.raises(TypeError):
        EnvSlot(environment, ("success",)).reset(0, pictures=True)


# What an environment runs on is told by package, revision and engine.


def test_packages_and_the_engine_that_the_environment_uses_are_told_with_their_versions():
    assert versions_of(gymnasium.make("Ant-v5"))["engine"] == f"mujoco {mujoco.__version__}"
    without = gymnasium.make("Pendulum-v1")
    assert versions_of(without)["gymnasium"] == gymnasium.__version__
    assert "engine" not in versions_of(without)
    # One that was imported late counts where nothing else needs one.
    assert f"mujoco {mujoco.__version__}" in versions_of(without, alone=True)["engine"].split(", ")


def git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_package_of_a_checkout_or_of_a_worktree_is_told_with_the_commit_of_that_checkout_itself(
    tmp_path, monkeypatch
):
    main = tmp_path / "main"
    git(tmp_path, "init", "--quiet", "main")
    assert commit_at(main) is None, "there is no commit yet"
    (main / "unpacked").mkdir()
    (main / "checked_out.py").write_text("")
    git(main, "add", ".")
    git(main, "commit", "--quiet", "--message=first")
    git(main, "worktree", "add", "--quiet", str(tmp_path / "worktree"))
    commit = git(main, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert (commit_at(main), commit_at(main / "unpacked")) == (commit, None)
    monkeypatch.syspath_prepend(tmp_path / "worktree")
    importlib.invalidate_caches()
    importlib.import_module("checked_out")
    assert revision("checked_out") == commit
    del sys.modules["checked_out"]
    # Settings that never end take no more than their time.
    monkeypatch.delenv("GIT_DIR")
    os.mkfifo(tmp_path / "endless")
    git(main, "config", "include.path", str(tmp_path / "endless"))
    assert commit_at(main, timeout_s=0.2) is None


def install(directory: Path, name: str, **files: str) -> None:
    """Make a package known as installed there; a file ``RECORD`` holds what is given as ``RECORD``."""
    info = directory / f"{name.replace('-', '_')}-2.5.dist-info"
    info.mkdir()
    for file, text in {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n", **files}.items():
        (info / file).write_text(text)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("file", "content"),
    [("RECORD", "from_wheel/__init__.py,,\n"), ("RECORD", "from_wheel.py,,\n"), ("top_level.txt", "from_wheel\n")],
)
def test_a_package_is_provided_by_what_declares_it_or_installed_its_files(tmp_path, monkeypatch, file, content):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "from_wheel.py").write_text("")
    commit = "0123456789abcdef0123456789abcdef01234567"
    url = f'{{"url": "https://x.org/y", "vcs_info": {{"commit_id": "{commit}"}}}}'
    install(tmp_path, "another", **{file: content, "direct_url.json": url})
    install(tmp_path, "neighbour", RECORD="from_wheels/__init__.py,,\n")
    install(tmp_path, "plural", **{"top_level.txt": "from_wheels\n"})
    importlib.import_module("from_wheel")
    assert origin("from_wheel")["versions"] == "another 2.5"
    assert (revision("from_wheel"), revision("gymnasium")) == (commit, None)
    del sys.modules["from_wheel"]
    assert origin("os")["versions"] is None
    assert origin("gymnasium")["versions"] == f"gymnasium {gymnasium.__version__}"
    assert origin(ID.partition(":")[0]) == {"file": gym_fakes.__file__, "versions": None}
