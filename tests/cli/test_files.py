"""The commands that write files from runs."""

import base64
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import av
import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.rerun import chosen_episodes
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.storage.episode_file import checksum
from isaaclab_arena.storage.episodes import read_episode
from tests.end_to_end.launching import write_jobs
from tests.fakes_environment import files_below
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    write_plan(directory, planned(num_episodes=2))
    write_lines(directory, commit_lines("sf"))
    write_report(directory, report())
    return directory


def test_a_run_is_exported_beside_itself_or_into_an_empty_directory_and_stays_as_it_is(run, tmp_path, capsys):
    before = sorted(run.rglob("*"))
    assert main(["export", str(run), "--arena"]) == 0
    assert sorted(run.rglob("*")) == before
    written = {path.name for path in (run.parent / "run_arena").iterdir()}
    assert written == {"arena_experiment_result.json", "experiment_manifest.json", "lift"}
    assert f"2 episodes of 1 job in {run.parent / 'run_arena'}" in capsys.readouterr().out
    (tmp_path / "there").mkdir()
    assert main(["export", str(run), "--arena", "--output", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "lift" / "episode_results_rebuild0.jsonl").is_file()
    assert main(["export", str(run), "--lerobot"]) == 0
    assert (run.parent / "run_lerobot" / "lift" / "eval_info.json").is_file()
    assert f"{run.parent / 'run_lerobot' / 'eval_info.json'}: episodes 2, jobs 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["wandb", "mlflow", "rerun", "tensorboard"])
def test_a_library_that_is_missing_is_named_with_its_extra(run, capsys, name):
    if importlib.util.find_spec(name) is None:
        assert main(["export", str(run), f"--{name}"]) == 2
        assert f"--{name}: needs the package {name}; install it with: pip install" in capsys.readouterr().err
        assert not (run.parent / f"run_{name}").exists()
    elif name == "tensorboard":
        assert main(["export", str(run), "--tensorboard"]) == 0
        assert f"tensorboard --logdir {run.parent / 'run_tensorboard' / 'tensorboard'}" in capsys.readouterr().out


# ``isaaclab-arena film`` and ``isaaclab-arena replay`` on a run of small pictures.


SMALL = {"environment": "lift_object", "num_envs": 2, "camera_size": 32, "viewport_width": 80, "viewport_height": 60}
VARIED = ("cube.mass", "distractors.count", "action.noise", "observation.delay", "table.height")
EACH = {"num_episodes": 2, "variations": {f"{name}.enabled": True for name in VARIED}}
JOBS = [
    {"name": "script", "arena_env_args": {**SMALL, "enable_cameras": True}, "policy_type": "scripted",
     "num_rebuilds": 2, **EACH},
    {"name": "rest", "arena_env_args": SMALL, "policy_type": "zero_action", **EACH},
    {"name": "gym", "arena_env_args": {"environment": "gym:Pendulum-v1"}, "policy_type": "random_action",
     "num_episodes": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def film_run(tmp_path_factory) -> Path:
    """A run whose films were made as it went, through all cameras."""
    directory = tmp_path_factory.mktemp("filmed")
    jobs = write_jobs(directory / "jobs.json", JOBS)
    filming = ["--record_viewport_video", "--record_camera_video"]
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), *filming]) == 0
    return directory / "out"


@pytest.fixture
def bare(film_run, tmp_path) -> Path:
    """A copy of the run without films."""
    copy = tmp_path / "bare"
    shutil.copytree(film_run, copy, ignore=shutil.ignore_patterns("videos", "contact_sheet.png"))
    return copy


