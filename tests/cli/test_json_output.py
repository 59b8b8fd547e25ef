"""With `--json`, a command prints one JSON document on stdout and nothing else."""

import json
import sys
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main, stdout_for_json
from tests.end_to_end.launching import write_jobs

JOB = {"name": "reach", "policy_type": "zero_action", "arena_env_args": {"environment": "reach"}, "num_episodes": 2}

pytestmark = pytest.mark.usefixtures("quick_python")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("json")
    jobs = write_jobs(directory / "jobs.json", [JOB])
    assert main(["run", "--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out")]) == 0
    return directory / "out"


def test_list_gives_names_and_options(capsys):
    assert main(["list", "policies", "scripted", "--json"]) == 0
    [policy] = json.loads(capsys.readouterr().out)
    assert policy["name"] == "scripted"
    assert {"name": "speed", "required": False, "choices": [], "default": 1.0} in policy["options"]
    assert main(["list", "environments", "--json"]) == 0
    lift = next(each for each in json.loads(capsys.readouterr().out) if each["name"] == "lift_object")
    assert "panda" in lift["embodiments"]


def test_list_gives_what_a_policy_is_given_and_gives(capsys):
    assert main(["list", "environments", "lift_object", "--json", "--embodiment", "so101"]) == 0
    [lift] = json.loads(capsys.readouterr().out)
    assert lift["observation"]["policy.gripper_pos"]["shape"] == [1]
    assert lift["action"]["shape"] == [6]
    assert (lift["control_dt"], lift["max_episode_length"]) == (0.05, 160)


def test_validate_gives_files_and_problems(tmp_path, capsys):
    good = write_jobs(tmp_path / "good.json", [JOB])
    bad = write_jobs(tmp_path / "bad.json", [{**JOB, "policy_type": "scriptd"}])
    assert main(["validate", "--json", str(good), str(bad)]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(each["file"], each["jobs"], each["episodes"]) for each in found["files"]] == [(str(good), ["reach"], 2)]
    [problem] = found["problems"]
    assert (problem["file"], problem["job"], problem["key"]) == (str(bad), "reach", "policy_type")
    assert "did you mean 'scripted'?" in problem["message"]


def test_merge_gives_what_results_json_holds(run, capsys):
    assert main(["merge", str(run), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((run / "results.json").read_text())
    assert "zero_action" in printed.err


def test_verify_gives_problems_and_episodes(run, capsys):
    assert main(["verify", str(run), "--json", "--sample", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_sound"], found["problems"], len(found["episodes"])) == (True, [], 1)
    assert found["episodes"][0]["difference"] is None


def test_replay_gives_episodes(run, capsys):
    assert main(["replay", str(run / "reach"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_bitwise"]
    assert [each["episode_index"] for each in found["episodes"]] == [0, 1]


def test_doctor_gives_findings(capsys):
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["works"] == (code == 0)
    assert "physics" in {each["subject"] for each in found["findings"]}
    assert found["ranks"] == []


def test_what_is_for_people_goes_to_stderr_only_where_json_is_wanted(capsys):
    for wanted in (True, False):
        with stdout_for_json(wanted=wanted):
            sys.stdout.write("hello\n")
    assert capsys.readouterr() == ("hello\n", "hello\n")
