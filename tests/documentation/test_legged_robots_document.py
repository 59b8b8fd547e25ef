"""What the page of legged robots says of success is what the tasks ask, and its metrics are in the tables."""

import json

import pytest

from isaaclab_arena.evaluation.policy_runner import main
from tests.end_to_end.launching import ROOT, episodes_table

DOCUMENT = (ROOT / "docs" / "reference" / "legged_robots.md").read_text()


def section(name: str) -> str:
    return DOCUMENT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("task", ["walk_humanoid", "velocity_go1", "track_motion"])
def test_metrics_that_the_page_names_are_in_every_line_of_the_table(task, tmp_path):
    arguments = ["--policy_type", "zero_action", "--num_episodes", "2", "--no_dataset", "--output_dir", str(tmp_path)]
    assert main([*arguments, task, "--num_envs", "2"]) == 0
    for metrics in map(json.loads, episodes_table(tmp_path)["metrics"]):
        assert metrics
        for name, value in metrics.items():
            assert f"`{name}`" in section(task)
            assert isinstance(value, float)
