"""What the documents name exists: files and headings, public modules, and options of commands."""

import ast
import dataclasses
import importlib
import json
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from documentation.command_line import commands, help_of, options_of
from isaaclab_arena.cli.main import main
from isaaclab_arena.tasks import TableOptions
from tests.documentation.reading import blocks, commands_of
from tests.end_to_end.launching import ROOT

DOCS = ROOT / "docs"

# Links.


PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("**/*.md"))]
PAGES += [*sorted((ROOT / "benchmarks" / "results").glob("*.md")), *sorted((ROOT / "models").glob("**/*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
_FENCE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    return {slug(heading) for heading in _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path):
    for target, anchor in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(page), f"{target or path.name} has no heading for #{anchor}"


def test_headings_of_a_page_have_anchors_of_their_own():
    for path in DOCS.glob("**/*.md"):
        headings = _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
        assert len({slug(heading) for heading in headings}) == len(headings), path


# Imports.


PAGE = (ROOT / "docs" / "reference" / "public_paths.md").read_text()
ROWS = re.findall(r"^\| `(isaaclab_arena[\w.]*)` \| (.*?) \|$", PAGE, re.MULTILINE)
PUBLIC = {module for module, _ in ROWS}
SKELETONS = ROOT / "isaaclab_arena" / "assets" / "skeletons"
PROGRAMS = {
    **{
        f"{path.relative_to(ROOT)}, block {number}": body
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for number, body in enumerate(blocks(path.read_text(), "python"))
    },
    **{
        str(path.relative_to(ROOT)): path.read_text()
        for path in [*sorted((ROOT / "examples").glob("*.py")), *sorted(SKELETONS.rglob("*.py.txt"))]
    },
}


@pytest.mark.parametrize(("module", "names"), ROWS, ids=[module for module, _ in ROWS])
def test_a_public_module_offers_what_the_page_says(module, names):
    face = importlib.import_module(module)
    for name in [*re.findall(r"`(\w+)`", names), *getattr(face, "__all__", ())]:
        assert hasattr(face, name), name


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_documents_imports_public_modules_alone(program):
    assert {module for module in imported(PROGRAMS[program]) if module not in PUBLIC} == set()


def imported(source: str) -> set[str]:
    """Return the modules of this project that a program imports, or takes names from."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            own = {module for module in modules if is_module(module) and module not in faces_names()}
            found |= own or {node.module}
    return {module for module in found if module.partition(".")[0] in {"isaaclab_arena", "isaaclab_arena_gr00t"}}


def is_module(name: str) -> bool:
    place = ROOT / Path(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def faces_names() -> set[str]:
    """Return the dotted names that faces offer, some of which are modules, such as `isaaclab_arena.tasks.terms`."""
    faces = [importlib.import_module(module) for module in PUBLIC]
    return {f"{face.__name__}.{name}" for face in faces for name in getattr(face, "__all__", ())}


# Commands.


MODULES = {"eval_runner": "run", "policy_runner": "policy", "train": "train"}
LINES = sorted({line for page in DOCS.rglob("*.md") for line in commands_of(page.read_text())
                if "<" not in line and "..." not in line})  # fmt: skip


def command_of(words: list[str]) -> str:
    """Return the command of ``isaaclab-arena`` that a line runs, by name or module; empty for another program."""
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
@cache
def options_of_environments() -> set[str]:
    """Return the options of all environments; a page's own task on the table has those of the others."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["list", "environments", "--json"]) == 0
    listed = json.loads(printed.getvalue())
    own = {field.name for field in dataclasses.fields(TableOptions)}
    return own | {option["name"] for each in listed for option in each["options"]}


# Spellings of other trainers, and what a policy takes, have tests of their own.
ELSEWHERE = {"train"}
OF_POLICIES = {"checkpoint_path", "policy_config_yaml_path", "replay_file_path", "dataset_path", "model_path"}
OF_TORCHRUN = {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"}
OF_TORCHRUN |= {"signals_to_handle", "shutdown_timeout"}
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
        given -= OF_TORCHRUN
    if command not in ELSEWHERE:
        assert given - known(command) - options_of_environments() - OF_POLICIES == set()
