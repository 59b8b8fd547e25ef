"""Recordings written as a LeRobot dataset."""

import json
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.lerobot.layout import (
    QUANTILES,
    ColumnSpool,
    DatasetVersion,
    FileSizes,
    TableExtent,
    VideoWriter,
    array_statistics,
    read_columns,
    read_frames,
)
from isaaclab_arena.lerobot.reading import open_dataset, write_recordings
from isaaclab_arena.lerobot.writing import ANY_MODEL, LeRobotOptions, write_lerobot_dataset
from isaaclab_arena.storage.episodes import list_episodes, read_episode
from isaaclab_arena_gr00t.convert import model_columns
from tests.gr00t.data.recordings import HEIGHT, PANDA_YAML, WIDTH, picture_series, record, record_run, recorded_episode
from tests.layouts import LAYOUTS

# From a run to a dataset and back.


ORDER = [("lift", 0, 5), ("lift", 1, 4), ("lift", 2, 7), ("push", 0, 3), ("push", 1, 6)]
VERSIONS = pytest.mark.parametrize("version", [*DatasetVersion])


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    return record_run(tmp_path_factory.mktemp("run"))


def converted(run_directory, tmp_path, policy_config_yaml_path=None, **options):
    target = tmp_path / "dataset"
    model = ANY_MODEL if policy_config_yaml_path is None else model_columns(policy_config_yaml_path)
    write_lerobot_dataset(run_directory, target, LeRobotOptions(**options), model)
    return target


def brought_back(dataset, tmp_path):
    return {
        index: read_episode(recording, index)
        for recording in write_recordings(dataset, tmp_path / "back")
        for index in list_episodes(recording)
    }


@VERSIONS
@pytest.mark.parametrize(("kept", "with_yaml"), [("lossless", True), ("png", False)])
def test_a_lossless_dataset_gives_back_what_was_recorded(run_directory, tmp_path, version, kept, with_yaml):
    yaml = PANDA_YAML if with_yaml else None
    # Files of version 3.0 are begun anew when they are large, which each is here.
    options = {"version": version, kept: True, "policy_config_yaml_path": yaml}
    options["sizes"] = FileSizes(chunk=2, data_mb=0, video_mb=0)
    dataset = converted(run_directory, tmp_path, **options)
    assert any(dataset.glob("videos/**/*.mp4")) == (kept == "lossless")
    back = brought_back(dataset, tmp_path)
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*.*")) == [
        "lift/dataset_lift.hdf5",
        "push/dataset_push.hdf5",
    ]
    for number, (job, index, length) in enumerate(ORDER):
        found, source = back[number], recorded_episode(index, length, job)
        expected = {
            name: array
            for name, array in source.arrays.items()
            if name not in {"obs/cube_pos", "camera_obs/wrist_cam_depth"}
        }
        assert found.arrays.keys() == expected.keys()
        for name, array in expected.items():
            assert found.arrays[name].dtype == array.dtype
            assert np.array_equal(found.arrays[name], array), name
        assert found.env_args == {"env_name": job}
        assert {**source.attributes, "episode_index": number}.items() <= found.attributes.items()


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_pictures_are_in_colours_in_whichever_layout_they_were_recorded(tmp_path, lies, colours):
    record(tmp_path / "lift", "lift", [2, 2], **{"camera_obs/wrist_cam_rgb": np.stack([lies, lies])})
    [first, _] = brought_back(converted(tmp_path / "lift", tmp_path, png=True), tmp_path).values()
    assert np.array_equal(first.arrays["camera_obs/wrist_cam_rgb"], np.stack([colours, colours]))


