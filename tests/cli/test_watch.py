"""The command that follows a training."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.learning_curve import read_records
from tests.end_to_end.launching import ROOT, patience_s
from tests.evaluation.watching.trainings import save

JOBS = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "num_episodes": 4,
                  "arena_env_args": {"environment": "reach", "num_envs": 4, "action_mode": "ee_delta"}}]}  # fmt: skip
TRAINED = ROOT / "models" / "reach"
CARTPOLE = ROOT / "models" / "cartpole"


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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_of_many_checkpoints_each_is_evaluated_once_by_a_watch_that_is_killed_again_and_again(training):
    """WATCHED_CHECKPOINTS may ask for more; a kill leaves a run behind, after whose end the next watch goes on."""
    num_checkpoints = int(os.environ.get("WATCHED_CHECKPOINTS", "8"))
    [trained] = CARTPOLE.glob("model_*.pt")
    content = trained.read_bytes()
    shutil.copy(CARTPOLE / "params" / "agent.yaml", training / "params" / "agent.yaml")
    steps = range(1, num_checkpoints + 1)
    (training / "model_50.pt").unlink()
    save(training, *steps, content=content)
    job = {"name": "cartpole", "policy_type": "rsl_rl", "num_episodes": 2}
    job["arena_env_args"] = {"environment": "cartpole", "num_envs": 2}
    Path("jobs.json").write_text(json.dumps({"jobs": [job]}))
    line = [*LINE, "--no_dataset", "--no_report", "--until", str(num_checkpoints)]
    chance, deadline = random.Random(0), time.monotonic() + patience_s(30.0 * num_checkpoints)
    for _ in range(num_checkpoints // 3):
        with subprocess.Popen(line) as watch:
            time.sleep(chance.uniform(0.0, 6.0))
            assert watch.poll() is None, "the watch was over before all kills"
            watch.kill()
    assert subprocess.run(line, check=False, timeout=max(deadline - time.monotonic(), 1.0)).returncode == 0
    records = read_records(Path("outputs/watch_training"))
    assert [*records] == [*steps]
    assert all(record.is_done and record.tries == 0 for record in records.values())
    for step in steps:
        lines = Path(f"outputs/watch_training/step_{step}/cartpole-{step}").glob("episode_results_*.jsonl")
        played = [json.loads(text)["episode_index"] for file in lines for text in file.read_text().splitlines()]
        assert sorted(played) == [0, 1], f"step {step}"
    assert len(pd.read_csv("outputs/watch_training/curve.csv")) == num_checkpoints


def test_options_of_a_cluster_reach_the_run_of_every_checkpoint(training, capfd):
    pytest.importorskip("ray")
    cluster = "--cluster ray --ray_address ray://head:10001 --num_ranks 4 --gpus_per_rank 0.5 --cpus_per_rank 2"
    assert main(["watch", "training", "--eval_jobs_config", "jobs.json", "--once", *cluster.split()]) == 2
    assert "--ray_address: no Ray cluster can be reached at 'ray://head:10001'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/where", "--eval_jobs_config", "jobs.json"], "TRAINING: 'no/where' is no directory"),
        (["nowhere", "--eval_jobs_config", "jobs.json", "--once"], "TRAINING: 'nowhere' is no directory"),
        (["training", "--eval_jobs_config", "none.json"], "none.json"),
        (["training", "--eval_jobs_config", "none of it.json"], "jobs: null is no list of jobs"),
        (["training", "--eval_jobs_config", "jobs.json", "--until", "soon"], "--until: must be a step, such as 1000"),
        (["training", "--eval_jobs_config", "jobs.json", "--promote", "good"], "--promote: needs --bar"),
        (["training", "--eval_jobs_config", "jobs.json", "--bar", "1.5"], "--bar"),
        (["training", "--eval_jobs_config", "jobs.json", "--resume", "y"], "--resume: is the watch's own"),
        (["training", "--eval_jobs_config", "arms.json"], "jobs[0].robustness: would let changed episodes"),
        (["training", "--eval_jobs_config", "all.json"], "defaults.robustness: would let changed episodes"),
        (["training", "--eval_jobs_config", "jobs.json", "--robustness", "all"], "--robustness: would let changed"),
        (["training", "--eval_jobs_config", "odd.json"], "odd.json: job 'reach': num_episode: unknown key"),
        (["training", "--eval_jobs_config", "jobs.json", "--devise", "cpu"], "--devise: unknown option; did you mean"),
        (["training", "--eval_jobs_config", "jobs.json", "--num_ranks", "2"], "--num_ranks: says how to use a cluster"),
    ],
    ids=["no training", "none yet", "no job file", "no jobs", "no step", "no bar", "no share", "resume", "arms",
         "all arms", "asks for arms", "a misspelt key", "a misspelt option of the runner", "options of no cluster"],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_watched(training, capsys, words, message):
    arms = {"robustness": {"axes": ["delay"]}}
    Path("arms.json").write_text(json.dumps({"jobs": [{**JOBS["jobs"][0], **arms}]}))
    Path("all.json").write_text(json.dumps({"defaults": arms, **JOBS}))
    Path("none of it.json").write_text("{}")
    odd = {"name": "reach", "num_episode": 1, "arena_env_args": {"environment": "reach"}, "policy_type": "rsl_rl"}
    Path("odd.json").write_text(json.dumps({"jobs": [odd]}))
    assert main(["watch", *words]) == 2
    assert message in capsys.readouterr().err
