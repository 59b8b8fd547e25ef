import json

import pandas as pd

from isaaclab_arena.cli.main import main
from tests.analysis.recorded_runs import write_run
from tests.analysis.robustness.changed_runs import write_changed_run


def test_a_finished_run_is_read_and_nothing_runs(tmp_path, capsys):
    run = write_changed_run(tmp_path / "run", {("benign", 0): "ssss", ("delay", 5): "fsff"})
    assert main(["robustness", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "+75.0" in shown
    assert (run / "robustness.csv").is_file()
    assert main(["robustness", str(run), "--num_envs", "3"]) == 2
    assert "--num_envs" in capsys.readouterr().err


def test_a_run_without_arms_has_an_exit_code_of_its_own(tmp_path, capsys):
    assert main(["robustness", str(write_run(tmp_path / "run", {"lift": "ss"}))]) == 3
    assert "has arms; give a job file" in " ".join(capsys.readouterr().out.split())


def test_a_job_file_is_run_with_its_arms_and_compared_over_equal_episodes(tmp_path, capsys):
    job = {"name": "reach", "policy_type": "scripted", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    plain, arms = tmp_path / "plain", tmp_path / "arms"
    file = ["--eval_jobs_config", str(tmp_path / "jobs.json")]
    assert main(["run", *file, "--output_dir", str(plain), "--no_report"]) == 0
    options = ["--axes", "robot_start", "--levels", "1", "--output_dir", str(arms)]
    assert main(["robustness", str(tmp_path / "jobs.json"), *options, "--no_dataset"]) == 0
    assert "reach: at level 1 success drops along no axis" in capsys.readouterr().out
    assert "Robustness</h2>" in (arms / "report.html").read_text()
    episodes = pd.read_csv(arms / "episodes.csv", dtype=str).set_index("job")
    benign = episodes.loc["reach-benign"].drop(columns="checksum").reset_index(drop=True)
    alone = pd.read_csv(plain / "episodes.csv", dtype=str).drop(columns=["checksum", "job"])
    pd.testing.assert_frame_equal(benign, alone)
    figures = pd.read_csv(arms / "robustness.csv").set_index("axis")
    assert figures.loc["robot_start", "pairs"] == 2


def test_a_wrong_axis_leaves_no_directory_behind(tmp_path, capsys):
    job = {"name": "reach", "policy_type": "scripted", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    options = ["--axes", "robot_strat", "--output_dir", str(tmp_path / "arms")]
    assert main(["robustness", str(tmp_path / "jobs.json"), *options]) == 2
    assert "did you mean 'robot_start'?" in capsys.readouterr().err
    assert not (tmp_path / "arms").exists()
