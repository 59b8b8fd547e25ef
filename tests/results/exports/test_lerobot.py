"""Tests of ``eval_info.json`` against what LeRobot's versions write, kept in eval_info_schemas.json."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.exports import export_lerobot
from isaaclab_arena.results.merge import merge_results, records
from tests.results.evidence import commit_lines, planned, report, write_job, write_lines, write_plan, write_report
from tests.storage.recordings import write_arrays
from tests.tracking.runs import stopped_run

SCHEMAS = json.loads(Path(__file__).with_name("eval_info_schemas.json").read_text())
SINGLE_TASK = next(name for name in SCHEMAS if "0.3.3" in name)
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str}


def check(value: Any, schema: Any, where: str = "") -> None:
    """Check that a value has at least the keys of a schema, and its types."""
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for each in value:
            check(each, schema[0], f"{where}[]")
    elif isinstance(schema, dict):
        for key in value if "*" in schema else schema:
            check(value[key], schema.get("*", schema.get(key)), f"{where}.{key}")
    else:
        assert isinstance(value, TYPES[schema]), where
        assert isinstance(value, bool) == (schema == "bool"), where


@pytest.fixture
def run(tmp_path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def export(run: Path) -> Path:
    export_lerobot(run, run.parent / "exported")
    return run.parent / "exported"


def read(path: Path) -> dict[str, Any]:
    return json.loads((path / "eval_info.json").read_text())


def two_jobs(run: Path) -> None:
    write_plan(run, planned("old", num_episodes=4), planned("new", index=1, num_episodes=4))
    for job, outcomes in (("old", "sfft"), ("new", "ssfs")):
        write_lines(run, commit_lines(outcomes, job=job))
        write_report(run, report(job))
    for index in range(4):
        rewards = np.array([0.5, index + 1.0, 0.25], dtype=np.float32)
        write_arrays(run, "new", index, {"actions": np.zeros((3, 2)), "rewards": rewards})


@pytest.mark.parametrize("version", SCHEMAS)
def test_a_jobs_file_has_the_keys_and_types_of_every_version(run, version):
    two_jobs(run)
    check(read(export(run) / "new"), SCHEMAS[version])


@pytest.mark.parametrize("version", [name for name in SCHEMAS if name != SINGLE_TASK])
def test_the_file_of_the_run_has_those_of_the_versions_that_know_several_tasks(run, version):
    two_jobs(run)
    info = read(export(run))
    check(info, SCHEMAS[version])
    assert "per_episode" not in info


def test_rates_are_percentages_over_the_episodes_of_tasks_groups_and_all(run):
    two_jobs(run)
    info = read(export(run))
    assert [(each["task_group"], each["task_id"]) for each in info["per_task"]] == [
        ("lift_object", 0),
        ("lift_object", 1),
    ]
    assert info["per_task"][1]["metrics"]["successes"] == [True, True, False, True]
    assert info["per_task"][1]["metrics"]["max_rewards"] == [1.0, 2.0, 3.0, 4.0]
    assert info["per_group"]["lift_object"]["pc_success"] == info["overall"]["pc_success"] == 50.0
    assert (info["overall"]["n_episodes"], info["overall"]["eval_s"], info["overall"]["eval_ep_s"]) == (8, 8.0, 1.0)
    assert read(run.parent / "exported" / "new")["aggregated"]["pc_success"] == 75.0


def test_equal_seeds_tell_a_comparison_that_episodes_are_pairs(run):
    """LeRobot's compare_policies.py pairs two files whose lists of seeds are equal."""
    two_jobs(run)
    exported = export(run)
    old, new = (read(exported / name)["per_episode"] for name in ("old", "new"))
    assert [each["seed"] for each in old] == [each["seed"] for each in new] == [0, 1, 2, 3]


def test_a_reward_that_was_not_recorded_is_nan_as_lerobot_writes_it(run):
    two_jobs(run)
    [first, *_] = read(export(run) / "old")["per_episode"]
    assert math.isnan(first["max_reward"])
    assert first["sum_reward"] == 0.0


def test_episodes_whose_success_is_not_known_are_left_out_and_said(run):
    write_job(run, "seuf", num_episodes=4)
    lines = export_lerobot(run, run.parent / "exported")
    assert [each["episode_ix"] for each in read(run.parent / "exported" / "lift")["per_episode"]] == [0, 3]
    assert lines[1:] == ["job 'lift': 2 of 4 episodes left out, whose success is not known"]


def test_a_run_without_a_measured_success_is_refused(run):
    write_plan(run, planned(num_episodes=1))
    write_lines(run, commit_lines("u"))
    with pytest.raises(ConfigError, match="no episode whose success is measured"):
        export(run)


def test_the_rate_of_a_job_that_stopped_at_its_answer_is_that_of_its_row(run):
    stopped_run(run)
    lines = export_lerobot(run, run.parent / "exported")
    rows = {row["name"]: row for row in records(merge_results(run).jobs)}
    for name, row in rows.items():
        assert read(run.parent / "exported" / name)["overall"]["n_episodes"] == row["episodes"] < 12
    assert lines[1] == f"job 'new': {12 - rows['new']['episodes']} episodes beyond its decision left out"
