"""``isaaclab-arena film`` on runs of small pictures."""

import json
import shutil
from pathlib import Path

import av
import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.storage.episode_file import checksum
from isaaclab_arena.storage.episodes import read_episode
from tests.end_to_end.launching import write_jobs
from tests.fakes_environment import files_below

SMALL = {
    "environment": "lift_object",
    "num_envs": 2,
    "camera_size": 32,
    "viewport_width": 80,
    "viewport_height": 60,
}
VARIATIONS = {f"{name}.enabled": True for name in ("cube.mass", "distractors.count", "action.noise", "table.height")}
JOBS = [
    {
        "name": "script",
        "arena_env_args": {**SMALL, "enable_cameras": True},
        "policy_type": "scripted",
        "num_episodes": 4,
        "num_rebuilds": 2,
        "variations": VARIATIONS,
    },
    {
        "name": "rest",
        "arena_env_args": SMALL,
        "policy_type": "zero_action",
        "num_episodes": 2,
        "variations": VARIATIONS,
    },
    {
        "name": "gym",
        "arena_env_args": {"environment": "gym:Pendulum-v1"},
        "policy_type": "zero_action",
        "num_episodes": 1,
    },
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run whose films were made as it went, through all cameras."""
    directory = tmp_path_factory.mktemp("filmed")
    jobs = write_jobs(directory / "jobs.json", JOBS)
    filming = ["--record_viewport_video", "--record_camera_video"]
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), *filming]) == 0
    return directory / "out"


@pytest.fixture
def bare(run, tmp_path) -> Path:
    """A copy of the run without films."""
    copy = tmp_path / "bare"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("videos", "contact_sheet.png"))
    return copy


def frames_of(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def films_below(directory: Path) -> set[str]:
    return {name for name in files_below(directory) if "/videos/" in name or name.endswith("contact_sheet.png")}


def change(dataset: Path, array: str, *, by: float, fix_checksum: bool = True) -> None:
    """Add to an array of demo_1, and let nothing show that."""
    with h5py.File(dataset, "r+") as file:
        values = file[f"data/demo_1/{array}"]
        assert isinstance(values, h5py.Dataset)
        values[...] = values[...] + by
    if fix_checksum:
        crc = checksum(read_episode(dataset, 1).arrays)
        with h5py.File(dataset, "r+") as file:
            file["data/demo_1"].attrs["checksum"] = crc
        [commits] = dataset.parent.glob("episode_results_rank*.jsonl")
        lines = [json.loads(line) for line in commits.read_text().splitlines()]
        commits.write_text(
            "".join(
                json.dumps({**line, "checksum": crc} if line["episode_index"] == 1 else line) + "\n" for line in lines
            )
        )


def test_films_made_afterwards_are_the_films_of_the_run(run, bare, capsys):
    arguments = ["film", str(bare), "--episodes", "all", "--camera", "all", "--job", "rest", "--job", "script"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "6 of 6 episodes filmed" in told
    assert told.index("script demo_0: ") < told.index("rest demo_0: "), "the order of the plan"
    assert films_below(bare) == films_below(run)
    videos = [name for name in films_below(run) if name.endswith(".mp4")]
    assert len(videos) == 3 * 4 + 3 * 2
    assert any("-rebuild1-" in name for name in videos)
    for name in videos:
        np.testing.assert_array_equal(frames_of(bare / name), frames_of(run / name), err_msg=name)
    for name in films_below(run) - set(videos):
        assert (bare / name).read_bytes() == (run / name).read_bytes(), name


def test_only_what_was_asked_for_is_filmed_and_elsewhere_where_that_was_asked_for(bare, tmp_path, capsys):
    before = films_below(bare)
    arguments = ["film", str(bare), "--episodes", "failures", "--job", "rest", "--output_dir", str(tmp_path / "films")]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["episodes"]
    assert {(each["job"], each["episode_index"]) for each in told} == {("rest", 0), ("rest", 1)}
    assert films_below(bare) == before == set()
    films = {name for name in files_below(tmp_path / "films") if name.endswith(".mp4")}
    assert films == {f"rest/videos/viewport-env{index}-episode-{index}.mp4" for index in (0, 1)}
    assert {str(tmp_path / "films" / name) for name in films} == {film for each in told for film in each["films"]}


def test_pairs_that_ended_otherwise_are_filmed_on_both_sides(bare, capsys):
    arguments = ["film", str(bare), "--episodes", "discordant", "--job", "script", "--baseline", "rest"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert [told.count(f"{job} demo_{index}: ") for job in ("script", "rest") for index in (0, 1)] == [1] * 4
    assert "4 of 4 episodes filmed" in told


def test_what_cannot_be_filmed_is_said_of_each_episode_and_takes_no_other_film(bare, capsys):
    (bare / "rest" / "dataset_rest.hdf5").unlink()
    change(bare / "script" / "dataset_script.hdf5", "actions", by=0.2)
    assert main(["film", str(bare), "--episodes", "0,1,9"]) == 1
    told = capsys.readouterr().out
    assert "script demo_0: " in told
    assert "script demo_1: no film: it came out otherwise, at control step" in told
    assert "script demo_9: no film: it has not finished" in told
    assert "rest demo_0: no film: there is no recording of it" in told
    assert "gym demo_0: no film: its environment has no such cameras" in told
    assert [path.stem for path in (bare / "script" / "videos").glob("*.mp4")] == ["viewport-rebuild0-env0-episode-0"]


def test_a_difference_that_nobody_sees_is_filmed_and_said(bare, capsys):
    change(bare / "script" / "dataset_script.hdf5", "states/rigid_object/cube/root_pose", by=1e-5)
    assert main(["film", str(bare), "--episodes", "1", "--job", "script"]) == 0
    assert "(poses are up to 1e-05 m or rad from those recorded)" in capsys.readouterr().out


def test_a_damaged_recording_is_not_filmed(bare, capsys):
    change(bare / "script" / "dataset_script.hdf5", "actions", by=0.2, fix_checksum=False)
    assert main(["film", str(bare), "--episodes", "1", "--job", "script"]) == 1
    assert "script demo_1: no film: its recording is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "some"], "'some' is no list of episodes"),
        (["--episodes", "all", "--job", "scripd"], "there is no job 'scripd'"),
        (["--episodes", "discordant"], "--episodes discordant and --baseline RUN or JOB belong together"),
        (
            ["--episodes", "all", "--baseline", "rest"],
            "--episodes discordant and --baseline RUN or JOB belong together",
        ),
        (["--episodes", "discordant", "--baseline", "rust"], "there is no job 'rust'"),
        (["--episodes", "discordant", "--baseline", "rest", "--job", "gym"], "environment 'gym:Pendulum-v1'"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_simulated(run, capsys, arguments, message):
    before = films_below(run)
    assert main(["film", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert films_below(run) == before


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["film", str(tmp_path), "--episodes", "all"]) == 2
    assert "holds no run.json" in capsys.readouterr().err
