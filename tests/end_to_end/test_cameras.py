"""Cameras and videos through the whole program: they show what happens and change nothing of it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as command_line
from isaaclab_arena.results import read_episode
from tests.end_to_end.launching import (
    end,
    episodes_table,
    evaluated,
    job,
    jobs_table,
    launched,
    patience_s,
    run,
    run_of,
    start,
    wait_until,
)


def evaluate(output: Path, *options: str, num_envs: int = 2, **args: object) -> Path:
    return evaluated(output, job(num_envs=num_envs, args=args), options=options)


def recorded_arrays(output: Path) -> Mapping[str, np.ndarray]:
    return read_episode(output / "a" / "dataset_a.hdf5", 1).arrays


def report_of(output: Path) -> dict[str, float]:
    return json.loads((output / "a" / "job_report_rank0.json").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return evaluate(tmp_path_factory.mktemp("cameras") / "plain")


def test_filming_changes_neither_results_nor_recordings_and_waiting_for_films_is_recording(plain, tmp_path):
    filmed = evaluate(tmp_path / "filmed", "--record_camera_video", "--record-viewport-video")
    pd.testing.assert_frame_equal(episodes_table(filmed), episodes_table(plain))
    pd.testing.assert_frame_equal(jobs_table(filmed), jobs_table(plain))
    assert len(list((filmed / "a" / "videos").glob("*.mp4"))) == 3 * 3
    assert (filmed / "a" / "contact_sheet.png").is_file()
    assert not [name for name in recorded_arrays(filmed) if "camera" in name]
    assert report_of(filmed)["render_s"] == 0.0
    assert report_of(filmed)["record_s"] > 5 * report_of(plain)["record_s"]


@pytest.mark.parametrize(
    ("options", "is_drawn", "is_looked_at"),
    [((), False, False), (("--eager_pictures",), True, False), (("--record_observations", "all"), True, True)],
)
def test_seeing_changes_no_results_and_pictures_that_nobody_looks_at_are_not_drawn(
    plain, tmp_path, options, is_drawn, is_looked_at
):
    seeing = evaluate(tmp_path / "seeing", "--enable_cameras", *options, camera_size=32)
    # Pictures are part of the checksum of what is recorded of them.
    apart = ["conditions", "checksum"] if is_looked_at else ["conditions"]
    found, expected = (episodes_table(each).drop(columns=apart) for each in (seeing, plain))
    pd.testing.assert_frame_equal(found, expected)
    report = report_of(seeing)
    # Three episodes, each of which shows two cameras once more than it has steps.
    every = 2 * (report["env_steps"] + 3)
    assert (report["pictures_drawn"], report["pictures_looked_at"]) == (every * is_drawn, every * is_looked_at)
    if is_drawn and not is_looked_at:
        assert report["render_s"] > report["simulate_s"] > 0
        assert report["record_s"] < report["render_s"]


def test_recorded_pictures_are_the_same_bits_for_any_number_of_environments(tmp_path):
    options = {"enable_cameras": True, "camera_size": 32, "camera_depth": True}
    alone, together = (
        evaluate(tmp_path / f"on{num_envs}", "--record_observations", "all", num_envs=num_envs, **options)
        for num_envs in (1, 3)
    )
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    recorded = recorded_arrays(alone)
    pictures = recorded["camera_obs/wrist_cam_rgb"]
    assert (pictures.shape, pictures.dtype) == ((len(recorded["actions"]), 32, 32, 3), np.uint8)
    assert "camera_obs/robot_head_cam_rgb" in recorded


def test_jobs_without_cameras_load_neither_the_ray_tracer_nor_the_encoder(tmp_path):
    line = run_of(tmp_path / "out", job(num_episodes=1))
    program = (
        "import sys; from isaaclab_arena.evaluation.eval_runner import main; code = main(sys.argv[1:]); "
        "print('loaded', sorted({'warp', 'mujoco_warp', 'av', 'PIL'} & set(sys.modules))); sys.exit(code)"
    )
    finished = run([line[0], "-c", program, *line[line.index("--eval_jobs_config") :]], fresh=True)
    assert finished.returncode == 0, finished.stderr
    assert "loaded []" in finished.stdout


@pytest.mark.slow
def test_a_killed_run_leaves_no_broken_video_and_goes_on_filming(tmp_path):
    output = tmp_path / "out"
    small = job(policy="zero_action", num_episodes=10, args={"viewport_width": 64, "viewport_height": 48})
    process = start(run_of(output, small, options=("--record_viewport_video",)), tmp_path / "log", fresh=True)
    wait_until(lambda: any(output.glob("a/videos/viewport*.mp4")), timeout_s=patience_s(60))
    end(process)
    before = sorted(output.glob("a/videos/viewport*.mp4"))
    # 120 control steps of 0.05 s: a frame before the first, and one after every other step.
    assert [num_frames(path) for path in before] == [61] * len(before)
    launched(output, options=("--record_viewport_video", "--resume"))
    after = sorted(output.glob("a/videos/*.mp4"))
    assert {path.suffix for path in output.glob("a/videos/*")} == {".mp4", ".webp"}
    assert len(episodes_table(output)) == 10
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


@pytest.mark.slow
def test_ranks_that_start_together_compile_the_kernels_once(tmp_path):
    """On a machine that has never rendered: the ranks wait for one another, and nothing is left half done."""
    seeing = {"enable_cameras": True, "camera_size": 16}
    jobs = [job(num_episodes=2, args=seeing, name=name) for name in ("one", "other")]
    where = {"WARP_CACHE_PATH": str(tmp_path / "cache")}
    output = launched(tmp_path / "out", *jobs, options=("--eager_pictures",), ranks=2, extra=where, timeout_s=280)
    kernels = [directory.name for directory in tmp_path.glob("cache/*/wp_*")]
    assert len(kernels) == len({name.rpartition("_")[0] for name in kernels})
    assert sum("megakernel" in name for name in kernels) == 1
    assert list(jobs_table(output)["successes"]) == [2, 2]
