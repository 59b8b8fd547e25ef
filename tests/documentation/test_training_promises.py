"""docs/concepts/training_promises.md names tests and programs that exist, and no promise is without one."""

import ast
import re

import pytest

from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "concepts" / "training_promises.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", DOCUMENT)))
NOT_VERIFIED = "not verified: no GPU"


def rows() -> list[list[str]]:
    """Return the cells of every promise."""
    lines = [line.strip("|").split(" | ") for line in DOCUMENT.splitlines() if line.startswith("| ")]
    return [line for line in lines if "proved by" not in line[-1] and "---" not in line[0]]


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_test_that_is_named_exists(path, name):
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_a_program_that_is_named_exists():
    for path in re.findall(r"`((?:benchmarks|examples)/[\w/.]*)`", DOCUMENT):
        assert (ROOT / path).exists(), path


def test_every_promise_names_its_proof_or_says_that_there_is_none():
    assert len(rows()) > 40
    for promise, kept, proof in rows():
        assert kept.strip(), promise
        assert "::test_" in proof or "benchmarks/" in proof or NOT_VERIFIED in proof, promise


def test_every_name_in_backticks_that_looks_like_a_test_is_written_so_that_it_is_checked():
    assert DOCUMENT.count("::test_") == len(re.findall(r"`tests/[\w/]+\.py::test_\w+`", DOCUMENT))
