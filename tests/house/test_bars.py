"""How large files, functions, classes and rooms may become, and how imports and tests are laid out."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = {name: ROOT / name for name in ("isaaclab_arena", "isaaclab_arena_gr00t")} | {
    "gr00t": ROOT / "submodules" / "Isaac-GR00T" / "gr00t"
}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_PUBLIC_METHODS = 20
MAX_FILES_OF_A_ROOM = 12
MAX_LATE_IMPORTS = 25
REASON = re.compile(r"# noqa: [A-Z0-9, ]*PLC0415  \S")
"""A late import says on its own line why it is late."""


class Definition(NamedTuple):
    """A function or class of the packages."""

    path: Path
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def modules() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for directory in PACKAGES.values()
        for path in sorted(directory.rglob("*.py"))
    }


def definitions(*kinds: type[ast.AST]) -> Iterator[Definition]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield Definition(path, node)


def name_of(definition: Definition) -> str:
    return f"{definition.path.relative_to(ROOT)}:{definition.node.lineno} {definition.node.name}"


def late_imports() -> Iterator[tuple[Path, int]]:
    seen = set()
    for path, function in definitions(ast.FunctionDef, ast.AsyncFunctionDef):
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                seen.add((path, node.lineno))
    return iter(sorted(seen))


def test_files_are_short():
    long = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {str(path): lines for path, lines in long.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short():
    found = [
        name_of(each)
        for each in definitions(ast.FunctionDef, ast.AsyncFunctionDef)
        if (each.node.end_lineno or 0) - each.node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert found == []


def test_classes_have_few_public_methods():
    found = []
    for each in definitions(ast.ClassDef):
        methods = [node for node in each.node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        public = [method for method in methods if not method.name.startswith("_")]
        if len(public) > MAX_PUBLIC_METHODS:
            found.append(name_of(each))
    assert found == []


def test_rooms_are_small_and_say_what_they_are_for_in_one_line():
    rooms = {path.parent for path in modules()}
    for room in rooms:
        files = [path for path in room.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MAX_FILES_OF_A_ROOM, room
        docstring = ast.get_docstring(modules()[room / "__init__.py"])
        assert docstring, f"{room} does not say what it is for"
        assert "\n" not in docstring, f"{room} says it in more than one line"


def test_late_imports_are_few_and_each_has_its_reason():
    late = list(late_imports())
    without = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, line in late
        if not REASON.search(path.read_text(encoding="utf-8").splitlines()[line - 1])
    ]
    assert without == []
    assert len(late) <= MAX_LATE_IMPORTS


def test_no_imports_go_in_circles_and_late_ones_neither():
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(TopologicalSorter(imports).static_order())  # raises CycleError, which names the circle


def mirrored() -> Iterator[tuple[Path, Path]]:
    """Yield each test file whose directory mirrors one of a package, with the module that its name stands for."""
    package = PACKAGES["isaaclab_arena"]
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        room = path.parent.relative_to(ROOT / "tests")
        module = path.name.removeprefix("test_")
        if room.parts[:1] == ("gr00t",):
            yield path, PACKAGES["isaaclab_arena_gr00t"].joinpath(*room.parts[1:], module)
        elif not room.parts or (package / room.parts[0]).is_dir():
            yield path, package / room / module


def test_tests_stand_where_their_modules_do_or_say_what_they_are_about():
    for path, module in mirrored():
        assert module.parent.is_dir(), f"{path}: there is no room {module.parent}"
        says = module.is_file() or ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert says, f"{path}: there is no {module}, and no docstring says what is tested instead"


def test_the_tests_of_the_model_package_stand_in_its_rooms_which_are_small():
    package, tests = PACKAGES["gr00t"], PACKAGES["gr00t"].parent / "tests"
    for room in {path.parent for path in tests.rglob("*.py")}:
        assert (package / room.relative_to(tests)).is_dir(), f"there is no room for {room}"
        assert len(list(room.glob("*.py"))) <= MAX_FILES_OF_A_ROOM, room
