"""Job files that say what a run plays."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.main import main as command
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as limit_main
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.validation import arms_of, resolve_jobs
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from tests.end_to_end.launching import write_jobs
from tests.evaluation.jobs import config_of

JOBS_DIRECTORY = Path(__file__).parents[3] / "jobs"
JOB_FILES = sorted(path for path in JOBS_DIRECTORY.iterdir() if path.is_file())
ELSEWHERE = sorted(path for path in (JOBS_DIRECTORY / "benchmarks").iterdir() if "oc.env" in path.read_text())
"""Those whose environments need an interpreter of their own."""


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.name)
def test_every_job_file_can_be_run(path):
    jobs_file = load_jobs_file(path, arms=arms_of)

    assert len(resolve_jobs(jobs_file.jobs, file=jobs_file.path)) == len(jobs_file.jobs) > 0
    assert [job.index for job in jobs_file.jobs] == list(range(len(jobs_file.jobs)))


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.name)
def test_a_benchmark_whose_interpreter_is_missing_says_so(path, monkeypatch):
    [variable] = set(re.findall(r"oc\.env:(\w+)", path.read_text()))
    monkeypatch.setenv(variable, "/opt/none/bin/python")
    with pytest.raises(ConfigError) as raised:
        resolve_jobs(load_jobs_file(path, suites=SUITES).jobs, file=path.name)
    assert all("'/opt/none/bin/python'" in problem.message for problem in raised.value.problems)


ACTION_DIM = 8
LIFT: Mapping[str, Any] = {"env_name": "lift_object", "env_kwargs": {"object": "cube"}, "variations": {}}


def recording(directory: Path, indices=(0, 1, 2), env_args: Mapping[str, Any] = LIFT, seed: int | None = 7) -> Path:
    parts = []
    for index in indices:
        episode = RecordedEpisode(
            episode_index=index,
            arrays={"actions": np.zeros((2, ACTION_DIM), np.float32)},
            attributes={"control_dt": 0.05} | ({} if seed is None else {"seed": seed}),
            env_args=env_args,
        )
        parts.append(directory / episode_file_name(index))
        write_episode(parts[-1], episode)
    consolidate(parts, directory / "demos.hdf5")
    return directory / "demos.hdf5"


def played(path: Path, environment: str = "lift_object", episodes: Any = None, seed: int = 7, **more: Any) -> Job:
    options = {"replay_file_path": str(path)} | ({} if episodes is None else {"episodes": episodes})
    more = {"num_episodes": None, "policy_config_dict": options, "seed": seed, **more}
    config = config_of(environment, "replay", "again", **more)
    (job,) = resolve_jobs([config])
    return job


OF_LIFT, SO101 = {"env_name": "lift_object", "env_kwargs": {"embodiment": "so101"}}, "was 'so101', and is 'panda'"
OF_ROBOSUITE = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}


@pytest.mark.parametrize(
    ("made", "change", "doubt"),
    [
        ({}, {}, None),
        ({}, {"environment": "reach"}, "recorded in 'lift_object'"),
        ({}, {"environment_args": {"object": "mug"}}, "object was 'cube', and is 'mug'"),
        ({}, {"environment_args": {"camera_size": 32}}, None),
        ({}, {"variations": {"cube.mass.enabled": True}}, "other variations"),
        ({}, {"seed": 8}, "seed 7 and not 8"),
        ({}, {"seed": 8, "placement_seed": 7}, None),
        ({}, {"seed": 7, "placement_seed": 8}, "seed 7 and not 8"),
        # Another robot, another program, and a recording that says nothing.
        ({"env_args": OF_LIFT}, {}, SO101),
        ({"env_args": OF_ROBOSUITE, "seed": None}, {}, "recorded in 'Lift'"),
        ({"env_args": {}, "seed": None}, {}, None),
    ],
)
def test_another_environment_robot_object_or_start_is_told_in_one_sentence(tmp_path, made, change, doubt):
    job = played(recording(tmp_path, **made), **change)
    assert [doubt in each for each in job.doubts] == [True] if doubt else job.doubts == ()
    assert job.num_played == 3


@pytest.mark.parametrize("indices", [(0, 2, 5), (1, 2, 3)], ids=["gaps", "from 1"])
def test_episodes_that_are_missing_are_told_before_anything_runs_with_the_way_out(tmp_path, indices):
    path = recording(tmp_path, indices)
    with pytest.raises(ConfigError, match=r"holds 3 episodes, .*: present"):
        played(path)
    job = played(path, episodes="present")
    assert job.num_played == 3
    assert "starts from other conditions" in str(job.doubts)
    assert played(path, episodes="present", num_episodes=2).num_played == 2
    with pytest.raises(ConfigError, match="none for episode 3 of 4"):
        played(path, episodes="present", num_episodes=4)


@pytest.mark.parametrize(
    ("trained", "doubts"),
    [
        ({"environment": "reach", "num_envs": 128, "action_mode": "ee_delta"}, []),
        (
            {"environment": "reach", "embodiment": "so101"},
            ["was recorded with other settings: embodiment was 'so101', and is 'panda'"],
        ),
        ({"environment": "lift_object"}, ["was recorded in 'lift_object', and is used in 'reach'"]),
        # As another program writes it.
        ({"scene": {"num_envs": 4}, "decimation": 4}, []),
        ("- no mapping", []),
    ],
)
def test_a_checkpoint_that_was_trained_in_another_environment_is_told(tmp_path, trained, doubts):
    directory = shutil.copytree("models/reach", tmp_path / "reach")
    (directory / "params/env.yaml").write_text(trained if isinstance(trained, str) else json.dumps(trained))
    options = {"checkpoint_path": str(directory)}
    arguments = {"action_mode": "ee_delta"}
    config = config_of("reach", "rsl_rl", environment_args=arguments, policy_config_dict=options)
    (job,) = resolve_jobs([config])
    assert [doubt.split("model_250.pt ")[1].split("; ")[0] for doubt in job.doubts] == doubts


def test_validate_says_how_many_recorded_episodes_there_are_and_what_speaks_against_them(tmp_path, capsys):
    demos = recording(tmp_path, (1, 2, 3))
    options = {"replay_file_path": str(demos), "episodes": "present"}
    block = {"policy_type": "replay", "policy_config_dict": options, "arena_env_args": {"environment": "reach"}}
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [{"name": "one", **block}, {"name": "two", **block}]}))
    assert main(["validate", str(path)]) == 0
    first, *told = capsys.readouterr().out.splitlines()
    assert "2 jobs, 6 episodes" in first
    assert told == [
        "  job 'one' and 1 more: action -> action (panda_joint1 to gripper_width)",
        f"  job 'one' and 1 more: plays 3 episodes of {demos}, which holds 3 episodes, 1 to 3",
        f"  job 'one' and 1 more: warning: {demos} was recorded in 'lift_object', and is used in 'reach'",
    ]
    assert main(["validate", str(path), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["episodes"] == 6
    assert ["one", "two"] in file["told"].values()


CARTPOLE = {"arena_env_args": {"environment": "cartpole", "num_envs": 2}, "policy_type": "zero_action"}
JOBS = [
    {"name": "many", **CARTPOLE, "num_episodes": 7},
    {"name": "rebuilt", **CARTPOLE, "num_episodes": 7, "num_rebuilds": 5},
    {"name": "few", **CARTPOLE, "num_episodes": 2},
    {"name": "steps", **CARTPOLE, "num_steps": 3000},
]
LINE = "limited to 3 episodes a job, not as many as the job file has"


def test_every_job_is_cut_to_that_many_episodes_and_the_table_and_the_plan_say_so(tmp_path, capsys):
    path = write_jobs(tmp_path / "jobs.json", JOBS)
    output = tmp_path / "out"
    assert command(["validate", str(path), "--limit", "3"]) == 0
    assert capsys.readouterr().out.strip().endswith(", limited to 3 episodes a job")
    typed = ["--eval_jobs_config", str(path), "--output_dir", str(output), "--no_report", "--no_dataset"]
    assert limit_main([*typed, "--limit", "3"]) == 0
    assert LINE in capsys.readouterr().out.splitlines()
    jobs = json.loads((output / "results.json").read_text())["jobs"]
    assert [(job["name"], job["episodes"]) for job in jobs] == [("many", 3), ("rebuilt", 3), ("few", 2), ("steps", 3)]
    assert json.loads((output / "run.json").read_text())["settings"]["limit"] == 3
    assert command(["merge", str(output)]) == 0
    assert LINE in capsys.readouterr().out.splitlines(), "a later merge says it too"
    assert limit_main([*typed, "--resume", "--limit", "3"]) == 0
    capsys.readouterr()
    assert limit_main([*typed, "--resume"]) == 2
    assert "--limit: was 3" in capsys.readouterr().err
