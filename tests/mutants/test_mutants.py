"""The lists of faults fit the code, and what tries them tells a fault that is noticed from one that is not."""

from pathlib import Path

import pytest
import yaml

from tests.mutants.__main__ import DIRECTORY, ROOT, main
from tests.mutants.faults import areas, read_faults

SOURCE = "def larger(first, second):\n    return first if first > second else second\n\n\nLIMIT = 3\n"
TEST = "from package.numbers import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == 2\n"
NOTICED = {
    "file": "package/numbers.py",
    "old": "first > second",
    "new": "first < second",
    "tests": ["tests/test_numbers.py"],
    "why": "the larger number is returned",
}
SURVIVES = {**NOTICED, "old": "LIMIT = 3", "new": "LIMIT = 4", "why": "there is a limit"}


@pytest.fixture
def tree(tmp_path) -> Path:
    """A project of one function and one test."""
    for name, text in {
        "package/__init__.py": "",
        "package/numbers.py": SOURCE,
        "tests/test_numbers.py": TEST,
        "pytest.ini": "[pytest]\nmarkers =\n    slow: no\n    gpu: no\n",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def try_list(tree: Path, *faults: dict[str, object]) -> int:
    lists = tree.parent / "lists"
    lists.mkdir(exist_ok=True)
    (lists / "numbers.yaml").write_text(yaml.safe_dump(list(faults)))
    return main(["--root", str(tree), "--directory", str(lists)])


@pytest.mark.parametrize("area", areas(DIRECTORY))
def test_every_fault_of_a_list_still_fits_the_code(area):
    misfits = {fault.why: misfit for fault in read_faults(DIRECTORY, area) if (misfit := fault.misfit(ROOT))}
    assert not misfits


def test_a_fault_that_a_test_notices_is_told_from_one_that_survives(tree, capsys):
    assert try_list(tree, NOTICED, SURVIVES) == 1
    output = capsys.readouterr().out
    assert "survived: package/numbers.py: there is a limit\n- LIMIT = 3\n+ LIMIT = 4" in output
    assert output.splitlines()[-1].split() == ["all", "2", "1", "0", "1", "50%"]


def test_faults_that_are_all_noticed_end_with_0_and_leave_the_tree_alone(tree):
    assert try_list(tree, NOTICED) == 0
    assert (tree / "package" / "numbers.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": "first"}, "occurs 3 times"),
        ({"old": "third"}, "occurs 0 times"),
        ({"new": "first >"}, "no Python"),
        ({"new": "first > second"}, "the new text is the old one"),
        ({"file": "package/none.py"}, "does not exist"),
        ({"tests": ["tests/test_none.py"]}, "tests that do not exist: tests/test_none.py"),
    ],
)
def test_a_fault_that_does_not_fit_is_named_and_nothing_is_tried(tree, capsys, change, message):
    assert try_list(tree, {**NOTICED, **change}) == 2
    assert message in capsys.readouterr().out


def test_tests_that_fail_without_a_fault_notice_nothing(tree, capsys):
    (tree / "tests" / "test_numbers.py").write_text(TEST.replace("== 2", "== 1"))
    assert try_list(tree, NOTICED) == 2
    assert "the tests fail without a fault" in capsys.readouterr().out
