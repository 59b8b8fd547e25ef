import av
import numpy as np
import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena_gr00t.data.features import VideoWriter, read_frames, stored_size
from tests.gr00t.data.recordings import picture_series


def written(path, episodes, *, lossless, fps=20):
    video = VideoWriter(path, fps=fps, lossless=lossless)
    for frames in episodes:
        video.add(frames)
    video.close()
    return path


EPISODES = [picture_series(seed, length) for seed, length in ((0, 5), (9, 1), (4, 8))]


@pytest.mark.parametrize("fps", [20, 30, 50, 67])
def test_every_episode_of_a_lossless_video_comes_back_bit_by_bit(tmp_path, fps):
    path = written(tmp_path / "video.mp4", EPISODES, lossless=True, fps=fps)
    first = 0
    for frames in EPISODES:
        assert np.array_equal(np.stack([*read_frames(path, fps=fps, first=first, count=len(frames))]), frames)
        first += len(frames)


def test_a_lossy_video_is_close(tmp_path):
    path = written(tmp_path / "video.mp4", EPISODES, lossless=False)
    found = np.stack([*read_frames(path, fps=20, first=6, count=8)]).astype(int)
    difference = np.abs(found - EPISODES[2])
    assert 0 < difference.mean() < 4
    wrong_episode = np.abs(found - picture_series(0, 8))
    assert difference.mean() < wrong_episode.mean() / 2


def test_frames_stand_at_whole_multiples_of_the_control_step(tmp_path):
    path = written(tmp_path / "video.mp4", EPISODES, lossless=False)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = [float((frame.pts or 0) * (frame.time_base or 0)) for frame in container.decode(stream)]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
    assert times == pytest.approx([step / 20 for step in range(14)], abs=1e-9)


def test_an_odd_size_is_filled_up_only_where_pairs_are_needed(tmp_path):
    frames = picture_series(0, 3, height=31, width=45)
    lossy = written(tmp_path / "lossy.mp4", [frames], lossless=False)
    lossless = written(tmp_path / "lossless.mp4", [frames], lossless=True)
    assert next(read_frames(lossy, fps=20, first=0, count=1)).shape == (*stored_size(31, 45), 3) == (32, 46, 3)
    assert np.array_equal(next(read_frames(lossless, fps=20, first=0, count=1)), frames[0])


def test_a_missing_frame_is_named(tmp_path):
    path = written(tmp_path / "video.mp4", EPISODES[:1], lossless=False)
    with pytest.raises(StorageError, match="has no frame 5; frames 3 to 6 were wanted"):
        list(read_frames(path, fps=20, first=3, count=4))


def test_what_is_no_video_is_named(tmp_path):
    (tmp_path / "video.mp4").write_bytes(b"not a video" * 50)
    with pytest.raises(StorageError, match=r"cannot read .*video\.mp4"):
        list(read_frames(tmp_path / "video.mp4", fps=20, first=0, count=1))


def test_a_codec_that_nobody_knows_is_named(tmp_path):
    path = tmp_path / "episode.mp4"
    written(path, [picture_series(0, 3)], lossless=False)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(StorageError, match="is of a codec that is not known here"):
        list(read_frames(path, fps=20, first=0, count=3))
