"""``--limit``: trying a job file out on a few episodes of each job, and saying so."""

import json

import pytest

from isaaclab_arena.cli.main import main as command
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.policy_runner import main as run_policy
from tests.end_to_end.launching import write_jobs
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinConfig, ShrugPolicy

REACH = {"arena_env_args": {"environment": "reach", "num_envs": 2}, "policy_type": "scripted"}
JOBS = [
    {"name": "many", **REACH, "num_episodes": 7},
    {"name": "rebuilt", **REACH, "num_episodes": 7, "num_rebuilds": 5},
    {"name": "few", **REACH, "num_episodes": 2},
    {"name": "steps", **REACH, "num_steps": 300},
]
LINE = "limited to 3 episodes a job: not the job file's numbers"


def test_every_job_is_cut_to_that_many_episodes_and_the_table_and_the_plan_say_so(tmp_path, capsys):
    path = write_jobs(tmp_path / "jobs.json", JOBS)
    output = tmp_path / "out"
    assert command(["validate", str(path), "--limit", "3"]) == 0
    assert capsys.readouterr().out.strip().endswith(", limited to 3 episodes a job")
    typed = ["--eval_jobs_config", str(path), "--output_dir", str(output)]
    assert main([*typed, "--limit", "3"]) == 0
    assert LINE in capsys.readouterr().out.splitlines()
    jobs = json.loads((output / "results.json").read_text())["jobs"]
    assert [(job["name"], job["episodes"]) for job in jobs] == [("many", 3), ("rebuilt", 3), ("few", 2), ("steps", 3)]
    assert json.loads((output / "run.json").read_text())["settings"]["limit"] == 3
    assert command(["merge", str(output)]) == 0
    assert LINE in capsys.readouterr().out.splitlines(), "whoever merges later is told too"
    assert main([*typed, "--resume", "--limit", "3"]) == 0
    capsys.readouterr()
    assert main([*typed, "--resume"]) == 2
    assert "--limit: was 3 when the run began, now null" in capsys.readouterr().err


def test_one_policy_from_the_command_line_can_be_tried_out_too(tmp_path, capsys):
    typed = ["--policy_type", "scripted", "--num_episodes", "20", "--limit", "1", "--output_dir", str(tmp_path / "out")]
    assert run_policy([*typed, "reach"]) == 0
    assert "limited to 1 episode a job: not the job file's numbers" in capsys.readouterr().out


@pytest.mark.parametrize("run", [command, main])
def test_a_limit_below_one_is_refused(tmp_path, capsys, run):
    path = str(write_jobs(tmp_path / "jobs.json", JOBS))
    assert (
        run(["validate", path, "--limit", "0"] if run is command else ["--eval_jobs_config", path, "--limit", "0"]) == 2
    )
    assert "--limit: must be at least 1, got 0" in capsys.readouterr().err


def test_a_policy_that_knows_its_number_of_episodes_is_cut_too(tmp_path):
    class Ten(ShrugPolicy):
        def num_episodes(self):
            return 10

    runner = JobRunner(settings(tmp_path))
    cut = coin_job("cut", policy_class=Ten, num_steps=None, environment=CoinConfig(), max_episodes=4)
    whole = coin_job("whole", policy_class=Ten, num_steps=None, environment=CoinConfig(), max_episodes=40)
    assert [runner.run(job).num_episodes for job in (cut, whole)] == [4, 10]