@VERSIONS
def test_of_a_lossy_dataset_pictures_are_close_and_everything_else_is_equal(run_directory, tmp_path, version):
    dataset = converted(run_directory, tmp_path, version=version)
    back = brought_back(dataset, tmp_path)
    for number, (job, index, length) in enumerate(ORDER):
        found, source = back[number], recorded_episode(index, length, job)
        for name, array in found.arrays.items():
            if name.startswith("camera_obs/"):
                assert array.shape == (length, HEIGHT, WIDTH, 3)
                assert np.abs(array.astype(int) - source.arrays[name]).mean() < 4
            else:
                assert np.array_equal(array, source.arrays[name]), name
    opened = open_dataset(dataset)
    assert [episode.num_steps for episode in opened.episodes.values()] == [5, 4, 7, 3, 6]
    columns = opened.columns(2, ["next.done", "index", "timestamp"])
    assert columns["next.done"][:, 0].tolist() == [False] * 6 + [True]
    assert columns["index"][:, 0].tolist() == [*range(9, 16)]
    assert np.array_equal(columns["timestamp"][:, 0], (np.arange(7) / 20).astype(np.float32))
    # One task for each instruction.
    assert [episode.task for episode in opened.episodes.values()] == ["lift the cube"] * 3 + ["push the cube"] * 2
    for number, task in enumerate([0, 0, 0, 1, 1]):
        for values in opened.columns(number, ["task_index", "annotation.human.task_description"]).values():
            assert set(values[:, 0].tolist()) == {task}


def exact_statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    values = values.astype(np.float64)
    quantiles = {name: np.quantile(values, share, axis=0) for name, share in QUANTILES.items()}
    return {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0), **quantiles}


@VERSIONS
def test_statistics_are_exact_over_all_episodes(run_directory, tmp_path, version):
    dataset = converted(run_directory, tmp_path, version=version)
    statistics = json.loads((dataset / "meta/stats.json").read_text())
    sources = [recorded_episode(index, length, job).arrays for job, index, length in ORDER]
    pictures = np.concatenate([each["camera_obs/wrist_cam_rgb"].reshape(-1, 3) for each in sources]) / 255
    for feature, values, shape in (
        ("action", np.concatenate([each["actions"] for each in sources]), (8,)),
        ("observation.images.wrist_cam_rgb", pictures, (3, 1, 1)),
    ):
        found = statistics[feature]
        exact = exact_statistics(values)
        assert {"min", "max", "mean", "std", "q01", "q99"} <= found.keys()
        for name in exact.keys() & found.keys():
            np.testing.assert_allclose(found[name], exact[name].reshape(shape), rtol=1e-12, err_msg=name)
        assert found["count"] == [25]


def test_version_2_1_is_what_gr00t_reads(run_directory, tmp_path):
    """The files, columns and keys that NVIDIA's episode loader opens, in the form in which it uses them."""
    dataset = converted(run_directory, tmp_path, policy_config_yaml_path=PANDA_YAML)
    meta = dataset / "meta"
    info = json.loads((meta / "info.json").read_text())
    episodes = [json.loads(line) for line in (meta / "episodes.jsonl").read_text().splitlines()]
    tasks = {
        line["task_index"]: line["task"] for line in map(json.loads, (meta / "tasks.jsonl").read_text().splitlines())
    }
    modality = json.loads((meta / "modality.json").read_text())
    assert info["codebase_version"] == "v2.1"
    assert info["robot_type"] == "panda"
    assert (info["fps"], info["total_episodes"], info["total_frames"], info["total_videos"]) == (20, 5, 25, 10)
    assert episodes[3] == {"episode_index": 3, "tasks": ["push the cube"], "length": 3}
    assert modality["state"] == {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 9}}
    assert modality["action"] == {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}}
    assert modality["video"]["wrist"] == {"original_key": "observation.images.wrist"}
    table = pd.read_parquet(dataset / info["data_path"].format(episode_chunk=0, episode_index=3))
    source = recorded_episode(0, 3, "push").arrays
    assert isinstance(table["observation.state"].iloc[0], np.ndarray)
    assert np.array_equal(np.stack(table["observation.state"].to_list())[:, 7:9], source["obs/gripper_pos"])
    assert {tasks[number] for number in table["annotation.human.task_description"]} == {"push the cube"}
    assert "human.task_description" in modality["annotation"]
    for key in ("head", "wrist"):
        feature = modality["video"][key]["original_key"]
        assert info["features"][feature]["shape"] == [HEIGHT, WIDTH, 3]
        assert (dataset / info["video_path"].format(episode_chunk=0, video_key=feature, episode_index=3)).is_file()
    statistics = json.loads((meta / "stats.json").read_text())
    for name, feature in info["features"].items():
        if "float" in feature["dtype"]:
            assert {"mean", "std", "min", "max", "q01", "q99"} <= statistics[name].keys()


