"""The commands that check and resume runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.runs import resuming_words
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.end_to_end.launching import ROOT, write_jobs
from tests.environments.libero.checkouts import NUM_STATES, SUITES, in_checkout, make_checkout

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


def test_it_runs_the_command_of_the_run_again_with_what_is_added(shy_run, capsys):
    capsys.readouterr()
    assert main(["resume", "out", "--retry_errors"]) == 1
    second = json.loads((shy_run / "attempts" / "attempt_2.json").read_text())
    assert second["command_line"][1:] == [
        "--eval_jobs_config", "jobs.json", "--resume", str(shy_run), "--retry_errors",
    ]  # fmt: skip


def test_a_run_that_was_moved_goes_on_where_it_is_now(shy_run):
    moved = shy_run.rename(shy_run.with_name("moved"))
    assert main(["resume", "moved"]) == 1
    assert num_attempts(moved) == 2


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


@pytest.mark.usefixtures("quick_python")
def test_as_many_ranks_are_started_as_the_run_had(shy_run, monkeypatch):
    # The policy is a test's, and a rank is a process of its own.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plan = read_run_plan(shy_run)
    (shy_run / "run.json").unlink()
    write_run_plan(shy_run, replace(plan, devices=("cpu", "cpu"), world_size=2))
    assert main(["resume", "out"]) == 1
    assert json.loads((shy_run / "attempts" / "attempt_2.json").read_text())["world_size"] == 2


def test_ranks_of_several_machines_are_not_guessed(shy_run, capsys):
    plan = read_run_plan(shy_run)
    (shy_run / "run.json").unlink()
    write_run_plan(shy_run, replace(plan, devices=("cuda:0", "cuda:0"), world_size=2))
    assert main(["resume", "out"]) == 2
    assert "say what to use with --gpu_ids" in capsys.readouterr().err


@pytest.mark.parametrize(("begun_on", "more"), [(("--cluster", "ray"), []), ((), ["--cluster", "ray"])])
def test_the_ranks_of_a_cluster_are_left_to_it(shy_run, begun_on, more):
    plan = read_run_plan(shy_run)
    several = replace(plan, devices=("cpu", "cpu"), world_size=2, command_line=(*plan.command_line, *begun_on))
    words = resuming_words(several, shy_run, more)
    assert words == ["--eval_jobs_config", "jobs.json", *begun_on, "--resume", str(shy_run), *more]


def test_elsewhere_its_paths_would_be_others(shy_run, tmp_path_factory, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["resume", str(shy_run)]) == 2
    assert f"was started in '{shy_run.parent}', from where its paths count" in capsys.readouterr().err
    assert num_attempts(shy_run) == 1


def test_it_imports_nothing_that_a_run_names_if_asked_not_to(shy_run, capsys):
    assert main(["resume", "out", "--no_import"]) == 2
    assert "--no_import allows registered names only" in capsys.readouterr().err
    assert num_attempts(shy_run) == 1


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 2
    assert (
        f"{tmp_path}: holds no run: neither run.json nor params/train.yaml nor training.json" in capsys.readouterr().err
    )


def training_of_another_package(directory: Path, **settings: object) -> Path:
    directory.mkdir()
    (directory / "training.json").write_text(json.dumps(settings))
    return directory


def test_a_training_whose_command_is_not_installed_is_refused(tmp_path, capsys):
    run = training_of_another_package(tmp_path / "run", command_line=["of_nobody.learn", "--fast"])
    assert main(["resume", str(run)]) == 2
    assert "names no command that is installed: of_nobody.learn" in capsys.readouterr().err


def test_a_training_of_another_package_gets_as_many_ranks_as_it_had_from_torchrun(tmp_path, capsys):
    program = "isaaclab_arena_gr00t.training.finetune"
    run = training_of_another_package(tmp_path / "run", command_line=[program], world_size=2)
    assert main(["resume", str(run)]) == 2
    told = capsys.readouterr().err
    assert f"--nproc_per_node=2 -m isaaclab_arena.cli resume {run}" in told


def test_it_needs_a_directory_first(capsys):
    assert main(["resume", "--retry_errors", "out"]) == 2
    assert "DIRECTORY: comes first: isaaclab-arena resume DIRECTORY --retry_errors" in capsys.readouterr().err


# ``isaaclab-arena validate`` counts the episodes that would be run.


def test_episodes_whose_number_is_the_environments_own_are_counted(tmp_path, capsys):
    options = {**in_checkout(make_checkout(tmp_path)), "protocol": "strict"}
    block = {"name": "spatial", "suite": "libero_spatial", "arena_env_args": options, "policy_type": "zero_action"}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [block]}))
    assert main(["validate", str(path)]) == 0, capsys.readouterr().err
    num_tasks = len(SUITES["libero_spatial"])
    assert f"{num_tasks} jobs, {num_tasks * NUM_STATES} episodes, " in capsys.readouterr().out


def validated(tmp_path: Path, capsys, *jobs: dict, **more: object) -> list[dict]:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": list(jobs), **more}))
    assert main(["validate", "--json", str(file)]) == 2
    return json.loads(capsys.readouterr().out)["problems"]


def test_problems_of_all_stages_are_told_at_once(tmp_path, capsys):
    jobs = [
        {
            "name": "a",
            "num_episodes": "3",
            "arena_env_args": {"environment": "lift_objec", "objct": "cub"},
            "policy_type": "scriptd",
        },
        {
            "name": "b",
            "num_episodes": 3,
            "arena_env_args": {"environment": "lift_object", "objct": "cub", "embodiment": "pandaa"},
            "policy_type": "replay",
            "policy_config_dict": {"replay_file_path": "none.hdf5", "episode_nam": "x"},
        },
        {
            "name": "c",
            "num_episods": 3,
            "arena_env_args": {"environment": "reach", "num_envs": 0},
            "variations": {"light": {"no_such": 1}},
            "policy_type": "no.such.Policy",
        },
    ]
    problems = validated(tmp_path, capsys, *jobs, tracking=["wandbb"])
    assert sorted((problem["job"] or "", problem["key"]) for problem in problems) == [
        ("", "tracking"),
        ("a", "arena_env_args.environment"),
        ("a", "num_episodes"),
        ("a", "policy_type"),
        ("b", "arena_env_args.embodiment"),
        ("b", "arena_env_args.objct"),
        ("b", "policy_config_dict.episode_nam"),
        ("b", "policy_config_dict.replay_file_path"),
        ("c", "arena_env_args.num_envs"),
        ("c", "num_episods"),
        ("c", "policy_type"),
        ("c", "variations.light.no_such"),
    ]


def test_a_device_that_is_not_there_hides_nothing_else_and_is_told_once(tmp_path, capsys):
    options = {"checkpoint_path": "none.pt", "policy_device": "cuda:99"}
    job = {"name": "a", "num_episodes": 1, "arena_env_args": {"environment": "reach"}, "policy_type": "rsl_rl"}
    problems = validated(tmp_path, capsys, job | {"policy_config_dict": options})
    assert sorted(problem["key"] for problem in problems) == [
        "policy_config_dict.checkpoint_path",
        "policy_config_dict.policy_device",
    ]


def test_what_may_be_missing_only_because_it_is_wrong_is_not_told(tmp_path, capsys):
    job = {"name": "a", "num_episodes": 0, "arena_env_args": {"environment": "reach"}, "policy_type": "scripted"}
    [problem] = validated(tmp_path, capsys, job)
    assert (problem["job"], problem["key"]) == ("a", "num_episodes")
