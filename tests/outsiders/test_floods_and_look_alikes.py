"""Thousands of mistakes, keys of a megabyte and names that nobody can tell apart."""

import json
from pathlib import Path

import pytest

from isaaclab_arena import ConfigError, Problem, evaluate
from isaaclab_arena.cli.main import main
from tests.end_to_end.mistakes import GOOD, mistaken


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(document: object) -> ConfigError:
    Path("jobs.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        evaluate("jobs.json")
    return caught.value


def is_accepted(document: object) -> bool:
    Path("jobs.json").write_text(json.dumps(document))
    return main(["validate", "jobs.json"]) == 0


def test_of_twenty_thousand_bad_jobs_twenty_are_shown_and_the_others_counted():
    error = refusal({"jobs": [{**GOOD, "name": f"job{number}", "num_episode": 1} for number in range(20_000)]})
    assert len(error.problems) == 20_000
    lines = str(error).splitlines()
    assert len(lines) == 21
    assert lines[19].startswith("jobs.json: job 'job19': num_episode: unknown key")
    assert lines[20] == "... and 19980 more problems"


@pytest.mark.parametrize(("count", "lines"), [(20, 20), (21, 21), (22, 21)])
def test_twenty_problems_are_shown_whole_and_of_more_the_number(count, lines):
    text = str(ConfigError([Problem(f"wrong {number}") for number in range(count)]))
    assert len(text.splitlines()) == lines
    assert ("more problems" in text) == (count > 20)


def test_what_thousands_of_jobs_name_in_vain_is_looked_for_once():
    error = refusal({"jobs": [{**GOOD, "name": f"job{number}", "conditions": "${no.such}"} for number in range(3000)]})
    assert str(error).endswith("... and 2980 more problems")


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": [GOOD], "x" * 10**6: 1},
        {"jobs": [{**GOOD, "x" * 10**6: 1}]},
        mistaken(name="x" * 10**6),
        mistaken(status="x" * 10**6),
        mistaken(num_episodes="x" * 10**6),
        mistaken(variations="x" * 10**6),
        mistaken(arena_env_args={"x" * 10**6: 1}),
        mistaken(arena_env_args=["--" + "x" * 10**6, "--" + "x" * 10**6]),
        mistaken(conditions="${" + "x" * 10**5 + "}"),
        {"jobs": "x" * 10**6},
        "x" * 10**6,
        {"jobs": [{**GOOD, "sweep": {"x" * 10**6: [1]}}]},
    ],
)
def test_a_key_or_a_value_of_a_megabyte_is_cut_in_what_is_shown(document):
    assert len(str(refusal(document))) < 4_000


def test_a_message_says_how_long_what_it_cut_is():
    text = str(Problem("m" * 3000, file="f", job="j" * 161, key="k" * 160))
    assert text == f"f: job '{'j' * 130}... (161 characters)': {'k' * 160}: {'m' * 1970}... (3000 characters)"


@pytest.mark.parametrize(
    "name",
    ["li\u200bft", "lift\ufeff", "li\u00adft", "li\u2060ft", "\u3164", "lift\u2800", "li\u180eft", "li\U000e0041ft"],
)
def test_a_name_with_what_nobody_sees_is_refused(name):
    (problem,) = refusal(mistaken(name=name)).problems
    assert problem.key == "name"
    assert "invisible" in problem.message or "space" in problem.message
    assert problem.message.isascii()


@pytest.mark.parametrize(
    "name", ["\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f"]
)
def test_a_name_with_joiners_that_its_script_needs_is_accepted(name):
    assert is_accepted(mistaken(name=name))


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("lift", "l\u0456ft"),  # a Cyrillic i
        ("COP", "\u0421\u041e\u0420"),  # all of it Cyrillic
        ("motion", "m\u03bfti\u043en"),  # Greek and Cyrillic
        ("lift", "\uff4cift"),  # a wide l
        ("a b", "a\u00a0b"),  # a space that does not break
        ("\u2764", "\u2764\ufe0f"),
        ("\u06a9\u0627", "\u06a9\u200c\u0627"),
    ],
)
def test_two_names_that_look_alike_are_refused_and_told_apart_in_ascii(name, alike):
    error = refusal({"jobs": [{**GOOD, "name": name}, {**GOOD, "name": alike}]})
    (problem,) = error.problems
    assert (problem.job, problem.key) == (alike, "name")
    assert f"looks like '{name}', but is {alike!a}" in problem.message


@pytest.mark.parametrize(
    "names", [("lift1", "lift2"), ("\u0441\u0442\u043e\u043b", "table"), ("a-b", "a_b"), ("lift", "left")]
)
def test_names_that_a_reader_can_tell_apart_are_accepted(names):
    assert is_accepted({"jobs": [{**GOOD, "name": name} for name in names]})
