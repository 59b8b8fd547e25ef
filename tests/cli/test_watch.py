"""The command that follows a training."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT
from tests.evaluation.watching.trainings import save

JOBS = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "num_episodes": 4,
                  "arena_env_args": {"environment": "reach", "num_envs": 4, "action_mode": "ee_delta"}}]}  # fmt: skip
TRAINED = ROOT / "models" / "reach"


@pytest.fixture
def training(tmp_path, monkeypatch) -> Path:
    """The directory of a training with one good checkpoint, and the job file beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_text(json.dumps(JOBS))
    directory = tmp_path / "training"
    (directory / "params").mkdir(parents=True)
    (directory / "params" / "agent.yaml").write_text((TRAINED / "params" / "agent.yaml").read_text())
    save(directory, 50, content=(TRAINED / "model_250.pt").read_bytes())
    return directory


LINE = [sys.executable, "-m", "isaaclab_arena.cli", "watch", "training", "--eval_jobs_config", "jobs.json"]
LINE += ["--poll_s", "0.2", "--device", "cpu"]


@pytest.mark.slow
def test_a_watch_that_is_killed_goes_on_and_a_second_one_follows_it(training, capsys):
    """The training saves its next checkpoint in two halves while both are at work."""
    content = (training / "model_50.pt").read_bytes()
    line = [*LINE, "--until", "iteration=150", "--bar", "0.3", "--promote", "good"]
    watches = [subprocess.Popen(line) for _ in range(2)]
    save(training, 100, content=content[:-100])
    time.sleep(15.0)
    for watch in watches:
        watch.kill()
    save(training, 100, 150, content=content)
    watches = [subprocess.Popen(line) for _ in range(2)]
    assert [watch.wait(timeout=300) for watch in watches] == [0, 0]
    curve = pd.read_csv("outputs/watch_training/curve.csv")
    assert curve[["step", "scored", "success_rate"]].to_numpy().tolist() == [[50, 4, 1.0], [100, 4, 1.0], [150, 4, 1.0]]
    for step in (50, 100, 150):
        episodes = pd.read_csv(f"outputs/watch_training/step_{step}/episodes.csv")
        assert episodes["episode_index"].tolist() == [0, 1, 2, 3]
    assert json.loads(Path("good/promoted.json").read_text())["success_rate"] == 1.0


def test_options_of_a_cluster_reach_the_run_of_every_checkpoint(training, capfd):
    pytest.importorskip("ray")
    cluster = "--cluster ray --ray_address ray://head:10001 --num_ranks 4 --gpus_per_rank 0.5 --cpus_per_rank 2"
    assert main(["watch", "training", "--eval_jobs_config", "jobs.json", "--once", *cluster.split()]) == 2
    assert "--ray_address: no Ray cluster can be reached at 'ray://head:10001'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no/where jobs.json", "TRAINING: 'no/where' is no directory"),
        ("nowhere jobs.json --once", "TRAINING: 'nowhere' is no directory"),
        ("training none.json", "none.json"),
        ("training empty.json", "jobs: null is no list of jobs"),
        ("training odd.json", "odd.json: job 'reach': num_episode: unknown key"),
        ("training arms.json", "jobs[0].robustness: would let changed episodes"),
        ("training all.json", "defaults.robustness: would let changed episodes"),
        ("training jobs.json --robustness all", "--robustness: would let changed"),
        ("training jobs.json --until soon", "--until: must be a step, such as 1000"),
        ("training jobs.json --promote good", "--promote: needs --bar"),
        ("training jobs.json --bar 1.5", "--bar"),
        ("training jobs.json --resume y", "--resume: is the watch's own"),
        ("training jobs.json --devise cpu", "--devise: unknown option; did you mean"),
        ("training jobs.json --num_ranks 2", "--num_ranks: has no effect without"),
    ],
)
def test_mistakes_are_told_before_anything_is_watched(training, capsys, line, message):
    job, arms = JOBS["jobs"][0], {"robustness": {"axes": ["delay"]}}
    files = {"empty": {}, "arms": {"jobs": [{**job, **arms}]}, "all": {"defaults": arms, **JOBS},
             "odd": {"jobs": [{**job, "num_episode": 1}]}}  # fmt: skip
    for name, document in files.items():
        Path(f"{name}.json").write_text(json.dumps(document))
    assert main(["watch", *line.split()]) == 2
    assert message in capsys.readouterr().err
