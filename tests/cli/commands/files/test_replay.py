"""``isaaclab-arena replay`` on recordings that a run has left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.commands.rerun import chosen_episodes
from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.storage.episode_file import checksum
from isaaclab_arena.storage.episodes import read_episode
from tests.end_to_end.launching import write_jobs

VARIATIONS = {
    f"{name}.enabled": True
    for name in ("cube.mass", "distractors.count", "action.noise", "observation.delay", "table.height")
}
JOBS = [
    {
        "name": "varied",
        "arena_env_args": {"environment": "lift_object", "object": "cube", "num_envs": 3},
        "policy_type": "scripted",
        "num_episodes": 3,
        "variations": VARIATIONS,
    },
    {"name": "gym", "arena_env_args": {"environment": "gym:Pendulum-v1"}, "policy_type": "random_action", "seed": 4},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    jobs = write_jobs(directory / "jobs.json", JOBS)
    arguments = ["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), "--num_episodes", "2"]
    assert evaluate(arguments) == 0
    return directory / "out"


def tampered(dataset: Path, change: Callable[[h5py.Group], None], *, fix_checksum: bool = True) -> None:
    """Change demo_1 of a dataset, and its checksum so that nothing shows."""
    with h5py.File(dataset, "r+") as file:
        group = file["data/demo_1"]
        assert isinstance(group, h5py.Group)
        change(group)
    if fix_checksum:
        crc = checksum(read_episode(dataset, 1).arrays)
        with h5py.File(dataset, "r+") as file:
            file["data/demo_1"].attrs["checksum"] = crc


def nudge(group: h5py.Group) -> None:
    states = group["states/rigid_object/cube/root_pose"]
    assert isinstance(states, h5py.Dataset)
    states[17, 2] = np.nextafter(states[17, 2], 1)


def test_variations_and_the_exact_state_come_out_again_wherever_the_dataset_lies(run, tmp_path, capsys):
    moved = shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path / "elsewhere.hdf5")
    assert main(["replay", str(moved), "--num_envs", "2"]) == 0
    told = capsys.readouterr().out
    assert told.count("  bitwise\n") == 3
    assert "3 of 3 episodes bitwise" in told
    assert "compared: initial_state, obs, actions, states, rewards and how it ended" in told
    assert "started from their conditions" not in told


def test_an_environment_without_a_state_is_replayed_from_its_seed_and_that_is_said(run, capsys):
    assert main(["replay", str(run / "gym")]) == 0
    told = capsys.readouterr().out
    assert "2 of 2 episodes bitwise" in told
    assert "no exact state of the simulator was recorded that fits: episodes started from their conditions" in told


def test_one_changed_bit_is_found_with_its_step_and_field(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    tampered(dataset, nudge)
    assert main(["replay", str(dataset)]) == 1
    told = capsys.readouterr().out
    assert "demo_1" in told
    assert "differs first at control step 17: states/rigid_object/cube/root_pose by " in told
    assert "2 of 3 episodes bitwise" in told


def test_only_the_chosen_episodes_are_replayed(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    tampered(dataset, nudge)
    assert main(["replay", str(dataset), "--episodes", "0,2"]) == 0
    assert "2 of 2 episodes bitwise" in capsys.readouterr().out


def test_a_damaged_recording_is_not_replayed_but_told(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    tampered(dataset, nudge, fix_checksum=False)
    for more in ([], ["--episodes", "1"]):
        assert main(["replay", str(dataset), *more]) == 1
        assert "damaged: its arrays are not what was written" in capsys.readouterr().out


def test_the_others_are_compared_whatever_the_first_recording_has_lost(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    with h5py.File(dataset, "r+") as file:
        del file["data/demo_0/obs"]
    assert main(["replay", str(dataset)]) == 1
    told = capsys.readouterr().out
    assert "2 of 3 episodes bitwise" in told
    assert "compared: initial_state, obs, actions, states, rewards and how it ended" in told


def test_another_version_and_another_model_are_named_once(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    with h5py.File(dataset, "r+") as file:
        data = file["data"]
        assert isinstance(data, h5py.Group)
        for demo in data.values():
            provenance = json.loads(demo.attrs["provenance"])
            demo.attrs["provenance"] = json.dumps(
                {**provenance, "mujoco": "3.0.0", "model_sha256": "abc", "cpu": "Z80"}
            )
    assert main(["replay", str(dataset)]) == 0
    told = capsys.readouterr().out
    assert told.count("when this was recorded, mujoco was 3.0.0, is now ") == 1
    assert told.count("when this was recorded, model_sha256 was abc, is now ") == 1
    assert told.count("when this was recorded, cpu was Z80, is now ") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.hdf5"], "DATASET: no recording at 'nowhere.hdf5'"),
        (["{run}"], "is the output of a whole run; name the directory of one of its jobs"),
        (["{run}/varied", "--episodes", "1,7-8"], "holds no demo_7 to demo_8; it holds demo_0 to demo_2"),
        (["{run}/varied", "--episodes", "first"], "'first' is no list of episodes such as 0,5,7-9"),
        (["{run}/varied", "--num_envs", "0"], "--num_envs: must be at least 1, got 0"),
        (["{run}/varied", "--device", "gpu"], "'gpu' is no device"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(run, capsys, arguments, message):
    assert main(["replay", *(argument.format(run=run) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_recording_that_does_not_name_its_environment_is_refused(run, tmp_path, capsys):
    dataset = Path(shutil.copy(run / "varied" / "dataset_varied.hdf5", tmp_path))
    with h5py.File(dataset, "r+") as file:
        file["data"].attrs["env_args"] = "{}"
    assert main(["replay", str(dataset)]) == 2
    assert "does not say what its environment was: env_args has no env_name" in capsys.readouterr().err


def test_a_list_of_episodes_is_read_in_any_order():
    assert chosen_episodes("7-9, 0,5,8") == [0, 5, 7, 8, 9]
    for wrong in ("", "3-1", "1,,2", "-1", "1-", "0x1", "\N{ARABIC-INDIC DIGIT TWO}"):
        with pytest.raises(ConfigError):
            chosen_episodes(wrong)
