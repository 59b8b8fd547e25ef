"""LIBERO's tasks in a worker."""

import io
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import (
    GRIPPERS,
    MAX_BYTES,
    InitStatesError,
    LiberoTask,
    axis_angle,
    read_init_states,
)
from isaaclab_arena.environments.libero import PROTOCOLS
from tests.environments.libero.checkouts import write_states
from tests.environments.libero.fake_env_wrapper import GOAL_M, ControlEnv

# What LIBERO's tasks are given and give, as trained policies expect it.

SETTINGS = {"cameras": [], "camera_size": 6, "picture_size": None, "gripper": "sign", "seeds_every_reset": False}
STATES = np.array([[0.1, 0.0], [GOAL_M - 0.01, 0.0]])


@pytest.mark.parametrize(
    ("convention", "given", "taken"),
    [
        ("raw", 0.3, 0.3),
        ("sign", -0.2, -1.0),
        ("sign", 0.0, 1.0),
        ("open is one", 1.0, -1.0),
        ("open is one", 0.1, 1.0),
    ],
)
def test_a_gripper_opens_and_closes_as_the_policy_means_it(convention, given, taken):
    assert GRIPPERS[convention](given) == taken
    assert set(GRIPPERS) == {protocol.gripper for protocol in PROTOCOLS.values()}


def test_an_orientation_is_axis_times_angle():
    quarter = np.array([0.0, 0.0, math.sin(math.pi / 4), math.cos(math.pi / 4)])
    assert np.allclose(axis_angle(quarter), [0.0, 0.0, math.pi / 2])
    assert np.array_equal(axis_angle(np.array([0.0, 0.0, 0.0, 1.0 + 1e-9])), np.zeros(3))


START = {"libero.fixture_seed": 7, "libero.reset_index": 1}


def task_of(tmp_path, *cameras: str, **settings) -> LiberoTask:
    (tmp_path / "task.bddl").touch()
    task = ControlEnv(bddl_file_name=tmp_path / "task.bddl", camera_names=cameras, camera_heights=6, camera_widths=6)
    return LiberoTask(task, STATES, {**SETTINGS, "cameras": cameras, **settings})


def begin(task: LiberoTask, init_state: int = 0) -> Any:
    return task.reset(options={"conditions": {**START, "libero.init_state": init_state}})[0]


@pytest.mark.parametrize("wait_steps", [0, 3])
def test_the_arm_holds_still_with_an_open_gripper_from_the_initial_state_on(tmp_path, wait_steps):
    task = task_of(tmp_path, wait_steps=wait_steps)
    begin(task)
    domain = task.task.env
    assert domain.bowl_m == STATES[0, 0]
    assert domain.time_s == pytest.approx(wait_steps * domain.control_timestep)
    assert domain.opening == (0.04 if wait_steps else 0.0)


def test_a_step_takes_the_gripper_as_the_policy_means_it_and_says_when_the_task_is_solved(tmp_path):
    task = task_of(tmp_path, wait_steps=1)
    begin(task, init_state=1)
    pushed = [task.step(np.array([push, 0, 0, 0, 0, 0, 0.3], np.float32))[4] for push in (0, 1, -1)]
    assert pushed == [{"success": False}, {"success": True}, {"success": False}]
    assert task.task.env.opening == -0.04


# LIBERO's cameras draw only what is wanted, at the moment at which robosuite reads them.


def pictures_of(task: LiberoTask, *, period: int) -> list[np.ndarray]:
    """Return the wanted pictures of a reset and of eight steps, every so many of which are looked at."""
    task.task.env.renders, shown = 0, []
    for number in range(9):
        task.draw_pictures(number % period == 0)
        action = np.array([0.1 * number, 0, 0, 0, 0, 0, -1], np.float32)
        shown.append(task.step(action)[0] if number else begin(task))
    return [each["front_image"] for each in shown if "front_image" in each]


def test_pictures_that_nobody_wants_are_not_drawn_and_the_others_are_the_same_turned_and_shrunk(tmp_path):
    every, some, small = (task_of(tmp_path, "front", wait_steps=2, picture_size=size) for size in (None, None, 3))
    expected, found = pictures_of(every, period=1), pictures_of(some, period=4)
    # Only the last of the readings of a reset is drawn.
    assert (every.task.env.renders, some.task.env.renders) == (9, 3)
    assert np.array_equal(found, expected[::4])
    assert not np.array_equal(found[1], found[2])
    assert expected[-1][-1, -1].any()
    assert not expected[-1][:-1].any()
    assert pictures_of(small, period=1)[-1].shape == (3, 3, 3)


# Files of initial states are read without unpickling them, and hold an array of numbers or are refused.

INIT_STATES = np.arange(12.0).reshape(4, 3)


