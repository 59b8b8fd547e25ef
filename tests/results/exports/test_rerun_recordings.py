"""Tests of Rerun recordings, read back by Rerun's catalog as tables."""

import numpy as np
import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.exports import export_rerun
from tests.results.evidence import planned, write_plan
from tests.storage.recordings import write_arrays
from tests.tracking.runs import write_film

NUM_STEPS = 5
JOINTS = np.arange(NUM_STEPS * 3, dtype=np.float64).reshape(NUM_STEPS, 3)


ARRAYS = {
    "actions": np.ones((NUM_STEPS, 2), dtype=np.float32),
    "rewards": np.arange(NUM_STEPS, dtype=np.float32),
    "camera_obs/wrist_cam_rgb": np.full((NUM_STEPS, 16, 16, 3), 200, dtype=np.uint8),
    "camera_obs/wrist_cam_depth": np.full((NUM_STEPS, 16, 16, 1), 0.5, dtype=np.float32),
    "camera_obs/wrist_cam_segmentation": np.ones((NUM_STEPS, 16, 16, 1), dtype=np.int32),
    "states/articulation/robot/joint_position": JOINTS,
    "initial_state/articulation/robot/joint_position": JOINTS[:1],
}


@pytest.fixture
def run(tmp_path):
    write_plan(tmp_path / "run", planned("lift"), planned("reach", index=1))
    for index, outcome in ((0, "success"), (7, "timeout")):
        said = {"job": "lift", "outcome": outcome, "success": outcome == "success", "control_dt": 0.05}
        write_arrays(tmp_path / "run", "lift", index, ARRAYS, **said)
    write_film(tmp_path / "run", "lift", 7)
    return tmp_path / "run"


@pytest.fixture
def catalog(run, tmp_path):
    """Return the exported recordings as a dataset of Rerun's catalog."""
    pytest.importorskip("datafusion", reason="Rerun's catalog, which reads recordings as tables, is not installed")
    server = pytest.importorskip("rerun.server", reason="the extra rerun is not installed")
    [line] = export_rerun(run, tmp_path / "there")
    assert line == f"{tmp_path / 'there' / 'lift'}: episodes 2; open with: rerun {tmp_path / 'there' / 'lift'}"
    files = [str(path) for path in sorted((tmp_path / "there").rglob("*.rrd"))]
    with server.Server(host="127.0.0.1", datasets={"episodes": files}) as served:
        yield served.client().get_dataset("episodes")


def test_a_recording_has_states_rewards_and_pictures_at_each_step_and_films_of_other_cameras(catalog):
    steps = catalog.filter_contents(["/**"]).reader(index="step").to_pandas()
    steps = steps[steps["rerun_segment_id"] == "run_lift_7"].sort_values("step").reset_index()
    assert list(steps["step"]) == list(range(NUM_STEPS))
    joints = np.stack(list(steps["/states/articulation/robot/joint_position:Scalars:scalars"]))
    assert np.array_equal(joints, JOINTS)
    assert [reward.item() for reward in steps["/rewards:Scalars:scalars"]] == [0, 1, 2, 3, 4]
    assert [time.total_seconds() for time in steps["time"]] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    for column in ("rgb:EncodedImage:blob", "depth:DepthImage:buffer", "segmentation:SegmentationImage:buffer"):
        assert steps[f"/cameras/wrist_cam_{column}"].notna().sum() == NUM_STEPS
    shown = steps[steps["/cameras/viewport:VideoFrameReference:timestamp"].notna()]
    assert list(shown["step"]) == [0, 2, 4]
    episodes = catalog.segment_table().to_pandas().set_index("rerun_segment_id").sort_index()
    outcomes = {name: value[0] for name, value in episodes["property:episode:outcome"].items()}
    assert outcomes == {"run_lift_0": "success", "run_lift_7": "timeout"}
    assert [value[0] for value in episodes["property:episode:success"]] == [True, False]


@pytest.mark.parametrize(("job", "words"), [("lft", "'lft'; did you mean 'lift'"), ("reach", "no recorded episode")])
def test_a_job_that_is_unknown_or_has_no_recording_is_refused(run, tmp_path, job, words):
    pytest.importorskip("rerun", reason="the extra rerun is not installed")
    with pytest.raises(ConfigError, match=words):
        list(export_rerun(run, tmp_path / "there", jobs=(job,)))
