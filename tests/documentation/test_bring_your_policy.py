"""The pages that bring a function or an exported network are followed from top to bottom, and their policies act."""

from pathlib import Path

import pandas as pd
import pytest

from tests.documentation.story import follow, steps_of
from tests.end_to_end.launching import ROOT, jobs_table

PAGES = {name: (ROOT / "docs" / "bring_your_policy" / f"{name}.md").read_text()
         for name in ("function", "exported_networks")}  # fmt: skip


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory) -> dict[str, Path]:
    """An empty directory for each page."""
    return {name: tmp_path_factory.mktemp(name) for name in PAGES}


@pytest.mark.parametrize(
    ("page", "step"),
    [
        pytest.param(page, step, id=f"{page}: {step.file or step.text}")
        for page in PAGES
        for step in steps_of(PAGES[page])
    ],
)
def test_a_step_can_be_done(workspaces, page, step):
    follow(step, workspaces[page])


def test_the_functions_of_the_page_reach_their_marker(workspaces):
    """Depends on the steps having been done."""
    outputs = workspaces["function"] / "outputs"
    rows = pd.concat(map(jobs_table, [outputs / "reach", *outputs.glob("20*")]))
    assert rows["success_rate"].tolist() == [1.0, 1.0, 1.0]
    assert set(rows["policy"]) == {"reach_policy:act", "network_policy:act"}
