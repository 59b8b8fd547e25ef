import pytest

from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena_gr00t.convert import main
from isaaclab_arena_gr00t.data.from_lerobot import open_dataset
from tests.gr00t.data.recordings import record_run


def arguments(command, dataset, output_dir, *more):
    return [command, "--dataset", str(dataset), "--output_dir", str(output_dir), *more]


def test_a_run_is_converted_and_back_from_the_command_line(tmp_path, capsys):
    run_directory = record_run(tmp_path / "run")
    to = arguments(
        "to_lerobot", run_directory, tmp_path / "dataset", "--version", "v3.0", "--no_videos", "--only_successes"
    )
    assert main([*to, "--state_names", "robot_joint_pos", "--state_names", "cube_pos"]) == 0
    assert "3 episodes, 15 control steps, 2 instructions, 0 cameras" in capsys.readouterr().out
    dataset = open_dataset(tmp_path / "dataset")
    assert dataset.features["observation.state"]["names"][-1] == "cube_pos_2"
    assert main(arguments("from_lerobot", tmp_path / "dataset", tmp_path / "back")) == 0
    assert list_episodes(tmp_path / "back/lift/dataset_lift.hdf5") == [0, 1]
    assert list_episodes(tmp_path / "back/push/dataset_push.hdf5") == [2]


def test_a_single_recording_and_a_pattern_are_taken_too(tmp_path):
    run_directory = record_run(tmp_path / "run")
    recording = run_directory / "lift/dataset_lift.hdf5"
    assert main(arguments("to_lerobot", recording, tmp_path / "one", "--no_videos")) == 0
    assert len(open_dataset(tmp_path / "one").episodes) == 3
    assert main(arguments("to_lerobot", run_directory / "*/dataset_*.hdf5", tmp_path / "all", "--no_videos")) == 0
    assert len(open_dataset(tmp_path / "all").episodes) == 5


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("to_lerobot", 2, "--dataset: no recording at"),
        ("from_lerobot", 1, "there is no LeRobot dataset"),
    ],
)
def test_what_is_not_there_is_told_with_an_exit_code(tmp_path, capsys, command, code, message):
    assert main(arguments(command, tmp_path / "nothing", tmp_path / "out")) == code
    assert message in capsys.readouterr().err


def test_a_rate_below_one_is_refused(tmp_path, capsys):
    assert main(arguments("to_lerobot", tmp_path, tmp_path / "out", "--fps", "0")) == 2
    assert "--fps: must be at least 1, got 0" in capsys.readouterr().err
