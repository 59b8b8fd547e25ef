"""Tests of ``eval_info.json`` against what LeRobot's versions write, kept in eval_info_schemas.json."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.exports import export_arena, export_lerobot
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


def read(path: Path) -> dict[str, Any]:
    return json.loads((path / "eval_info.json").read_text())


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """Return the export of a run of two jobs, one of them with rewards."""
    directory = tmp_path_factory.mktemp("exported")
    run = directory / "run"
    write_plan(run, planned("old", num_episodes=4), planned("new", index=1, num_episodes=4))
    for job, outcomes in (("old", "sfft"), ("new", "ssfs")):
        write_lines(run, commit_lines(outcomes, job=job))
        write_report(run, report(job))
    for index in range(4):
        rewards = np.array([0.5, index + 1.0, 0.25], dtype=np.float32)
        write_arrays(run, "new", index, {"actions": np.zeros((3, 2)), "rewards": rewards})
    export_lerobot(run, directory / "there")
    return directory / "there"


@pytest.mark.parametrize("version", SCHEMAS)
def test_files_have_the_keys_and_types_of_every_version(exported, version):
    check(read(exported / "new"), SCHEMAS[version])
    if version != SINGLE_TASK:
        check(read(exported), SCHEMAS[version])
    assert "per_episode" not in read(exported)


def test_rates_are_percentages_over_the_episodes_of_tasks_groups_and_all(exported):
    info = read(exported)
    assert [(each["task_group"], each["task_id"]) for each in info["per_task"]] == [
        ("lift_object", at) for at in (0, 1)
    ]
    assert info["per_task"][1]["metrics"]["successes"] == [True, True, False, True]
    assert info["per_task"][1]["metrics"]["max_rewards"] == [1.0, 2.0, 3.0, 4.0]
    assert info["per_group"]["lift_object"]["pc_success"] == info["overall"]["pc_success"] == 50.0
    assert (info["overall"]["n_episodes"], info["overall"]["eval_s"], info["overall"]["eval_ep_s"]) == (8, 8.0, 1.0)
    assert read(exported / "new")["aggregated"]["pc_success"] == 75.0
    # LeRobot's compare_policies.py pairs two files whose lists of seeds are equal, and its reward may be NaN.
    old, new = (read(exported / name)["per_episode"] for name in ("old", "new"))
    assert [each["seed"] for each in old] == [each["seed"] for each in new] == [0, 1, 2, 3]
    assert (math.isnan(old[0]["max_reward"]), old[0]["sum_reward"]) == (True, 0.0)


def test_episodes_whose_success_is_not_known_are_left_out_and_said(tmp_path):
    lines = export_lerobot(write_job(tmp_path / "run", "seuf", num_episodes=4), tmp_path / "there")
    assert [each["episode_ix"] for each in read(tmp_path / "there" / "lift")["per_episode"]] == [0, 3]
    assert "2 of 4 episodes" in lines[1]


def test_the_rate_of_a_job_that_stopped_at_its_answer_is_that_of_its_row(tmp_path):
    stopped_run(tmp_path / "run")
    lines = export_lerobot(tmp_path / "run", tmp_path / "there")
    rows = {row["name"]: row for row in records(merge_results(tmp_path / "run").jobs)}
    for name, row in rows.items():
        assert read(tmp_path / "there" / name)["overall"]["n_episodes"] == row["episodes"] < 12
    assert f"{12 - rows['new']['episodes']} episodes beyond" in lines[1]


REFUSED = {
    "nothing to run": (export_arena, "", {"status": JobStatus.COMPLETED}, "no job to export"),
    "no success": (export_lerobot, "u", {}, "no episode whose success"),
}


@pytest.mark.parametrize(("export", "outcomes", "said", "words"), REFUSED.values(), ids=REFUSED)
def test_a_run_of_which_there_is_nothing_to_export_is_refused(tmp_path, export, outcomes, said, words):
    write_plan(tmp_path / "run", planned(num_episodes=1, **said))
    if outcomes:
        write_lines(tmp_path / "run", commit_lines(outcomes))
    with pytest.raises(ConfigError, match=words):
        export(tmp_path / "run", tmp_path / "there")
