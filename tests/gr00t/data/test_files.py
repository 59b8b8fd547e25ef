"""The files of a LeRobot dataset."""

import io
import random
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isaaclab_arena.errors import StorageError
from isaaclab_arena_gr00t.data.features import VideoWriter, read_frames
from isaaclab_arena_gr00t.data.tables import (
    QUANTILES,
    ColumnSpool,
    TableExtent,
    array_statistics,
    largest_page,
    picture_statistics,
    read_columns,
    read_rows,
)
from tests.gr00t.data.recordings import picture_series

# How far the pages of a Parquet file unfold.


def chunk_of(column: parquet.ColumnChunkMetaData) -> tuple[int, int]:
    starts = [column.data_page_offset, *([column.dictionary_page_offset] if column.has_dictionary_page else [])]
    return min(starts), column.total_compressed_size


def pages_of(content: bytes) -> list[int]:
    """Return the largest page of each column of each row group."""
    metadata = parquet.ParquetFile(io.BytesIO(content)).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(position) for group in groups for position in range(group.num_columns)]
    return [largest_page(io.BytesIO(content), *chunk_of(column)) for column in columns]


def written(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def table() -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(90_000)), 9)
    return pa.table({"action": vectors, "index": np.arange(10_000), "task": pa.array(["lift", None] * 5_000)})


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("data_page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_all_pages_are_found_however_they_were_written(compression, data_page_version, use_dictionary):
    content = written(
        table(),
        compression=compression,
        data_page_version=data_page_version,
        use_dictionary=use_dictionary,
        write_page_checksum=True,
        write_page_index=True,
        data_page_size=20_000,
        row_group_size=4_000,
    )
    actions = pages_of(content)[::3]
    assert len(actions) == 3
    assert all(20_000 <= size < 400_000 for size in actions)


def in_one_page(num_rows: int) -> dict[str, Any]:
    """Return the options that put rows into one page; older releases of Arrow count no rows."""
    counted = {"max_rows_per_page": num_rows} if "max_rows_per_page" in (parquet.write_table.__doc__ or "") else {}
    return {**counted, "row_group_size": num_rows, "write_batch_size": num_rows}


def test_one_page_of_a_small_file_may_be_large():
    content = written(
        pa.table({"zeros": np.zeros(4_000_000)}),
        use_dictionary=False,
        compression="zstd",
        data_page_size=1 << 30,
        **in_one_page(4_000_000),
    )
    assert len(content) < 20_000
    assert pages_of(content) == [pytest.approx(32_000_000, rel=0.01)]


@pytest.mark.parametrize("named", ["action", "action.delta"])
def test_a_table_with_a_page_that_unfolds_too_far_is_refused_before_any_of_it_is_read(tmp_path, named):
    num_rows = 9_000_000
    columns = {"index": np.zeros(num_rows, np.int32), "action": np.zeros(num_rows, np.int32), named: np.zeros(num_rows)}
    path = tmp_path / "table.parquet"
    parquet.write_table(
        pa.table(columns),
        path,
        use_dictionary=False,
        compression="zstd",
        data_page_size=1 << 30,
        **in_one_page(num_rows),
    )
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    # Arrow reads what is named action.delta along with action.
    with pytest.raises(StorageError, match=rf"'{named}' has a page that unfolds to 72\d+ bytes; at most 67108864"):
        read_columns(path, ["action"], TableExtent(key="index", value=0, num_rows=10, max_size=1))
    with pytest.raises(StorageError, match="has a page that unfolds"):
        list(read_rows(path, [named]))
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_the_values_of_a_list_are_counted_whatever_its_elements_are_called(tmp_path):
    lists = pa.array([[0.0] * 100_000] * 2, pa.list_(pa.field("anything", pa.float64())))
    parquet.write_table(
        pa.table({"index": [0, 0], "action": lists}), tmp_path / "table.parquet", use_compliant_nested_type=False
    )
    with pytest.raises(StorageError, match=r"'action.list.anything' has 200000 values in 2 rows; at most 9"):
        read_columns(tmp_path / "table.parquet", ["action"], TableExtent(key="index", value=0, num_rows=2, max_size=9))


@pytest.mark.parametrize("changes", [{"start": -1}, {"start": 10**9}, {"num_bytes": 10**9}, {"num_bytes": -5}])
def test_a_column_outside_of_its_file_is_refused(changes):
    file = io.BytesIO(bytes(100))
    with pytest.raises(ValueError, match="outside of the file"):
        largest_page(file, **{"start": 4, "num_bytes": 50, **changes})


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\x00", "no header"),
        (b"\x15\x00\x15\x02\x15\x02", "no header"),
        (b"\x15\x00\x15\x02\x15\x63\x00", "outside of its column"),
        (b"\x15\x00\x15\x01\x15\x02\x00\x00", "outside of its column"),
        (b"\x1e", "what no header holds"),
        (b"\x15" + b"\xff" * 11, "does not end"),
        (b"\x1c" * 20, "nested too deep"),
        (b"\x19\xf3\xff\xff\xff\xff\x7f\x00", "cut off"),
    ],
)
def test_what_is_no_header_is_refused(header, reason):
    content = header.ljust(8, b"\x00") if reason == "outside of its column" else header
    with pytest.raises(ValueError, match=reason):
        largest_page(io.BytesIO(bytes(4) + content), 4, len(content))


def test_of_a_size_that_is_said_with_too_many_bits_the_lower_ones_count():
    # As readers do, which would otherwise make a buffer of another size than was looked at.
    header = b"\x15\x00\x15" + b"\x88\x80\x80\x80\x10" + b"\x15\x00\x00"
    assert largest_page(io.BytesIO(header), 0, len(header)) == 4


