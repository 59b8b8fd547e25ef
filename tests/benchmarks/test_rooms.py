"""Benchmarks use what others can use: the package, and not the tests, the import path or private names."""

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks import ROOT

FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_a_benchmark_imports_nothing_of_the_tests_and_leaves_the_import_path_alone() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
    assert [name for name, text in texts.items() if "sys.path" in text] == []
    assert [
        name
        for name, text in texts.items()
        if any(module.split(".")[0] == "tests" for module in imported(ast.parse(text)))
    ] == []


def test_no_room_of_benchmarks_has_more_than_twelve_files() -> None:
    rooms = {path.parent for path in FILES}
    assert max(len(list(room.glob("*.py"))) for room in rooms) <= 12


def test_each_file_of_tests_is_named_after_a_room_of_benchmarks() -> None:
    here = Path(__file__).parent
    tests = [path.name.removeprefix("test_").removesuffix(".py") for path in here.rglob("test_*.py")]
    rooms = {path.parent.name for path in FILES} | {"rooms"}
    assert [name for name in tests if not any(name.split("_")[0] == room.split("_")[0] for room in rooms)] == []