def test_version_3_0_says_where_every_episode_is(run_directory, tmp_path):
    dataset = converted(run_directory, tmp_path, version=DatasetVersion.V30)
    episodes = pd.read_parquet(dataset / "meta/episodes/chunk-000/file-000.parquet")
    assert episodes["dataset_from_index"].tolist() == [0, 5, 9, 16, 19]
    assert episodes["dataset_to_index"].tolist() == [5, 9, 16, 19, 25]
    video = "videos/observation.images.wrist_cam_rgb"
    assert episodes[f"{video}/from_timestamp"].tolist() == pytest.approx([0, 0.25, 0.45, 0.8, 0.95])
    assert episodes["stats/action/count"].map(list).tolist() == [[5], [4], [7], [3], [6]]
    tasks = pd.read_parquet(dataset / "meta/tasks.parquet")
    assert tasks["task_index"].to_dict() == {"lift the cube": 0, "push the cube": 1}
    assert len(list(dataset.glob("videos/*/*/*.mp4"))) == 2


def test_a_model_is_not_shown_what_no_robot_sees_unless_asked_for(run_directory, tmp_path):
    plain = open_dataset(converted(run_directory, tmp_path, no_videos=True))
    assert plain.features["observation.state"]["shape"] == [9]
    assert "observation.environment_state" not in plain.features
    asked = open_dataset(converted(run_directory, tmp_path / "asked", no_videos=True, environment_state=True))
    assert asked.features["observation.environment_state"]["names"] == ["cube_pos_0", "cube_pos_1", "cube_pos_2"]
    back = brought_back(asked.root, tmp_path)
    assert np.array_equal(back[4].arrays["obs/cube_pos"], recorded_episode(1, 6, "push").arrays["obs/cube_pos"])


def test_episodes_are_found_in_a_common_video_where_a_step_is_no_exact_number(tmp_path):
    # In floating point 1 / 49 * 49 is less than 1.
    recording = record(tmp_path / "job", "lift", [1, 2], attributes={"control_dt": 1 / 49})
    back = brought_back(converted(recording, tmp_path, version=DatasetVersion.V30, lossless=True), tmp_path)
    for index, length in enumerate([1, 2]):
        seen = recorded_episode(index, length, "lift").arrays["camera_obs/wrist_cam_rgb"]
        assert np.array_equal(back[index].arrays["camera_obs/wrist_cam_rgb"], seen)


@pytest.mark.parametrize(("lossless", "shape"), [(False, [32, 46, 3]), (True, [31, 45, 3])])
def test_pictures_of_odd_size_come_back_in_their_own(tmp_path, lossless, shape):
    pictures = picture_series(0, 4, height=31, width=45)
    recording = record(tmp_path / "job", "lift", [4], **{"camera_obs/wrist_cam_rgb": pictures})
    dataset = converted(recording, tmp_path, lossless=lossless)
    assert open_dataset(dataset).features["observation.images.wrist_cam_rgb"]["shape"] == shape
    assert brought_back(dataset, tmp_path)[0].arrays["camera_obs/wrist_cam_rgb"].shape == pictures.shape


def test_an_interrupted_conversion_is_no_dataset_and_a_directory_that_holds_something_is_left_alone(
    run_directory, tmp_path
):
    def stop(done, due):
        if done == 2:
            raise KeyboardInterrupt

    target = tmp_path / "dataset"
    with pytest.raises(KeyboardInterrupt):
        write_lerobot_dataset(run_directory, target, LeRobotOptions(no_videos=True), told=stop)
    before = sorted(target.rglob("*"))
    with pytest.raises(StorageError, match="conversion"):
        open_dataset(target)
    with pytest.raises(ConfigError, match="--output_dir"):
        converted(run_directory, tmp_path)
    assert sorted(target.rglob("*")) == before


ODD = np.zeros((4, 4, 6, 8), np.uint8)


