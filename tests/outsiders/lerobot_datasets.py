"""A seeded generator of LeRobot datasets that are damaged, or made to do harm."""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import av
import h5py
import numpy as np
import pyarrow as pa
from av.video.stream import VideoStream
from pyarrow import parquet

STEERING = "\x1b[2J\x1b]0;owned\x07\u202e"
Attack = Callable[[Path, random.Random], None]

_VALUES: list[Any] = [
    None, True, -1, 0, 1, 3.5, 10**15, 10**30, 1e308, "", "x", STEERING, "../../etc/passwd", "/etc/passwd", [], {},
    [1], [[]], {"a": 1}, "{episode_chunk.__class__}", "{episode_index:0999999999d}", "{0}", "{}", "{", "nan", "a\0b",
]  # fmt: skip
_DOCUMENTS = ["meta/info.json", "meta/arena.json", "meta/modality.json"]
_LINES = ["meta/episodes.jsonl", "meta/arena_episodes.jsonl"]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container of a document with each of its keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _change(document: Any, random_: random.Random) -> Any:
    container, key = random_.choice(_places(document))
    if random_.random() < 0.2:
        del container[key]
    else:
        container[key] = random_.choice(_VALUES)
    return document


def a_field(root: Path, random_: random.Random) -> None:
    """Put something else into a field of a JSON file."""
    path = root / random_.choice(_DOCUMENTS)
    path.write_text(json.dumps(_change(json.loads(path.read_text()), random_)))


def a_size(root: Path, random_: random.Random) -> None:
    """Say that there is far more, or less, than there is."""
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    feature = random_.choice(list(info["features"].values()))
    sizes = [0, -1, 10**9, 10**18, 1e400, None, "9", [3]]
    feature["shape"] = random_.choice([[random_.choice(sizes) for _ in feature["shape"]], [], [1] * 1000, {}, 5])
    info["fps"] = random_.choice([info["fps"], info["fps"], 0, -1, 1e-300, 1e300, True, "20", None])
    info["chunks_size"] = random_.choice([info["chunks_size"], 0, -5, "a", 2**70])
    path.write_text(json.dumps(info).replace("Infinity", "1e400"))


def a_line(root: Path, random_: random.Random) -> None:
    """Put something else into a line, or tear it."""
    path = root / random_.choice(_LINES)
    lines = path.read_text().splitlines() if path.exists() else ['{"episode_index": 0}']
    number = random_.randrange(len(lines))
    if random_.random() < 0.6:
        lines[number] = json.dumps(_change(json.loads(lines[number]), random_))
    else:
        torn = lines[number][: random_.randrange(len(lines[number]))]
        lines[number] = random_.choice([torn, "[1]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "x" * 3_000_000, ""])
    data = "\n".join(lines).encode() + random_.choice([b"", b"\n", b"\n\xff\xfe\n", b"\n\0\n"])
    path.write_bytes(data)


def _a_table(root: Path, random_: random.Random) -> Path:
    return random_.choice(sorted(root.glob("**/*.parquet")))


def a_column(root: Path, random_: random.Random) -> None:
    """Give a column of a table another type, other lengths or other values."""
    path = _a_table(root, random_)
    table = parquet.read_table(path)
    length, name = table.num_rows, random_.choice(table.column_names)
    value = random_.choice(
        [
            *(None, "text", STEERING, b"\xff", float("nan"), 1e300, 1e-3, -1, 2**60, True, {"a": 1}),
            *([1.0, None], [[1.0]], [], [0.5] * 100_000),
        ]
    )
    column: Any = [value] * length
    position = table.column_names.index(name)
    if random_.random() < 0.15:
        changed = table.remove_column(position)
    else:
        changed = table.set_column(position, name, pa.array(column))
    parquet.write_table(changed, path)


def a_garbled_file(root: Path, random_: random.Random) -> None:
    """Damage some bytes of a file, or cut it."""
    path = random_.choice(sorted(each for each in root.rglob("*") if each.is_file()))
    data = bytearray(path.read_bytes())
    for _ in range(random_.randrange(1, 30)):
        data[random_.randrange(len(data))] = random_.randrange(256)
    path.write_bytes(data[: random_.choice([len(data), len(data), random_.randrange(len(data)), 0])])


def write_video(path: Path, fps: int, frames: Iterable[np.ndarray]) -> None:
    """Write a video in H.264 as most programs do; each frame has shape (height, width, 3)."""
    with av.open(str(path), mode="w", format="mp4") as container:
        stream = cast(VideoStream, container.add_stream("libx264", rate=fps))
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def statistics(root: Path, random_: random.Random) -> None:
    """Damage what says how numbers are spread."""
    for path in filter(Path.exists, (root / "meta/stats.json", root / "meta/episodes_stats.jsonl")):
        std, mean = random_.choices(["NaN", "0", "-1", "1e400", '"a"', "[]", "null"], k=2)
        path.write_text(f'{{"action": {{"std": [{std}], "mean": [{mean}]}}}}')


def circles(root: Path, random_: random.Random) -> None:
    """Make whoever walks over the dataset walk in circles."""
    (root / random_.choice(["meta", "data"]) / "again").symlink_to(root, target_is_directory=True)


ATTACKS: tuple[Attack, ...] = (
    *(a_field, a_field, a_field, a_size, a_line, a_line, a_column, a_column, a_garbled_file, statistics, circles),
)
"""Other templates of paths, and what is no file or no video, have tests of their own."""


def attacked(original: Path, target: Path, seed: int) -> Path:
    """Return a copy of a dataset to which something has been done."""
    random_ = random.Random(seed)
    root = Path(shutil.copytree(original, target))
    random_.choice(ATTACKS)(root, random_)
    return root


_ATTRIBUTES: list[Any] = [
    0, -1, 2**62, 1e308, float("nan"), float("inf"), 1e-320, "", STEERING, "[1]", "{", "null", "[" * 5000, True,
    b"\xff", np.zeros(3), np.array(["a", "b"], object), np.float16(0.5), h5py.Empty("f4"),
]  # fmt: skip


def damaged_recording(original: Path, directory: Path, seed: int) -> Path:
    """Return a copy of a recording of which an attribute or an array was changed."""
    random_ = random.Random(seed)
    recording = directory / f"{seed}" / "dataset_lift.hdf5"
    recording.parent.mkdir()
    shutil.copy(original, recording)
    with h5py.File(recording, "r+") as file:
        demo = file[f"data/demo_{random_.randrange(2)}"]
        assert isinstance(demo, h5py.Group)
        if random_.random() < 0.7:
            name = random_.choice([*demo.attrs])
            del demo.attrs[name]
            if random_.random() < 0.9:
                demo.attrs[name] = random_.choice(_ATTRIBUTES)
        else:
            name = random_.choice(["actions", "rewards", "obs/robot_joint_pos", "camera_obs/wrist_cam_rgb"])
            del demo[name]
            nan, texts = np.full((3, 8), np.nan, np.float32), np.zeros((3, 8), "S3")
            demo[name] = random_.choice([np.zeros(0), np.zeros((2, 0)), nan, texts, np.ones(())])
    return recording
