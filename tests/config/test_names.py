"""Tests of which job names are safe."""

import pytest

from isaaclab_arena.config.schema import clashes, name_problem


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        (".", "stands for a directory"),
        ("..", "stands for a directory"),
        ("a/b", "slash"),
        ("/etc/x", "slash"),
        ("../../x", "slash"),
        ("a\\b", "slash"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x1b[31mb", "control character"),
        ("a\u2028b", "line break"),
        ("a\u202eb", "turns text around"),
        ("a\ud800", "surrogate"),
        ("-rf", "begins with '-'"),
        (".hidden", r"begins with '.'"),
        (" a", "space"),
        ("a ", "space"),
        ("a" * 300, "has 300 characters"),
        ("\u5b57" * 75, "has 225 bytes"),
        ("logs", "every run writes"),
        ("Results.CSV", "every run writes"),
    ],
)
def test_an_unsafe_name_is_refused_with_its_reason(name, reason):
    problem = name_problem(name)

    assert problem is not None
    assert reason in problem
    assert problem.isascii()


@pytest.mark.parametrize("name", ["lift", "lift cube 2", "<script>alert(1)<", "=HYPERLINK()", "\u5b57", "a" * 80])
def test_a_strange_but_safe_name_is_accepted(name):
    assert name_problem(name) is None


def test_names_clash_where_a_file_system_takes_them_for_one():
    names = ["lift", "reach", "Lift", "lift", "caf\u00e9", "cafe\u0301"]

    assert clashes(names) == [("Lift", "lift"), ("lift", "lift"), ("cafe\u0301", "caf\u00e9")]