def test_bytes_drawn_at_random_are_refused_or_read_in_no_time():
    good = written(table(), compression="zstd", data_page_size=20_000)
    metadata = parquet.ParquetFile(io.BytesIO(good)).metadata
    start, num_bytes = chunk_of(metadata.row_group(0).column(0))
    random_ = random.Random(5)
    for _ in range(500):
        content = bytearray(good)
        for _ in range(random_.randrange(1, 20)):
            content[start + random_.randrange(200)] = random_.randrange(256)
        try:
            assert largest_page(io.BytesIO(content), start, num_bytes) >= 0
        except ValueError:
            continue


def expected(values: np.ndarray) -> dict[str, float]:
    exact = np.asarray(values, np.float64)
    return {
        "min": exact.min(),
        "max": exact.max(),
        "mean": exact.mean(),
        "std": exact.std(),
        **{name: np.quantile(exact, share) for name, share in QUANTILES.items()},
    }


@pytest.mark.parametrize("shape", [(1, 4, 5, 3), (7, 4, 5, 3), (3, 1, 1, 3), (2, 33, 31, 3)])
def test_statistics_of_pictures_are_those_of_all_their_pixels(shape):
    frames = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    counts = np.stack([np.bincount(frames[..., channel].reshape(-1), minlength=256) for channel in range(3)])
    statistics = picture_statistics(counts, len(frames))
    for channel in range(3):
        for name, value in expected(frames[..., channel] / 255).items():
            assert statistics[name][channel, 0, 0] == pytest.approx(value, rel=1e-12), (channel, name)
    assert statistics["mean"].shape == (3, 1, 1)
    assert statistics["count"].tolist() == [shape[0]]


def test_statistics_of_episodes_added_one_by_one_are_those_of_all(tmp_path):
    generator = np.random.default_rng(2)
    episodes = [generator.normal(size=(length, 3)).astype(np.float32) for length in (1, 40, 7)]
    spool = ColumnSpool(tmp_path, 3)
    for episode in episodes:
        spool.append(episode)
    assert list(tmp_path.iterdir()) == []
    together = np.concatenate(episodes)
    statistics = spool.finish()
    assert statistics["count"].tolist() == [48]
    for place in range(3):
        for name, value in expected(together[:, place]).items():
            assert statistics[name][place] == pytest.approx(value, rel=1e-12)


def test_large_values_lose_no_digits_of_the_spread():
    values = 1e7 + np.arange(5, dtype=np.float64)[:, None]
    assert array_statistics(values)["std"][0] == pytest.approx(np.sqrt(2))


def video_written(path, episodes, *, lossless, fps=20):
    video = VideoWriter(path, fps=fps, lossless=lossless)
    for frames in episodes:
        video.add(frames)
    video.close()
    return path


EPISODES = [picture_series(seed, length) for seed, length in ((0, 5), (9, 1), (4, 8))]


@pytest.mark.parametrize("fps", [20, 30, 50, 67])
def test_every_episode_of_a_lossless_video_comes_back_bit_by_bit(tmp_path, fps):
    path = video_written(tmp_path / "video.mp4", EPISODES, lossless=True, fps=fps)
    first = 0
    for frames in EPISODES:
        assert np.array_equal(np.stack([*read_frames(path, fps=fps, first=first, count=len(frames))]), frames)
        first += len(frames)


def test_a_lossy_video_is_close(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES, lossless=False)
    found = np.stack([*read_frames(path, fps=20, first=6, count=8)]).astype(int)
    difference = np.abs(found - EPISODES[2])
    assert 0 < difference.mean() < 4
    wrong_episode = np.abs(found - picture_series(0, 8))
    assert difference.mean() < wrong_episode.mean() / 2


def test_frames_stand_at_whole_multiples_of_the_control_step(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES, lossless=False)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = [float((frame.pts or 0) * (frame.time_base or 0)) for frame in container.decode(stream)]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
    assert times == pytest.approx([step / 20 for step in range(14)], abs=1e-9)


def test_an_odd_size_is_filled_up_only_where_pairs_are_needed(tmp_path):
    frames = picture_series(0, 3, height=31, width=45)
    lossy = video_written(tmp_path / "lossy.mp4", [frames], lossless=False)
    lossless = video_written(tmp_path / "lossless.mp4", [frames], lossless=True)
    assert next(read_frames(lossy, fps=20, first=0, count=1)).shape == (32, 46, 3)
    assert np.array_equal(next(read_frames(lossless, fps=20, first=0, count=1)), frames[0])


def test_a_missing_frame_is_named(tmp_path):
    path = video_written(tmp_path / "video.mp4", EPISODES[:1], lossless=False)
    with pytest.raises(StorageError, match="has no frame 5; frames 3 to 6 were wanted"):
        list(read_frames(path, fps=20, first=3, count=4))


def test_what_is_no_video_is_named(tmp_path):
    (tmp_path / "video.mp4").write_bytes(b"not a video" * 50)
    with pytest.raises(StorageError, match=r"cannot read .*video\.mp4"):
        list(read_frames(tmp_path / "video.mp4", fps=20, first=0, count=1))


def test_a_codec_that_nobody_knows_is_named(tmp_path):
    path = tmp_path / "episode.mp4"
    video_written(path, [picture_series(0, 3)], lossless=False)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(StorageError, match="is of a codec that is not known here"):
        list(read_frames(path, fps=20, first=0, count=3))