def read(path: Path, content: Any, *, bare: int | None = None) -> np.ndarray:
    """Write a file of initial states, as torch does or as a pickle of some protocol, and read it."""
    if bare is None:
        write_states(path / "states", content)
    else:
        (path / "states").write_bytes(pickle.dumps(content, protocol=bare))
    return read_init_states(str(path / "states"))


class Calls:
    """Would make a directory if it were unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "array",
    [
        INIT_STATES.astype(np.float32),
        np.asfortranarray(INIT_STATES),
        INIT_STATES.astype(">f8"),
        INIT_STATES.astype(int),
    ],
)
@pytest.mark.parametrize("bare", [None, 2, 3, 4])
def test_an_array_of_torchs_archive_or_of_a_bare_pickle_is_read_bit_for_bit(tmp_path, array, bare):
    found = read(tmp_path, array, bare=bare)
    assert found.dtype == np.float64
    assert np.array_equal(found, INIT_STATES)
    assert np.array_equal(read(tmp_path, array[0], bare=bare), INIT_STATES[:1]), "one state alone is the only one"


NO_STATES = (
    {"a": 1},
    [INIT_STATES],
    np.array(["a"]),
    np.array([{}], object),
    np.empty((0, 3)),
    INIT_STATES * np.nan,
    INIT_STATES[None],
)


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_a_file_calls_for_is_never_carried_out(tmp_path, protocol):
    with pytest.raises(InitStatesError, match="posix mkdir"):
        read(tmp_path, Calls(tmp_path / "made"), bare=protocol)
    assert not (tmp_path / "made").exists()


DTYPE = b"cnumpy\ndtype\n"
NESTED = b")" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(40)) + b"q\xff"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Nr\xff\xff\xff\x7f.", "NoneType"),
        # Calls of one function with the same many arguments.
        (DTYPE + b"q\0(" + b"N" * 100 + b"tq\1" + b"h\0h\1R" * 100 + b".", "200 instructions"),
        # A type of numbers whose text would have 2 to the power of 40 brackets.
        (
            NESTED + b"cnumpy.core.multiarray\n_reconstruct\n)R(K\1K\1\x85" + DTYPE + b"h\xff\x85R\x89X\0\0\0\0tb.",
            "no array",
        ),
    ],
)
def test_a_file_that_asks_for_much_memory_in_a_few_bytes_is_refused(tmp_path, content, message):
    (tmp_path / "states").write_bytes(b"\x80\x02" + content)
    with pytest.raises(InitStatesError, match=message):
        read_init_states(str(tmp_path / "states"))


def packaged(states: Any, name: str = "states") -> bytes:
    """Return the content of a file of initial states as pip's package has it."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **{name: states})
    return stream.getvalue()


def headed(shape: str) -> bytes:
    """Return an array's file whose header promises a shape that does not follow."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


TORN = [b"", b"hello", b"no pickle at all", pickle.dumps(INIT_STATES)[:60], b"PK\x03\x04 torn"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("states", content) for content in TORN),
        *(("states", pickle.dumps(content, protocol=2)) for content in NO_STATES),
        # State for what is no call, and for a call that is not there.
        *(("states", content) for content in (b"\x80\x02NNb.", b"\x80\x02b.", b"\x80\x02cos\nmkdir\nNb.")),
        *(("states.npz", content) for content in (*TORN, packaged(INIT_STATES)[:-40], headed("(4, 3)"))),
        # Compressed data that is damaged inside an archive that is not.
        ("states.npz", packaged(INIT_STATES).replace(packaged(INIT_STATES)[80:90], b"x" * 10)),
        # Arrays of objects, of text and of complex numbers, and none of the name.
        *(("states.npz", packaged(np.array(each))) for each in ([{}], ["a"], [1j])),
        ("states.npz", packaged(INIT_STATES, "others")),
        # Headers that ask for much memory, and for much work.
        *(("states.npz", headed(shape)) for shape in ("(9000000000, 90000)", "(" * 90, "-" * 9000 + "1")),
    ],
)
def test_what_is_torn_or_hostile_or_no_array_of_states_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InitStatesError):
        read_init_states(str(tmp_path / name))


def test_states_of_pips_package_are_read_bit_for_bit_up_to_a_size(tmp_path):
    path, content = tmp_path / "states.npz", packaged(INIT_STATES)
    path.write_bytes(content)
    assert np.array_equal(read_init_states(str(path)), INIT_STATES)
    # The archive's table says how large a file becomes.
    size = content.rindex(b"PK\x01\x02") + 24
    path.write_bytes(content[:size] + (MAX_BYTES + 1).to_bytes(4, "little") + content[size + 4 :])
    with pytest.raises(InitStatesError, match=str(MAX_BYTES)):
        read_init_states(str(path))
