"""A job of a robot on a floor says how far its failures came and why, as a job on a table does."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as command
from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import write_jobs


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("floor")
    job = {"name": "pole", "arena_env_args": {"environment": "cartpole", "num_envs": 2}, "num_episodes": 3}
    jobs = write_jobs(directory / "jobs.json", [{**job, "policy_type": "zero_action"}])
    assert main(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out")]) == 0
    return directory / "out"


def test_its_tables_have_progress_events_and_score(run):
    episodes = pd.read_parquet(run / "episodes.parquet")
    assert set(episodes["decisive_event"]) == {"fell_over"}
    assert episodes["progress"].between(0.01, 0.2).all()
    assert [json.loads(each)["fell_over"] for each in episodes["events"]] == [[each, 1] for each in episodes["length"]]
    (job,) = json.loads((run / "results.json").read_text())["jobs"]
    assert job["failure_progress"] == pytest.approx(episodes["progress"].mean())
    assert job["score"] == pytest.approx(job["failure_progress"])


def test_its_failures_have_a_reason_in_the_report_and_can_be_compared(run, tmp_path, capsys):
    shown = re.findall(r'class="share"[^>]*><b>(\d+)</b> ([^<]*)<', (run / "report.html").read_text())
    assert shown == [("3", "fell over")]
    assert command(["compare", str(run), str(run), "--json", "--output_dir", str(tmp_path)]) == 4
    [compared] = json.loads(capsys.readouterr().out)["tasks"]
    assert "fell_over" in {each["event"] for each in compared["events"]}
