"""What recordings say of themselves is held against the job that plays them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name

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
    config = JobConfig(
        index=0,
        name="again",
        environment=environment,
        policy_type="replay",
        policy_config_dict=options,
        seed=seed,
        **more,
    )
    (job,) = resolve_jobs([config])
    return job


def test_a_recording_that_is_played_as_it_was_made_raises_no_doubt(tmp_path):
    job = played(recording(tmp_path))
    assert job.doubts == ()
    assert job.num_played == 3


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"environment": "reach"}, "was made in 'lift_object', and is used in 'reach'"),
        ({"environment_args": {"object": "mug"}}, "was made otherwise: object was 'cube', and is 'mug'"),
        ({"environment_args": {"camera_size": 32}}, None),
        ({"variations": {"cube.mass.enabled": True}}, "was made otherwise: other variations were on"),
        ({"seed": 8}, "episodes started from other conditions, with seed 7 and not 8"),
        ({"seed": 8, "placement_seed": 7}, None),
        ({"seed": 7, "placement_seed": 8}, "with seed 7 and not 8"),
    ],
)
def test_another_environment_object_or_start_is_told_in_one_sentence(tmp_path, change, doubt):
    doubts = played(recording(tmp_path), **change).doubts
    assert [doubt in each for each in doubts] == [True] if doubt else doubts == ()


def test_another_robot_is_told(tmp_path):
    path = recording(tmp_path, env_args={"env_name": "lift_object", "env_kwargs": {"embodiment": "so101"}})
    (doubt,) = played(path).doubts
    assert "embodiment was 'so101', and is 'panda'" in doubt


def test_a_recording_of_another_program_is_told_by_the_environment_that_it_names(tmp_path):
    path = recording(tmp_path, env_args={"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}, seed=None)
    assert played(path).doubts == (f"{path} was made in 'Lift', and is used in 'lift_object'",)


def test_a_recording_that_says_nothing_is_played(tmp_path):
    assert played(recording(tmp_path, env_args={}, seed=None)).doubts == ()


@pytest.mark.parametrize("indices", [(0, 2, 5), (1, 2, 3)], ids=["gaps", "from 1"])
def test_episodes_that_are_missing_are_told_before_anything_runs_with_the_way_out(tmp_path, indices):
    path = recording(tmp_path, indices, seed=None)
    with pytest.raises(ConfigError, match=r"holds 3 episodes, demo_.*: none for episode . of 3; .*episodes: present"):
        played(path)
    assert played(path, episodes="present").num_played == 3
    assert played(path, episodes="present", num_episodes=2).num_played == 2
    with pytest.raises(ConfigError, match="none for episode 3 of 4"):
        played(path, episodes="present", num_episodes=4)


def test_a_start_that_is_not_the_recorded_episodes_is_told(tmp_path):
    (doubt,) = played(recording(tmp_path, (0, 2, 5)), episodes="present").doubts
    assert "episode 1 starts from other conditions than the recorded episode 2" in doubt


@pytest.mark.parametrize(
    ("trained", "doubts"),
    [
        ({"environment": "reach", "num_envs": 128, "action_mode": "ee_delta"}, []),
        (
            {"environment": "reach", "embodiment": "so101"},
            ["was made otherwise: embodiment was 'so101', and is 'panda'"],
        ),
        ({"environment": "lift_object"}, ["was made in 'lift_object', and is used in 'reach'"]),
        # As another program writes it.
        ({"scene": {"num_envs": 4}, "decimation": 4}, []),
        ("- no mapping", []),
    ],
)
def test_a_checkpoint_that_was_trained_in_another_environment_is_told(tmp_path, trained, doubts):
    directory = shutil.copytree("models/reach", tmp_path / "reach")
    (directory / "params/env.yaml").write_text(trained if isinstance(trained, str) else json.dumps(trained))
    config = JobConfig(
        index=0,
        name="trained",
        environment="reach",
        environment_args={"action_mode": "ee_delta"},
        policy_type="rsl_rl",
        policy_config_dict={"checkpoint_path": str(directory)},
        num_episodes=1,
    )
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
        f"  job 'one' and 1 more: plays 3 episodes of {demos}, which holds 3 episodes, demo_1 to demo_3",
        f"  job 'one' and 1 more: warning: {demos} was made in 'lift_object', and is used in 'reach'",
    ]
    assert main(["validate", str(path), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["episodes"] == 6
    assert ["one", "two"] in file["told"].values()
