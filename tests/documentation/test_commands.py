"""No command in a document has an option that is not there."""

import dataclasses
import json
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from io import StringIO

import pytest

from documentation.command_line import commands, help_of, options_of
from isaaclab_arena.cli.main import main
from isaaclab_arena.tasks import TableOptions
from tests.documentation.reading import commands_of
from tests.end_to_end.launching import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MODULES = {"eval_runner": "run", "policy_runner": "policy", "train": "train"}
LINES = sorted(
    {line for page in PAGES for line in commands_of(page.read_text()) if "<" not in line and "..." not in line}
)


def command_of(words: list[str]) -> str:
    """Return which command of ``isaaclab-arena`` a line runs, by its name or its module; empty for another program."""
    if "isaaclab-arena" in words:
        return words[words.index("isaaclab-arena") + 1]
    modules = [word for word in words if word == "eval_runner" or word.startswith("isaaclab_arena.")]
    return MODULES.get(modules[-1].rpartition(".")[2], "") if modules else ""


@cache
def known(command: str) -> frozenset[str]:
    if command == "quickstart":
        # It gives the run what is not its own.
        return known("run")
    if command == "robustness":
        return known("run") | {"axes", "levels"}
    return frozenset(re.findall(r"--(\w+)", " ".join(option.name for option in options_of(help_of(command)))))


@cache
def environments() -> dict[str, set[str]]:
    """Return the options of every environment, by its name."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["list", "environments", "--json"]) == 0
    listed = json.loads(printed.getvalue())
    return {each["name"]: {option["name"] for option in each["options"]} for each in listed}


def options_of_environments(words: list[str]) -> set[str]:
    """Return the options of the environment that a line names; of a task on the table if it is the document's own."""
    if "hover" in words:
        return {field.name for field in dataclasses.fields(TableOptions)}
    return {name for word in words for name in environments().get(word, ())}


# Spellings of other trainers, and what a policy takes, have tests of their own.
ELSEWHERE = {"train"}
OF_POLICIES = {"checkpoint_path", "policy_config_yaml_path", "replay_file_path", "dataset_path", "model_path"}
OF_POLICIES |= {"largest_step"}  # of the function that a page writes, and a test of that page runs


@pytest.mark.parametrize("line", [line for line in LINES if command_of(shlex.split(line))])
def test_a_command_of_a_document_has_no_option_that_its_program_lacks(line):
    words = shlex.split(line)
    command = command_of(words)
    assert command in commands(), command
    program = words.index("isaaclab-arena") if "isaaclab-arena" in words else words.index("-m", 1)
    after = words[program + 2 :]
    given = {word[2:].split("=")[0].replace("-", "_") for word in after if word.startswith("--")}
    if "torch.distributed.run" in words:
        given -= {
            "nproc_per_node",
            "nnodes",
            "node_rank",
            "master_addr",
            "master_port",
            "signals_to_handle",
            "shutdown_timeout",
        }
    if command not in ELSEWHERE:
        assert given - known(command) - options_of_environments(words) - OF_POLICIES == set()
