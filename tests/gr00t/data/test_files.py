"""The files of a LeRobot dataset."""

from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena.lerobot.layout import (
    ColumnSpool,
    TableExtent,
    VideoWriter,
    array_statistics,
    read_columns,
    read_frames,
    read_rows,
)
from tests.gr00t.data.recordings import picture_series

# Tables that unfold.


def test_rows_with_long_texts_come_in_pieces(tmp_path):
    parquet.write_table(pa.table({"task": ["x" * 9_000 + str(row) for row in range(3_000)]}), tmp_path / "t.parquet")
    assert [row["task"][9_000:] for row in read_rows(tmp_path / "t.parquet", ["task"])] == [*map(str, range(3_000))]


def test_many_readings_may_stand_inside_one(tmp_path):
    path, extent = tmp_path / "t.parquet", TableExtent(key="index", value=0, num_rows=300, max_size=1)
    parquet.write_table(pa.table({"index": np.zeros(300, np.int64)}), path)
    rows = read_rows(path, ["index"])
    next(rows)
    for _ in range(70):
        read_columns(path, ["index"], extent)
    assert len([*rows]) == 299


def test_the_values_of_a_list_are_counted_whatever_its_elements_are_called(tmp_path):
    lists = pa.array([[0.0] * 100_000] * 2, pa.list_(pa.field("anything", pa.float64())))
    parquet.write_table(
        pa.table({"index": [0, 0], "action": lists}), tmp_path / "table.parquet", use_compliant_nested_type=False
    )
    with pytest.raises(StorageError, match=r"'action.list.anything' has 200000 values in 2 rows; at most 9"):
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


def test_frames_stand_at_whole_multiples_of_the_control_step(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES, lossless=False)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = [float((frame.pts or 0) * (frame.time_base or 0)) for frame in container.decode(stream)]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
    assert times == pytest.approx([step / 20 for step in range(14)], abs=1e-9)


def test_a_missing_frame_and_what_is_no_video_are_named(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES[:1], lossless=False)
    with pytest.raises(StorageError, match="no frame 5"):
        list(read_frames(path, fps=20, first=3, count=4))
    path.write_bytes(b"not a video" * 50)
    with pytest.raises(StorageError, match=r"cannot read .*video\.mp4"):
        list(read_frames(path, fps=20, first=0, count=1))
