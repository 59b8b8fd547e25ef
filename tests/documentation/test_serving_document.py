"""The commands of the page on serving name jobs, policies and options that there are, and one of them is built."""

import shlex

import pytest
import tyro

from isaaclab_arena_gr00t.serving.options import ServeOptions, served_job
from isaaclab_arena_gr00t.serving.serve import prepared
from tests.documentation.reading import commands_of
from tests.end_to_end.launching import ROOT

PAGE = ROOT / "docs" / "how_to" / "serving.md"
COMMANDS = [shlex.split(line) for line in commands_of(PAGE.read_text()) if line.startswith("isaaclab-arena serve ")]


def read(words: list[str]) -> tuple[ServeOptions, list[str]]:
    options, rest = tyro.cli(ServeOptions, args=words[2:], return_unknown_args=True, use_underscores=True)
    options.check()
    return options, rest


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[2:4]) for words in COMMANDS])
def test_a_command_names_a_job_that_there_is(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    options, rest = read(words)
    job = served_job(options, rest)
    assert job.config.policy_type in {"gr00t_closedloop", "rsl_rl"}
    assert len(options.image_keys() or {}) in {0, 2}


def test_a_policy_of_the_page_can_be_served(monkeypatch):
    monkeypatch.chdir(ROOT)
    [words] = [words for words in COMMANDS if "rsl_rl" in words]
    served = prepared(*read(words))
    assert served.policy.acts_together
    served.policy.close()
