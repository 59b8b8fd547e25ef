import json

import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import RunPlan, read_run_plan, write_run_plan
from tests.storage.plan_entries import plan_entry

PLAN = RunPlan(
    run_id="2026-01-01_00-00-00",
    created_at="2026-01-01T00:00:00+00:00",
    config_hash="abc",
    source_file="jobs.json",
    command_line=("eval_runner", "--eval_jobs_config", "jobs.json"),
    world_size=2,
    versions={"torch": "2.13.0"},
    git_revision=None,
    machine=Node(host="here", cpu="some", cores=2, platform="Linux"),
    devices=("cpu", "cpu"),
    jobs=(
        plan_entry("a", seed=2**62, num_envs=4),
        plan_entry(
            "b",
            index=1,
            rank=None,
            policy_config_dict={"replay_file_path": "x"},
            policy_config={"replay_file_path": "x", "num_envs": 1},
            num_episodes=5,
            status=JobStatus.COMPLETED,
        ),
    ),
)


def test_a_plan_comes_back_as_it_was(tmp_path):
    write_run_plan(tmp_path, PLAN)
    assert read_run_plan(tmp_path) == PLAN


def test_a_plan_is_never_written_over(tmp_path):
    write_run_plan(tmp_path, PLAN)
    with pytest.raises(StorageError, match=r"run\.json exists already"):
        write_run_plan(tmp_path, PLAN)


def test_a_directory_without_a_plan_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="not the output of a run"):
        read_run_plan(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"schema_ver', "is not valid JSON"),
        ("[]", "was not written by this program"),
        ('{"jobs": []}', "was not written by this program"),
        ('{"schema_version": 0}', "has schema version 0; this program reads version 1"),
        ('{"schema_version": 1}', "run_id: Field required"),
    ],
)
def test_a_foreign_or_broken_plan_is_named(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_run_plan(tmp_path)


def test_a_wrong_type_is_named_with_its_place(tmp_path):
    path = write_run_plan(tmp_path, PLAN)
    document = json.loads(path.read_text())
    document["jobs"][1]["config"]["seed"] = "many"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"jobs\.1\.config\.seed"):
        read_run_plan(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "", "a\nb", "logs"])
def test_a_job_whose_name_cannot_be_a_directory_is_refused(tmp_path, name):
    path = write_run_plan(tmp_path, PLAN)
    document = json.loads(path.read_text())
    document["jobs"][1]["config"]["name"] = name
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"jobs\[1\]\.config\.name"):
        read_run_plan(tmp_path)
