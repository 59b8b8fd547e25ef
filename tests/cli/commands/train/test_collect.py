import pytest

from isaaclab_arena.cli.commands.runs import with_defaults
from isaaclab_arena.cli.main import main
from isaaclab_arena.storage.episodes import read_episode


def test_the_expert_is_recorded_with_all_that_it_sees(tmp_path, capsys):
    arguments = ["--num_episodes", "1", "--output_dir", str(tmp_path / "out"), "lift_object", "--camera_size", "32"]
    assert main(["collect", *arguments]) == 0
    dataset = tmp_path / "out" / "lift_object" / "dataset_lift_object.hdf5"
    episode = read_episode(dataset, 0)
    assert episode.attributes["success"]
    cameras = {name: array.shape[1:] for name, array in episode.arrays.items() if name.startswith("camera_obs/")}
    assert cameras == {f"camera_obs/{camera}_cam_rgb": (32, 32, 3) for camera in ("robot_head", "wrist")}


def test_another_policy_and_other_observations_may_be_asked_for():
    typed = ["--policy-type=mine.Policy", "--record_observations", "state", "lift_object"]
    assert with_defaults(typed) == ["--enable_cameras", *typed]
    assert with_defaults(["lift_object"]) == [
        "--enable_cameras",
        *("--policy_type", "scripted"),
        *("--record_observations", "all"),
        "lift_object",
    ]


def test_its_help_names_the_command_and_its_expert(capsys):
    with pytest.raises(SystemExit):
        main(["collect", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("usage: isaaclab-arena collect")
    assert "(default: scripted)" in out
