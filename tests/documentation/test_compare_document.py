"""The commands of docs/how_to/compare.md run in their order, and say what the page says."""

import pytest

from tests.documentation.reading import as_arguments, blocks
from tests.end_to_end.launching import ROOT, run

PAGE = (ROOT / "docs" / "how_to" / "compare.md").read_text()
COMMANDS = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("workspace")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_runs(workspace, line):
    finished = run(as_arguments(line), timeout_s=200, directory=workspace)
    assert finished.returncode == 0, finished.stderr
    if "compare outputs/old outputs/new" in line:
        assert ("no worse" if "--margin" in line else "verdict: better") in finished.stdout


def test_the_columns_of_the_page_are_those_of_the_table(workspace):
    """Depends on the page's commands having run."""
    header = (workspace / "outputs" / "new" / "comparison.md").read_text().splitlines()[2]
    shown = [cell.strip().partition(" [")[0] for cell in header.strip("|").split("|")]
    for column in shown[1:]:
        assert column in PAGE, column
