"""Benchmarks use what others can use: the package, and not the tests, the import path or private names."""

import ast
from collections.abc import Iterator

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
