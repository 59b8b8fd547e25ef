"""Tests of the words that a mistake is told in."""

from isaaclab_arena.errors import did_you_mean


def test_of_many_choices_a_hundred_are_named():
    assert did_you_mean("zzz", [f"choice{number:03}" for number in range(102)]).endswith("choice099, and 2 more")
    assert did_you_mean("zzz", [f"choice{number:03}" for number in range(100)]).endswith("choice099")
