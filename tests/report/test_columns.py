import numpy as np
import pytest

from isaaclab_arena.report.jobs import packed_numbers, packed_texts
from tests.report.reading import unpacked_numbers


def test_whole_numbers_keep_every_digit():
    values = np.array([3.0, 160.0, 1e6, np.nan])
    packed = packed_numbers(values)
    np.testing.assert_array_equal(unpacked_numbers(packed, 4), values)
    assert packed is not None
    assert packed["bytes"] == 4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e5])
def test_other_numbers_are_right_to_the_decimals_that_are_shown(scale: float):
    values = np.random.default_rng(0).normal(size=500) * scale
    packed = packed_numbers(values)
    assert packed is not None
    decimals = packed["decimals"]
    found = unpacked_numbers(packed, 500)
    assert [f"{value:.{decimals}f}" for value in found] == [f"{value:.{decimals}f}" for value in values]


def test_equal_numbers_take_no_room():
    packed = packed_numbers(np.full(1000, 0.025))
    assert packed is not None
    assert packed["data"] == ""
    assert unpacked_numbers(packed, 1000)[0] == 0.025


def test_no_number_at_all_is_none():
    assert packed_numbers(np.full(3, np.nan)) is None
    assert packed_texts([None, None]) is None


def test_each_text_is_there_once():
    packed = packed_texts(["time limit", None, "fell", "time limit"])
    assert packed is not None
    assert packed["texts"] == ["time limit", "fell"]
    assert packed["data"]
    same = packed_texts(["fell", "fell"])
    assert same is not None
    assert same["data"] == ""