def frames_of(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def films_below(directory: Path) -> set[str]:
    return {name for name in files_below(directory) if "/videos/" in name or name.endswith("contact_sheet.png")}


def tampered(dataset: Path, change: Callable[[h5py.Group], None], *, fix_checksum: bool = True) -> None:
    """Change demo_1 of a dataset, and its checksums so that nothing shows."""
    with h5py.File(dataset, "r+") as file:
        group = file["data/demo_1"]
        assert isinstance(group, h5py.Group)
        change(group)
    if not fix_checksum:
        return
    crc = checksum(read_episode(dataset, 1).arrays)
    with h5py.File(dataset, "r+") as file:
        file["data/demo_1"].attrs["checksum"] = crc
    for commits in dataset.parent.glob("episode_results_rank*.jsonl"):
        lines = [json.loads(line) for line in commits.read_text().splitlines()]
        lines = [{**line, "checksum": crc} if line["episode_index"] == 1 else line for line in lines]
        commits.write_text("".join(json.dumps(line) + "\n" for line in lines))


def adding(array: str, amount: float) -> Callable[[h5py.Group], None]:
    def add(group: h5py.Group) -> None:
        values = group[array]
        assert isinstance(values, h5py.Dataset)
        values[...] = values[...] + amount

    return add


def test_films_made_afterwards_are_the_films_of_the_run(film_run, bare, capsys):
    arguments = ["film", str(bare), "--episodes", "all", "--camera", "all", "--job", "rest", "--job", "script"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "4 of 4 episodes filmed" in told
    assert told.splitlines()[-1] == f"report written again, with the films: {bare / 'report.html'}"
    [film, *_] = bare.glob("script/videos/*.mp4")
    assert base64.b64encode(film.read_bytes()).decode() in (bare / "report.html").read_text()
    assert told.index("script episode 0: ") < told.index("rest episode 0: "), "the order of the plan"
    assert films_below(bare) == films_below(film_run)
    videos = [name for name in films_below(film_run) if name.endswith(".mp4")]
    assert len(videos) == 3 * 2 + 3 * 2
    assert any("-rebuild1-" in name for name in videos)
    for name in videos:
        np.testing.assert_array_equal(frames_of(bare / name), frames_of(film_run / name), err_msg=name)
    for name in films_below(film_run) - set(videos):
        assert (bare / name).read_bytes() == (film_run / name).read_bytes(), name


def test_only_what_was_asked_for_is_filmed_and_elsewhere_where_that_was_asked_for(bare, tmp_path, capsys):
    before = films_below(bare)
    arguments = ["film", str(bare), "--episodes", "failures", "--job", "rest", "--output_dir", str(tmp_path / "films")]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["report"] is None, "films elsewhere are not on the run's page"
    told = said["episodes"]
    assert {(each["job"], each["episode_index"]) for each in told} == {("rest", 0), ("rest", 1)}
    assert films_below(bare) == before == set()
    films = {name for name in files_below(tmp_path / "films") if name.endswith(".mp4")}
    assert films == {f"rest/videos/viewport-env{index}-episode-{index}.mp4" for index in (0, 1)}
    assert {str(tmp_path / "films" / name) for name in films} == {film for each in told for film in each["films"]}


def test_pairs_that_ended_otherwise_are_filmed_on_both_sides(bare, capsys):
    arguments = ["film", str(bare), "--episodes", "discordant", "--baseline", "rest", "--job"]
    assert main([*arguments, "gym"]) == 2
    assert "environment 'gym:Pendulum-v1'" in capsys.readouterr().err
    assert films_below(bare) == set()
    assert main([*arguments, "script"]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"{job} episode {index}: ") for job in ("script", "rest") for index in (0, 1)] == [1] * 4
    assert "4 of 4 episodes filmed" in told


def test_what_cannot_be_filmed_is_said_of_each_episode_and_takes_no_other_film(bare, capsys):
    (bare / "rest" / "dataset_rest.hdf5").unlink()
    tampered(bare / "script" / "dataset_script.hdf5", adding("actions", 0.2))
    assert main(["film", str(bare), "--episodes", "0,1,9"]) == 1
    told = capsys.readouterr().out
    assert "script episode 0: " in told
    assert "script episode 1: no film: it differs from the recording, at control step" in told
    assert "script episode 9: no film: it has not finished" in told
    assert "rest episode 0: no film: there is no recording of it" in told
    assert "gym episode 0: no film: its environment has no such cameras" in told
    assert [path.stem for path in (bare / "script" / "videos").glob("*.mp4")] == ["viewport-rebuild0-env0-episode-0"]


def test_a_difference_that_nobody_sees_is_filmed_and_said_and_a_damaged_recording_is_not(bare, capsys):
    dataset = bare / "script" / "dataset_script.hdf5"
    tampered(dataset, adding("states/rigid_object/cube/root_pose", 1e-5))
    assert main(["film", str(bare), "--episodes", "1", "--job", "script"]) == 0
    assert "(poses are up to 1e-05 m or rad from those recorded)" in capsys.readouterr().out
    tampered(dataset, adding("actions", 0.2), fix_checksum=False)
    assert main(["film", str(bare), "--episodes", "1", "--job", "script"]) == 1
    assert "script episode 1: no film: its recording is damaged" in capsys.readouterr().out


@pytest.fixture
def dataset(film_run, tmp_path) -> Path:
    """A copy of the recording of varied episodes, away from its run."""
    return Path(shutil.copy(film_run / "script" / "dataset_script.hdf5", tmp_path / "elsewhere.hdf5"))


def nudge(group: h5py.Group) -> None:
    states = group["states/rigid_object/cube/root_pose"]
    assert isinstance(states, h5py.Dataset)
    states[17, 2] = np.nextafter(states[17, 2], 1)


def test_variations_and_the_exact_state_come_out_again_wherever_the_dataset_lies(dataset, capsys):
    assert main(["replay", str(dataset), "--num_envs", "2"]) == 0
    told = capsys.readouterr().out
    assert told.count("  bitwise\n") == 2
    assert "2 of 2 episodes bitwise" in told
    assert "compared: initial_state, obs, actions, states, rewards and how it ended" in told
    assert "started from their conditions" not in told


def test_an_environment_without_a_state_is_replayed_from_its_seed_and_that_is_said(film_run, capsys):
    assert main(["replay", str(film_run / "gym")]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 episodes bitwise" in told
    assert "episodes started from their conditions: no exact state of the simulator was recorded that fits" in told


def test_one_changed_bit_is_found_with_its_step_and_field_unless_other_episodes_are_chosen(dataset, capsys):
    tampered(dataset, nudge)
    assert main(["replay", str(dataset)]) == 1
    told = capsys.readouterr().out
    assert "episode 1 " in told
    assert "differs first at control step 17: states/rigid_object/cube/root_pose by " in told
    assert "1 of 2 episodes bitwise" in told
    assert main(["replay", str(dataset), "--episodes", "0"]) == 0
    assert "1 of 1 episodes bitwise" in capsys.readouterr().out


def test_a_damaged_recording_is_not_replayed_but_told(dataset, capsys):
    tampered(dataset, nudge, fix_checksum=False)
    for more in ([], ["--episodes", "1"]):
        assert main(["replay", str(dataset), *more]) == 1
        assert "damaged: its checksum does not match" in capsys.readouterr().out


def test_the_others_are_compared_whatever_the_first_recording_has_lost(dataset, capsys):
    with h5py.File(dataset, "r+") as file:
        del file["data/demo_0/obs"]
    assert main(["replay", str(dataset)]) == 1
    told = capsys.readouterr().out
    assert "1 of 2 episodes bitwise" in told
    assert "compared: initial_state, obs, actions, states, rewards and how it ended" in told


def test_another_version_and_another_model_are_named_once(dataset, capsys):
    changed = {"mujoco": "3.0.0", "model_sha256": "abc", "cpu": "Z80"}
    with h5py.File(dataset, "r+") as file:
        data = file["data"]
        assert isinstance(data, h5py.Group)
        for demo in data.values():
            demo.attrs["provenance"] = json.dumps({**json.loads(demo.attrs["provenance"]), **changed})
    assert main(["replay", str(dataset)]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"changed since the recording: {name} was {changed[name]}, is now ") for name in changed] == [
        1
    ] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episodes", "1,7-8"], "holds no episodes 7 to 8; it holds episodes 0 to 1"),
        (["--episodes", "first"], "'first' is no list of episodes such as 0,5,7-9"),
        (["--num_envs", "0"], "--num_envs: must be at least 1, got 0"),
        (["--device", "gpu"], "'gpu' is not a device"),
        ([], "does not name its environment: env_args has no env_name"),
    ],
)
def test_what_cannot_be_replayed_is_refused(dataset, capsys, options, message):
    if not options:
        with h5py.File(dataset, "r+") as file:
            file["data"].attrs["env_args"] = "{}"
    assert main(["replay", str(dataset), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_list_of_episodes_is_read_in_any_order():
    assert chosen_episodes("7-9, 0,5,8") == [0, 5, 7, 8, 9]
    for wrong in ("", "3-1", "1,,2", "-1", "1-", "0x1", "\N{ARABIC-INDIC DIGIT TWO}"):
        with pytest.raises(ConfigError):
            chosen_episodes(wrong)
