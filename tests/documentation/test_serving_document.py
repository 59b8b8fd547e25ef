"""The commands of the page on serving can be typed: each policy is built, and its server begins to listen."""

import shlex
import socket

import pytest

from isaaclab_arena.cli.main import main
from tests.documentation.reading import commands_of
from tests.end_to_end.launching import ROOT

PAGE = ROOT / "docs" / "how_to" / "serving.md"
COMMANDS = [shlex.split(line) for line in commands_of(PAGE.read_text()) if line.startswith("isaaclab-arena serve ")]


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[2:4]) for words in COMMANDS])
def test_a_policy_of_the_page_can_be_served(words, monkeypatch, capsys):
    """At a port that is taken, which a server finds when everything else is right."""
    monkeypatch.chdir(ROOT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*words[1:], "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {port}" in told
    assert ("job 'colour-gr00t'" in told) == (words[2] == "jobs/quickstart.json:colour-gr00t")
    assert ("RslRlPolicy" in told) == (words[2] == "rsl_rl")
