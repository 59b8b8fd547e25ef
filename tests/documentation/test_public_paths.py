"""docs/reference/public_paths.md lists what others import; documents, examples and skeletons import nothing else."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

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
    for name in re.findall(r"`(\w+)`", names):
        assert hasattr(face, name), name
    for name in getattr(face, "__all__", ()):
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
