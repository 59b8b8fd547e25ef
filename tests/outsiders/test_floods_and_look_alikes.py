"""Thousands of mistakes, keys of a megabyte and names that nobody can tell apart."""

import json
from pathlib import Path

import pytest

from isaaclab_arena import ConfigError, Problem, evaluate
from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import write_jobs
from tests.end_to_end.mistakes import GOOD, mistaken


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(document: object) -> ConfigError:
    Path("jobs.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        evaluate("jobs.json")
    return caught.value


@pytest.mark.slow
def test_of_twenty_thousand_bad_jobs_twenty_are_shown_and_the_others_counted():
    error = refusal({"jobs": [{**GOOD, "name": f"job{number}", "num_episode": 1} for number in range(20_000)]})
    assert len(error.problems) == 20_000
    lines = str(error).splitlines()
    assert len(lines) == 21
    assert lines[19].startswith("jobs.json: job 'job19': num_episode: unknown key")
    assert lines[20] == "... and 19980 more problems"
    for count in (20, 21):
        assert len(str(ConfigError(error.problems[:count])).splitlines()) == count


def test_what_thousands_of_jobs_name_in_vain_is_looked_for_once():
    error = refusal({"jobs": [{**GOOD, "name": f"job{number}", "conditions": "${no.such}"} for number in range(3000)]})
    assert len(error.problems) == 3000


MUCH = "x" * 10**6


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": [GOOD], MUCH: 1},
        *(mistaken(**{key: MUCH}) for key in ("name", "status", "num_episodes", "variations")),
        mistaken(**{MUCH: 1}),
        mistaken(arena_env_args={MUCH: 1}),
        mistaken(arena_env_args=[f"--{MUCH}", f"--{MUCH}"]),
        mistaken(conditions="${" + "x" * 10**5 + "}"),
        mistaken(sweep={MUCH: [1]}),
        {"jobs": MUCH},
        MUCH,
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
    "names",
    [
        ("lift1", "lift2"),
        ("\u0441\u0442\u043e\u043b", "table"),
        ("a-b", "a_b"),
        ("lift", "left"),
        # Joiners that their script needs.
        ("\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f"),
    ],
)
def test_names_that_a_reader_can_tell_apart_are_accepted(names):
    write_jobs(Path("jobs.json"), [{**GOOD, "name": name} for name in names])
    assert main(["validate", "jobs.json"]) == 0