@pytest.mark.parametrize(
    ("more", "options", "says"),
    [
        ({"attributes": {"language_instruction": None}}, {}, "--language_instruction"),
        ({"attributes": {"control_dt": 0.015}}, {}, r"66.6667.*--fps"),
        ({"attributes": {"control_dt": None}}, {}, "--fps"),
        ({"attributes": {"success": False}}, {"only_successes": True}, "none of its 1"),
        ({}, {"state_names": ["robot_joint_pso"]}, "'robot_joint_pos'"),
        ({"camera_obs/wrist_cam_rgb": None}, {"policy_config_yaml_path": PANDA_YAML}, "--record_observations all"),
        ({"camera_obs/wrist_cam_rgb": ODD}, {}, r"'wrist_cam_rgb' has shape \(4, 6, 8\)"),
        ({"obs/gripper_pos": None}, {"policy_config_yaml_path": PANDA_YAML}, "'gripper_pos'"),
        ({"obs/robot_joint_pos": np.ones((4, 6), np.float32)}, {"policy_config_yaml_path": PANDA_YAML}, "lists 9"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, more, options, says):
    recording = record(tmp_path / "job", "lift", [4], **more)
    with pytest.raises(ConfigError, match=says):
        converted(recording, tmp_path, **options)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        (
            {"actions": np.ones((3, 6), np.float32)},
            ConfigError,
            r"dataset_b\.hdf5: demo_0: .*\(3, 6\), expected \(3, 8\)",
        ),
        ({"attributes": {"control_dt": 0.02}}, ConfigError, r"dataset_a.*0\.05 s, .*dataset_b.* of 0\.02 s"),
        ({"rewards": np.array([0, np.nan, 1], np.float32)}, StorageError, r"demo_0: 'next\.reward'"),
    ],
)
def test_episodes_that_do_not_fit_together_are_refused_by_name(tmp_path, more, error, says):
    record(tmp_path / "run/a", "a", [3])
    record(tmp_path / "run/b", "b", [3], **more)
    with pytest.raises(error, match=says):
        converted(tmp_path / "run", tmp_path)


# The files of a LeRobot dataset.


# Tables that unfold.


def test_the_values_of_a_list_are_counted_whatever_its_elements_are_called(tmp_path):
    lists = pa.array([[0.0] * 100_000] * 2, pa.list_(pa.field("anything", pa.float64())))
    parquet.write_table(
        pa.table({"index": [0, 0], "action": lists}), tmp_path / "table.parquet", use_compliant_nested_type=False
    )
    with pytest.raises(StorageError, match=r"'action.list.anything' has 200000"):
        read_columns(tmp_path / "table.parquet", ["action"], TableExtent(key="index", value=0, num_rows=2, max_size=9))


def test_large_values_lose_no_digits_of_their_spread_and_a_spool_leaves_no_file(tmp_path):
    values = 1e7 + np.arange(5, dtype=np.float64)[:, None]
    spool = ColumnSpool(tmp_path, 1)
    spool.append(values)
    assert list(tmp_path.iterdir()) == []
    assert spool.finish()["std"][0] == array_statistics(values)["std"][0] == pytest.approx(np.sqrt(2))


def video_written(path, episodes, *, lossless, fps=20):
    video = VideoWriter(path, fps=fps, lossless=lossless)
    for frames in episodes:
        video.add(frames)
    video.close()
    return path


EPISODES = [picture_series(seed, length) for seed, length in ((0, 5), (9, 1), (4, 8))]


@pytest.mark.parametrize("fps", [20, 67, Fraction(5, 2)])
def test_every_episode_of_a_lossless_video_comes_back_bit_by_bit(tmp_path, fps):
    path = video_written(tmp_path / "video.mp4", EPISODES, lossless=True, fps=fps)
    first = 0
    for frames in EPISODES:
        assert np.array_equal(np.stack([*read_frames(path, fps=float(fps), first=first, count=len(frames))]), frames)
        first += len(frames)


def test_a_missing_frame_and_what_is_no_video_are_named(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES[:1], lossless=False)
    with pytest.raises(StorageError, match="no frame 5"):
        list(read_frames(path, fps=20, first=3, count=4))
    path.write_bytes(b"not a video" * 50)
    with pytest.raises(StorageError, match=r"cannot read .*video\.mp4"):
        list(read_frames(path, fps=20, first=0, count=1))
