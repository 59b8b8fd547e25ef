"""Files of initial states are read without unpickling them, and hold an array of numbers or are refused."""

import os
import pickle

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import InitStatesError, read_init_states
from tests.environments.libero.checkouts import write_states

STATES = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    "array", [STATES, STATES.astype(np.float32), np.asfortranarray(STATES), STATES.astype(">f8"), STATES.astype(int)]
)
def test_an_array_of_torchs_archive_is_read_bit_for_bit(tmp_path, array):
    write_states(tmp_path / "states", array)
    found = read_init_states(str(tmp_path / "states"))
    assert found.dtype == np.float64
    assert np.array_equal(found, STATES)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_bare_pickle_is_read_too(tmp_path, protocol):
    (tmp_path / "states").write_bytes(pickle.dumps(STATES, protocol=protocol))
    assert np.array_equal(read_init_states(str(tmp_path / "states")), STATES)


def test_one_state_alone_is_the_only_one(tmp_path):
    write_states(tmp_path / "states", STATES[0])
    assert read_init_states(str(tmp_path / "states")).shape == (1, 3)


class Calls:
    """Would make a directory if it were unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_a_file_calls_for_is_never_carried_out(tmp_path):
    write_states(tmp_path / "states", Calls(tmp_path / "made"))
    with pytest.raises(InitStatesError, match="it calls for posix mkdir"):
        read_init_states(str(tmp_path / "states"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [{"a": 1}, [STATES], 7, np.array(["a"]), np.array([{}], object), np.empty((0, 3)), STATES * np.nan, STATES[None]],
)
def test_anything_but_an_array_of_states_is_refused(tmp_path, content):
    write_states(tmp_path / "states", content)
    with pytest.raises(InitStatesError, match="states"):
        read_init_states(str(tmp_path / "states"))


@pytest.mark.parametrize("content", [b"", b"hello", b"no pickle at all", pickle.dumps(STATES)[:60], b"PK\x03\x04 torn"])
def test_a_torn_file_is_refused(tmp_path, content):
    (tmp_path / "states").write_bytes(content)
    with pytest.raises(InitStatesError, match=r"holds no array of initial states: .*; fetch the file again"):
        read_init_states(str(tmp_path / "states"))
