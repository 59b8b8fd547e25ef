"""The commands that check, resume and watch."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.runs import resuming_words
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.end_to_end.launching import ROOT, write_jobs
from tests.environments.libero.checkouts import NUM_STATES, SUITES, in_checkout, make_checkout
from tests.evaluation.watching.trainings import save

# `isaaclab-arena resume` goes on with a run from its directory alone.


SHY = {"policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 3}}
REACH = {"arena_env_args": {"environment": "reach"}, "num_episodes": 1}


def num_attempts(run: Path) -> int:
    return len(list((run / "attempts").glob("attempt_*.json")))


@pytest.fixture
def shy_run(tmp_path, monkeypatch) -> Path:
    """A run whose only episode has failed, in the directory where it was started."""
    write_jobs(tmp_path / "jobs.json", [{"name": "shy", **REACH, **SHY}])
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--eval_jobs_config", "jobs.json", "--output_dir", "out"]) == 1
    return tmp_path / "out"


def test_it_runs_the_command_of_the_run_again_where_it_is_now_with_what_is_added(shy_run):
    moved = shy_run.rename(shy_run.with_name("moved"))
    assert main(["resume", "moved", "--retry_errors"]) == 1
    second = json.loads((moved / "attempts" / "attempt_2.json").read_text())
    typed = ["--eval_jobs_config", "jobs.json", "--resume", str(moved), "--retry_errors"]
    assert second["command_line"][1:] == typed


def test_a_single_policys_run_goes_on_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = ["--policy_type", "tests.fakes.ShrugPolicy", "--num_episodes", "1"]
    assert main(["policy", *policy, "reach", "--raise_at", "3"]) == 1
    [run] = (tmp_path / "outputs").iterdir()
    assert main(["resume", str(run)]) == 1
    assert num_attempts(run) == 2


def test_a_training_goes_on_to_what_is_asked_for_now(tmp_path):
    run = tmp_path / "run"
    few = ["--num_envs", "4", "--max_iterations", "1", "agent.num_steps_per_env=4", "--run_directory", str(run)]
    assert main(["train", "cartpole", *few, "evaluation.interval=0"]) == 0
    assert main(["resume", str(run), "--max_iterations", "2"]) == 0
    assert (run / "model_2.pt").is_file()


def planned(run: Path, **changes: Any) -> None:
    """Change what a run says of how it was begun."""
    plan = read_run_plan(run)
    (run / "run.json").unlink()
    write_run_plan(run, replace(plan, **changes))


@pytest.mark.usefixtures("quick_python")
def test_as_many_ranks_are_started_as_the_run_had(shy_run, monkeypatch):
    # The policy is a test's, and a rank is a process of its own.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    planned(shy_run, devices=("cpu", "cpu"), world_size=2)
    assert main(["resume", "out"]) == 1
    assert json.loads((shy_run / "attempts" / "attempt_2.json").read_text())["world_size"] == 2


@pytest.mark.parametrize(("begun_on", "more"), [(("--cluster", "ray"), []), ((), ["--cluster", "ray"])])
def test_the_ranks_of_a_cluster_are_left_to_it(shy_run, begun_on, more):
    plan = read_run_plan(shy_run)
    several = replace(plan, devices=("cpu", "cpu"), world_size=2, command_line=(*plan.command_line, *begun_on))
    words = resuming_words(several, shy_run, more)
    assert words == ["--eval_jobs_config", "jobs.json", *begun_on, "--resume", str(shy_run), *more]


def test_a_run_goes_on_nowhere_else_on_no_guessed_ranks_and_with_no_import_that_is_forbidden(
    shy_run, tmp_path_factory, monkeypatch, capsys
):
    assert main(["resume", "out", "--no_import"]) == 2
    assert "--no_import allows registered names only" in capsys.readouterr().err
    planned(shy_run, devices=("cuda:0", "cuda:0"), world_size=2)
    assert main(["resume", "out"]) == 2
    assert "say what to use with --gpu_ids" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["resume", str(shy_run)]) == 2
    assert f"was started in '{shy_run.parent}', from where its paths count" in capsys.readouterr().err
    assert num_attempts(shy_run) == 1


FINETUNE = "isaaclab_arena_gr00t.training.finetune"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command_line": ["of_nobody.learn", "--fast"]}, "names no command that is installed: of_nobody.learn"),
        ({"command_line": [FINETUNE], "world_size": 2}, "--nproc_per_node=2 -m isaaclab_arena.cli resume "),
    ],
)
def test_a_training_of_another_package_needs_its_command_and_as_many_ranks_as_it_had(
    settings, message, tmp_path, capsys
):
    (tmp_path / "training.json").write_text(json.dumps(settings))
    assert main(["resume", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


# ``isaaclab-arena validate`` counts the episodes that would be run.


def test_episodes_whose_number_is_the_environments_own_are_counted(tmp_path, capsys):
    options = {**in_checkout(make_checkout(tmp_path)), "protocol": "strict"}
    block = {"name": "spatial", "suite": "libero_spatial", "arena_env_args": options, "policy_type": "zero_action"}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [block]}))
    assert main(["validate", str(path)]) == 0, capsys.readouterr().err
    num_tasks = len(SUITES["libero_spatial"])
    assert f"{num_tasks} jobs, {num_tasks * NUM_STATES} episodes, " in capsys.readouterr().out


REACHES = {"arena_env_args": {"environment": "reach"}, "num_episodes": 3, "policy_type": "scripted"}
LIFTS = {"environment": "lift_object", "objct": "cub"}
NO_SUCH_GPU = {"checkpoint_path": "none.pt", "policy_device": "cuda:99"}
REPLAYED = {"replay_file_path": "none.hdf5", "episode_nam": "x"}
MISTAKEN = {
    "a": ({"num_episodes": "3", "policy_type": "scriptd", "arena_env_args": {**LIFTS, "environment": "lift_objec"}},
          ["arena_env_args.environment", "num_episodes", "policy_type"]),
    "b": ({"policy_type": "replay", "policy_config_dict": REPLAYED,
           "arena_env_args": {**LIFTS, "embodiment": "pandaa"}},
          ["arena_env_args.embodiment", "arena_env_args.objct",
           "policy_config_dict.episode_nam", "policy_config_dict.replay_file_path"]),
    "c": ({"num_episods": 3, "policy_type": "no.such.Policy", "variations": {"light": {"no_such": 1}},
           "arena_env_args": {"environment": "reach", "num_envs": 0}},
          ["arena_env_args.num_envs", "num_episods", "policy_type", "variations.light.no_such"]),
    # A device that is not there hides nothing else and is told once.
    "d": ({"policy_type": "rsl_rl", "policy_config_dict": NO_SUCH_GPU},
          ["policy_config_dict.checkpoint_path", "policy_config_dict.policy_device"]),
    # What may be missing only because it is wrong is not told.
    "e": ({"num_episodes": 0}, ["num_episodes"]),
}  # fmt: skip


def test_problems_of_all_stages_are_told_at_once(tmp_path, capsys):
    jobs = [{"name": name, **REACHES, **changes} for name, (changes, _) in MISTAKEN.items()]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": jobs, "tracking": ["wandbb"]}))
    assert main(["validate", "--json", str(tmp_path / "jobs.yaml")]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    found = sorted((problem["job"] or "", problem["key"]) for problem in problems)
    assert found == [("", "tracking"), *((name, key) for name, (_, keys) in MISTAKEN.items() for key in keys)]


# `isaaclab-arena watch` follows a training.


WATCHED = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "num_episodes": 4,
                  "arena_env_args": {"environment": "reach", "num_envs": 4, "action_mode": "ee_delta"}}]}  # fmt: skip
TRAINED = ROOT / "models" / "reach"


@pytest.fixture
def training(tmp_path, monkeypatch) -> Path:
    """The directory of a training with one good checkpoint, and the job file beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_text(json.dumps(WATCHED))
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
    job, arms = WATCHED["jobs"][0], {"robustness": {"axes": ["delay"]}}
    files = {"empty": {}, "arms": {"jobs": [{**job, **arms}]}, "all": {"defaults": arms, **WATCHED},
             "odd": {"jobs": [{**job, "num_episode": 1}]}}  # fmt: skip
    for name, document in files.items():
        Path(f"{name}.json").write_text(json.dumps(document))
    assert main(["watch", *line.split()]) == 2
    assert message in capsys.readouterr().err
