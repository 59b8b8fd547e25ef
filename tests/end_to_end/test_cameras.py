"""Cameras and videos through the whole program: they show what happens and change nothing of it."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as command_line
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.results import read_episode
from tests.end_to_end.launching import (
    ROOT,
    command,
    environment,
    episodes_table,
    jobs_table,
    run,
    start,
    wait_until,
    write_jobs,
)


def evaluate(output: Path, *options: str, num_envs: int = 2, num_episodes: int = 3, **environment_args: object) -> Path:
    arguments = {"environment": "reach", "num_envs": num_envs, **environment_args}
    job = {"name": "a", "arena_env_args": arguments, "policy_type": "scripted", "num_episodes": num_episodes}
    path = write_jobs(output.with_suffix(".json"), [job])
    assert main(["--eval_jobs_config", str(path), "--output_dir", str(output), *options]) == 0
    return output


def recorded_arrays(output: Path) -> Mapping[str, np.ndarray]:
    return read_episode(output / "a" / "dataset_a.hdf5", 1).arrays


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return evaluate(tmp_path_factory.mktemp("cameras") / "plain")


def test_filming_changes_neither_results_nor_recordings(plain, tmp_path):
    filmed = evaluate(tmp_path / "filmed", "--record_camera_video", "--record-viewport-video")
    pd.testing.assert_frame_equal(episodes_table(filmed), episodes_table(plain))
    pd.testing.assert_frame_equal(jobs_table(filmed), jobs_table(plain))
    assert len(list((filmed / "a" / "videos").glob("*.mp4"))) == 3 * 3
    assert (filmed / "a" / "contact_sheet.png").is_file()
    assert not [name for name in recorded_arrays(filmed) if "camera" in name]


def test_seeing_changes_no_results_of_a_policy_that_does_not_look(plain, tmp_path):
    seeing = evaluate(tmp_path / "seeing", enable_cameras=True, camera_size=32)
    pd.testing.assert_frame_equal(
        episodes_table(seeing).drop(columns=["conditions"]), episodes_table(plain).drop(columns=["conditions"])
    )


def test_recorded_pictures_are_the_same_bits_for_any_number_of_environments(tmp_path):
    options = {"enable_cameras": True, "camera_size": 32, "camera_depth": True}
    alone = evaluate(tmp_path / "alone", "--record_observations", "all", num_envs=1, **options)
    together = evaluate(tmp_path / "together", "--record_observations", "all", num_envs=3, **options)
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    recorded = recorded_arrays(alone)
    pictures = recorded["camera_obs/wrist_cam_rgb"]
    assert (pictures.shape, pictures.dtype) == ((len(recorded["actions"]), 32, 32, 3), np.uint8)


def report_of(output: Path) -> dict[str, float]:
    return json.loads((output / "a" / "job_report_rank0.json").read_text())


def test_rendering_is_told_apart_from_simulating(tmp_path):
    report = report_of(evaluate(tmp_path / "out", "--eager_pictures", enable_cameras=True, camera_size=64))
    assert report["render_s"] > 5 * report["simulate_s"] > 0
    assert report["record_s"] < report["render_s"]


def test_pictures_that_nobody_looks_at_are_not_drawn(tmp_path):
    options = {"enable_cameras": True, "camera_size": 32}
    for name, arguments, (is_drawn, is_looked_at) in (
        ("lazy", (), (False, False)),
        ("eager", ("--eager_pictures",), (True, False)),
        ("recorded", ("--record_observations", "all"), (True, True)),
    ):
        report = report_of(evaluate(tmp_path / name, *arguments, **options))
        # Three episodes, each of which shows two cameras once more than it has steps.
        every = 2 * (report["env_steps"] + 3)
        assert (report["pictures_drawn"], report["pictures_looked_at"]) == (every * is_drawn, every * is_looked_at)


def test_what_a_job_waits_for_films_is_recording(tmp_path):
    plain = report_of(evaluate(tmp_path / "plain"))
    filmed = report_of(evaluate(tmp_path / "filmed", "--record_viewport_video"))
    assert filmed["render_s"] == 0.0
    assert filmed["record_s"] > 5 * plain["record_s"]


def test_cameras_can_be_turned_on_from_the_command_line(tmp_path):
    output = evaluate(tmp_path / "out", "--enable_cameras", "--record_observations", "all", camera_size=16)
    assert "camera_obs/robot_head_cam_rgb" in recorded_arrays(output)


def test_jobs_without_cameras_load_neither_the_ray_tracer_nor_the_encoder(tmp_path):
    path = write_jobs(
        tmp_path / "jobs.json",
        [{"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "num_episodes": 1}],
    )
    program = (
        "import sys; from isaaclab_arena.evaluation.eval_runner import main; "
        f"code = main(['--eval_jobs_config', {str(path)!r}, '--output_dir', {str(tmp_path / 'out')!r}]); "
        "print('loaded', sorted({'warp', 'mujoco_warp', 'av', 'PIL'} & set(sys.modules))); sys.exit(code)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "loaded []" in finished.stdout


def test_a_killed_run_leaves_no_broken_video_and_goes_on_filming(tmp_path):
    small = {"environment": "reach", "num_envs": 2, "viewport_width": 64, "viewport_height": 48}
    job = {"name": "a", "arena_env_args": small, "policy_type": "zero_action", "num_episodes": 10}
    jobs, videos = write_jobs(tmp_path / "jobs.json", [job]), tmp_path / "out" / "a" / "videos"
    arguments = ("--eval_jobs_config", jobs, "--output_dir", tmp_path / "out", "--record_viewport_video")
    process = start(command(*arguments), tmp_path / "log", fresh=True)
    wait_until(lambda: any(videos.glob("viewport*.mp4")))
    process.kill()
    process.wait()
    before = sorted(videos.glob("viewport*.mp4"))
    # 120 control steps of 0.05 s: a frame before the first, and one after every other step.
    assert [num_frames(path) for path in before] == [61] * len(before)
    finished = run(command(*arguments, "--resume"))
    assert finished.returncode == 0, finished.stderr
    after = sorted(videos.glob("*.mp4"))
    assert {path.suffix for path in videos.iterdir()} == {".mp4", ".webp"}
    assert len(episodes_table(tmp_path / "out")) == 10
    assert set(before) <= set(after)
    assert [num_frames(path) for path in after] == [61] * len(after)


def num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize("kind", ["png", "mp4"])
def test_view_writes_a_file_where_no_window_is_wanted(tmp_path, capsys, kind):
    output = tmp_path / f"reach.{kind}"
    size = ["--viewport_width", "64", "--viewport_height", "48"]
    assert command_line(["view", "reach", "--output", str(output), "--episode", "2", *size]) == 0
    assert output.stat().st_size > 500
    said = capsys.readouterr().out
    assert f"wrote {output}" in said
    if kind == "mp4":
        num_steps = re.search(r"after (\d+) steps", said)
        assert num_steps is not None
        assert num_frames(output) == int(num_steps[1]) + 1


def test_a_film_of_view_that_cannot_be_written_leaves_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command_line(["view", "reach", "--output", str(tmp_path / "file" / "reach.mp4")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one environment"),
        (["reech"], "did you mean 'reach'?"),
        (["reach", "--policy", "scripte"], "did you mean 'scripted'?"),
        (["reach", "--output", "film.gif"], "'film.gif' must end in .mp4 or .png"),
        (["reach", "--episode", "-1"], "--episode: must be at least 0, got -1"),
        (["gym:CartPole-v1"], "is made elsewhere"),
    ],
)
def test_view_names_a_mistake(arguments, message, capsys):
    assert command_line(["view", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_ranks_that_start_together_compile_the_kernels_once(tmp_path):
    """On a machine that has never rendered: the ranks wait for one another, and nothing is left half done."""
    jobs = [
        {
            "name": f"job{index}",
            "arena_env_args": {"environment": "reach", "num_envs": 2, "enable_cameras": True, "camera_size": 16},
            "policy_type": "scripted",
            "num_episodes": 2,
        }
        for index in range(2)
    ]
    path = write_jobs(tmp_path / "jobs.json", jobs)
    cache = tmp_path / "cache"
    arguments = ["--eval_jobs_config", path, "--output_dir", tmp_path / "out", "--eager_pictures"]
    finished = run(command(*arguments, ranks=2), extra={"WARP_CACHE_PATH": str(cache)}, timeout_s=280)
    assert finished.returncode == 0, finished.stderr
    kernels = [directory.name for directory in cache.glob("*/wp_*")]
    assert len(kernels) == len({name.rpartition("_")[0] for name in kernels})
    assert sum("megakernel" in name for name in kernels) == 1
    assert list(jobs_table(tmp_path / "out")["successes"]) == [2, 2]
