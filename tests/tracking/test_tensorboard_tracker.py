"""Tests of event files, read back by TensorBoard's own reader."""

import io
import time
from pathlib import Path

import pytest
from PIL import Image

from isaaclab_arena.registry import imported
from isaaclab_arena.tracking.trackers import CheckpointMeasures
from isaaclab_arena.tracking.watched_run import export_tensorboard
from tests.tracking.runs import finished_run, series_run, write_film

reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
)


def events(directory: Path):
    accumulator = reader.EventAccumulator(str(directory), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_rates_curves_settings_and_moving_pictures_are_shown(tmp_path):
    [line] = export_tensorboard(finished_run(tmp_path / "run"), tmp_path / "there")
    assert line == f"tensorboard --logdir {tmp_path / 'there' / 'tensorboard'}"
    shown = events(tmp_path / "there" / "tensorboard")
    [[rate], [low], [high]] = (shown.Scalars(f"early/success_{name}") for name in ("rate", "low", "high"))
    assert (rate.step, rate.value) == (4, pytest.approx(2 / 3))
    assert low.value < rate.value < high.value
    points = [(each.step, each.value) for each in shown.Scalars("checkpoints/lift_object/success_rate")]
    assert points == [(100, pytest.approx(2 / 3)), (200, 1.0)]
    for tag, text in (
        ("jobs", "| late.v2 |"),
        ("early/settings", "| policy_config_dict.checkpoint_path | runs/model_100.pt |"),
        ("settings", "| config_hash | abc |"),
    ):
        assert text in shown.Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()
    [tag] = shown.Tags()["images"]
    assert tag.startswith("early/films/episode 1 failure/")
    [picture] = shown.Images(tag)
    moving = Image.open(io.BytesIO(picture.encoded_image_string))
    assert (moving.format, moving.size, getattr(moving, "n_frames", 1)) == ("GIF", (64, 48), 3)


def test_a_long_film_is_shortened_to_sixty_frames_at_most(tmp_path):
    moving_picture = imported("isaaclab_arena.tracking.trackers:moving_picture")
    moving, _ = moving_picture(write_film(tmp_path, "lift", 0, num_frames=130))
    assert getattr(Image.open(io.BytesIO(moving)), "n_frames", 1) == 44


def tell_series(directory: Path, *steps: int) -> None:
    tracker_of = imported("isaaclab_arena.tracking.trackers:TensorboardTracker")
    tracker = tracker_of(series_run(directory))
    for step in steps:
        values = {"success_rate": step / 1000, "success_low": 0.0, "success_high": 1.0}
        tracker.log_checkpoint(CheckpointMeasures(series="reach", step=step, values=values))
    tracker.close()


def test_readers_of_a_curve_that_is_told_again_and_again_see_each_point_once(tmp_path):
    tell_series(tmp_path, 500)
    open_all_the_time = events(tmp_path / "tensorboard")
    for first in (400, 300, 200, 100):
        # The names of TensorBoard's files have an order from one second to the next only.
        time.sleep(1.0 - time.time() % 1.0)
        tell_series(tmp_path, *range(first, 600, 100))
        open_all_the_time.Reload()
    for reading in (open_all_the_time, events(tmp_path / "tensorboard")):
        told = [each.step for each in reading.Scalars("checkpoints/reach/success_rate")]
        assert told == [100, 200, 300, 400, 500]
    assert len([*(tmp_path / "tensorboard").iterdir()]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
