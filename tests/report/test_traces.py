"""The traces of filmed episodes on a page, from their recordings."""

import base64
import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from isaaclab_arena.interfaces.episode import EpisodeEvents
from isaaclab_arena.report.traces import MOST_PICTURES, MOST_POINTS, thinned, traces_of_films
from isaaclab_arena.report.writing import html_of, page_of
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.storage.ledger import RecordedEntries, write_job_report
from tests.analysis.recorded_runs import write_run
from tests.report.reading import Reader, unpacked_numbers, write_films, write_recording
from tests.results.evidence import report

NAMES = ("shoulder", "elbow")


def arrays_of(num_steps: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(num_steps)
    shapes = {"actions": (2,), "rewards": (), "obs/robot_joint_pos": (2,), "obs/robot_joint_vel": (2,)}
    shapes["obs/gripper_pos"] = (1,)
    own = {name: generator.uniform(-1, 1, (num_steps, *shape)).astype(np.float32) for name, shape in shapes.items()}
    return own | more


def write_recorded_run(
    directory: Path, episodes: Mapping[int, dict[str, np.ndarray]], *, filmed: range | None = None, **how: Any
) -> Path:
    """Write a run of the job ``lift`` with recordings of some of its episodes, and films."""
    run = write_run(directory, {"lift": "f" * (1 + max(episodes))}, **how)
    for index, arrays in episodes.items():
        write_recording(run, "lift", index, arrays)
    bounds = RecordedEntries(names=NAMES, unit="rad", low=(-1.0, -1.0), high=(1.0, None))
    write_job_report(run / "lift", report("lift", attempt=2, entries={"actions": bounds}))
    write_films(run, "lift", range(1 + max(episodes)) if filmed is None else filmed)
    return run


def traces_of(run: Path, *, running: bool = False) -> list[dict[str, Any]]:
    page = page_of({run: merge_results(run)}, embedded_bytes=10_000, running=running)
    return Reader(html_of(page, run)).data["traces"]


def test_a_filmed_episode_has_its_joints_gripper_actions_and_reward_with_names_units_and_bounds(tmp_path: Path):
    arrays = arrays_of(30)
    told = {0: EpisodeEvents(progress=0.5, decisive="dropped", seen={"dropped": (7, 2)})}
    (trace,) = traces_of(write_recorded_run(tmp_path / "run", {0: arrays}, events=told))
    assert (trace["dt"], trace["steps"], trace["events"]) == (0.05, 30, [["dropped", 7, 2]])
    main = {panel["title"]: panel for panel in trace["panels"] if panel["main"]}
    assert [*main] == ["Joint positions", "Gripper", "Actions", "Reward"]
    names = ("obs/robot_joint_pos", "obs/gripper_pos", "actions", "rewards")
    for panel, name in zip(main.values(), names, strict=True):
        values = unpacked_numbers(panel["values"], panel["width"] * 30).reshape(panel["width"], 30).T
        np.testing.assert_allclose(values, arrays[name].reshape(30, -1), atol=1e-4)
    actions = main["Actions"]
    assert (actions["names"], actions["unit"]) == ([*NAMES], "rad")
    assert (actions["low"], actions["high"]) == ([-1, -1], [1, None])
    # An action is that of the moment before a step, its reward that of the moment after it.
    assert (actions["first"], main["Reward"]["first"]) == (0, 1)
    assert [panel["title"] for panel in trace["panels"] if not panel["main"]] == ["robot joint vel"]
    other = {"actions": np.zeros((5, 1), np.float32), "obs/observation": np.arange(10.0).reshape(5, 2)}
    (trace,) = traces_of(write_recorded_run(tmp_path / "of another kind", {0: other}))
    assert [(panel["title"], panel["main"]) for panel in trace["panels"]] == [("Actions", True), ("observation", True)]


@pytest.mark.parametrize("num_steps", [401, 1_000, 9_999])
def test_a_long_episode_is_thinned_and_loses_no_peak(num_steps: int):
    values = np.random.default_rng(0).normal(size=(num_steps, 3))
    peaks = num_steps // 3, num_steps // 2, num_steps - 1
    values[peaks, range(3)] = 100.0, -100.0, 100.0
    points, stride = thinned(values)
    assert len(points) <= MOST_POINTS
    np.testing.assert_array_equal([points[:, 0].max(), points[:, 1].min(), points[:, 2].max()], [100.0, -100.0, 100.0])
    for column, peak in enumerate(peaks):
        at = int(np.abs(points[:, column]).argmax())
        assert abs(at * stride - peak) <= 2 * stride
    same, one = thinned(values[:MOST_POINTS])
    assert one == 1
    np.testing.assert_array_equal(same, values[:MOST_POINTS])


def test_only_filmed_episodes_with_a_whole_recording_have_traces(tmp_path: Path):
    run = write_recorded_run(tmp_path / "run", {index: arrays_of(10) for index in (0, 1, 2)}, filmed=range(1, 5))
    damaged = run / "lift" / "episodes" / "e000002.h5"
    damaged.write_bytes(damaged.read_bytes()[:600])
    with h5py.File(run / "lift" / "episodes" / "e000003.h5", "w") as words:
        words["data/demo_3/actions"] = ["left", "right"]
    assert [trace["episode"] for trace in traces_of(run)] == [1]
    assert traces_of(run, running=True) == []


def test_without_room_for_all_curves_the_main_ones_are_kept_and_films_inside_of_the_page_come_first(tmp_path: Path):
    run = write_recorded_run(tmp_path / "run", {index: arrays_of(200) for index in range(3)})
    runs, jobs, filmed = {run: merge_results(run)}, [(0, "lift")], [(0, 2), (0, 0), (0, 1)]
    whole, *_ = traces_of_films(runs, jobs, filmed)
    least = traces_of_films(runs, jobs, filmed, most_bytes=2 * len(json.dumps(whole)) - 100)
    assert [trace["episode"] for trace in least] == [2, 0]
    assert [len(trace["panels"]) for trace in least] == [5, 4]
    assert least[0] == whole


def test_episodes_that_show_a_reason_have_their_traces_before_others(tmp_path: Path):
    told = {}
    for index, moment in enumerate((1, 9, 5, 5, 5, 9)):
        told[index] = EpisodeEvents(progress=0.5, decisive="dropped", seen={"dropped": (moment, 1)})
    run = write_recorded_run(tmp_path / "run", {index: arrays_of(10) for index in range(6)}, events=told)
    assert [trace["episode"] for trace in traces_of(run)] == [2, 3, 4, 0, 1, 5]


def test_what_the_policy_saw_is_there_if_it_was_recorded(tmp_path: Path):
    pictures = np.zeros((100, 32, 64, 3), np.uint8)
    pictures[50:, :, :, 0] = 255
    depth = np.zeros((100, 32, 64, 1), np.float32)
    arrays = arrays_of(100, **{"camera_obs/wrist": pictures, "camera_obs/depth": depth})
    (trace,) = traces_of(write_recorded_run(tmp_path / "run", {0: arrays}))
    (camera,) = trace["pictures"]
    assert (camera["camera"], camera["width"], camera["height"]) == ("wrist", 64, 32)
    assert (camera["steps"][0], camera["steps"][-1], len(camera["steps"])) == (0, 99, MOST_PICTURES)
    sheet = np.asarray(Image.open(BytesIO(base64.b64decode(camera["sheet"]))).convert("RGB")).astype(int)
    assert sheet.shape == (32, 64 * MOST_PICTURES, 3)
    for place, step in enumerate(camera["steps"]):
        assert abs(sheet[16, 64 * place + 32, 0] - (255 if step >= 50 else 0)) < 20


def test_names_in_a_strangers_recording_stay_words(tmp_path: Path):
    hostile = "obs/<img src=x onerror=alert(1)>\u202e joint"
    arrays = {"actions": np.zeros((4, 1), np.float32), hostile: np.ones((4, 1)), "obs/empty": np.zeros((0, 1))}
    run = write_recorded_run(tmp_path / "run", {0: arrays})
    page = page_of({run: merge_results(run)}, embedded_bytes=0)
    assert [panel["title"] for panel in page.traces[0]["panels"]] == ["Joint positions", "Actions"]
    assert "<img src=x" not in html_of(page, run)
