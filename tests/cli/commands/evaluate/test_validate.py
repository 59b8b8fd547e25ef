"""``isaaclab-arena validate`` counts the episodes that would be run."""

import json

import yaml

from isaaclab_arena.cli.main import main
from tests.environments.libero.checkouts import NUM_STATES, SUITES, in_checkout, make_checkout


def test_episodes_whose_number_is_the_environments_own_are_counted(tmp_path, capsys):
    options = {**in_checkout(make_checkout(tmp_path)), "protocol": "strict"}
    block = {"name": "spatial", "suite": "libero_spatial", "arena_env_args": options, "policy_type": "zero_action"}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [block]}))
    assert main(["validate", str(path)]) == 0, capsys.readouterr().err
    num_tasks = len(SUITES["libero_spatial"])
    assert f"{num_tasks} jobs, {num_tasks * NUM_STATES} episodes, " in capsys.readouterr().out


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
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": jobs, "tracking": ["wandbb"]}))
    assert main(["validate", "--json", str(file)]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
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
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": [job | {"policy_config_dict": options}]}))
    assert main(["validate", "--json", str(file)]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert sorted(problem["key"] for problem in problems) == [
        "policy_config_dict.checkpoint_path",
        "policy_config_dict.policy_device",
    ]


def test_what_may_be_missing_only_because_it_is_wrong_is_not_told(tmp_path, capsys):
    job = {"name": "a", "num_episodes": 0, "arena_env_args": {"environment": "reach"}, "policy_type": "scripted"}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"jobs": [job]}))
    assert main(["validate", str(file)]) == 2
    assert capsys.readouterr().err.strip() == f"{file}: job 'a': num_episodes: must be at least 1, got 0"
