"""The five pages of Start carry a stranger: what they say is done in an empty directory, one page after the other."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.documentation.reading import blocks, commands_of
from tests.documentation.story import follow, steps_of
from tests.end_to_end.launching import ROOT, jobs_table

START = ROOT / "docs" / "start"
PAGES = {name: (START / f"{name}.md").read_text() for name in
         ("install", "first_run", "my_policy", "my_task", "read_the_results")}  # fmt: skip
# That is done by a test of the wheel, in an environment of its own.
INSTALLING = ("python3 -m venv ", "source ", "pip install isaaclab-arena-mujoco")
STEPS = [pytest.param(step, id=f"{page}: {step.file or step.text}") for page in PAGES for step in steps_of(PAGES[page])
         if not step.text.startswith(INSTALLING)]  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """An empty directory, in which the steps are done one after the other."""
    return tmp_path_factory.mktemp("workspace")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_can_be_done(workspace, step):
    follow(step, workspace)


def test_the_front_page_shows_what_start_begins_with():
    front = commands_of((ROOT / "docs" / "index.md").read_text())
    assert set(front) - set(commands_of(PAGES["install"])) == {"isaaclab-arena quickstart"}
    assert any(line.startswith(front[-1]) for line in commands_of(PAGES["install"]))


def evaluated(workspace: Path) -> list[dict[str, Any]]:
    """Return the rows of all jobs of the dated runs in a workspace."""
    tables = pd.concat(map(jobs_table, (workspace / "outputs").glob("20*")))
    return json.loads(str(tables.to_json(orient="records")))


@pytest.mark.parametrize(
    ("policy", "environment", "rate"),
    [
        ("my_policy.MyPolicy", "reach", 1.0),
        ("my_network.MyNetwork", "reach", 1.0),
        ("my_solution.MySolution", "hover", 1.0),
        ("random_action", "hover", 0.0),
    ],
)
def test_a_policy_of_the_pages_is_as_good_as_they_say(workspace, policy, environment, rate):
    """Depends on the steps having been done."""
    rows = [row for row in evaluated(workspace) if (row["policy"], row["environment"]) == (policy, environment)]
    assert [row["success_rate"] for row in rows] == [rate]


def test_the_table_that_is_shown_is_the_one_that_the_command_gives(workspace):
    (shown,) = [body for body in blocks(PAGES["first_run"], "") if "status" in body]
    (row,) = [row for row in evaluated(workspace) if row["name"] == "lift_object"]
    assert f"{100 * row['success_rate']:.1f} [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]" in shown
    assert f"{row['mean_length']:.1f} ±{row['std_length']:.1f}" in shown
