"""LeRobot datasets laid out as LeRobot's own recording does: 0.3 writes version 2.1, 0.4 and later version 3.0.

Facts were taken from datasets that lerobot 0.3.3 and 0.4.4 wrote: `datasets` puts its features into the tables'
metadata, tasks are the index of a pandas table, single numbers lie flat, pictures are AV1 videos or PNG files within
the tables.
"""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

CAMERA = "observation.images.front"
Episode = Mapping[str, Any]
"""``state``, ``actions``, ``rewards``, ``success``, ``task`` and perhaps ``pictures`` of one episode."""


def write_dataset(root: Path, episodes: Sequence[Episode], *, version: str, dtype: str, fps: int = 20) -> Path:
    """Write a dataset of ``v2.1`` or ``v3.0`` with pictures as ``video`` or ``image``, and return its directory."""
    tasks = list(dict.fromkeys(episode["task"] for episode in episodes))
    features = _features(episodes[0], dtype)
    tables, start = [], 0
    for index, episode in enumerate(episodes):
        tables.append(_table(episode, index, start, tasks.index(episode["task"]), dtype, fps))
        start += len(episode["actions"])
    totals = {"total_episodes": len(episodes), "total_frames": start, "total_tasks": len(tasks)}
    info: dict[str, Any] = {"codebase_version": version, "robot_type": "panda", **totals, "chunks_size": 1000}
    info |= {"fps": fps, "splits": {"train": f"0:{len(episodes)}"}, "video_path": None, "features": features}
    (root / "meta").mkdir(parents=True)
    write = _write_v21 if version == "v2.1" else _write_v30
    write(root, info, episodes, tables, tasks)
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    return root


def _features(episode: Episode, dtype: str) -> dict[str, Any]:
    def feature(kind: str, *shape: int, names: object = None) -> dict[str, Any]:
        return {"dtype": kind, "shape": list(shape), "names": names}

    size = episode["state"].shape[1]
    features = {
        "observation.state": feature("float32", size, names={"motors": [f"motor_{n}" for n in range(size)]}),
        "action": feature("float32", episode["actions"].shape[1]),
        "next.reward": feature("float32", 1),
        **dict.fromkeys(("next.done", "next.success"), feature("bool", 1)),
    }
    if "pictures" in episode:
        features[CAMERA] = feature(dtype, *episode["pictures"].shape[1:], names=["height", "width", "channels"])
    numbers = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), feature("int64", 1))
    return features | {"timestamp": feature("float32", 1)} | numbers


def _table(episode: Episode, index: int, start: int, task: int, dtype: str, fps: int) -> pa.Table:
    steps = np.arange(len(episode["actions"]))
    last = steps == steps[-1]
    columns: dict[str, Any] = {
        "observation.state": _lists(episode["state"]),
        "action": _lists(episode["actions"]),
        "next.reward": pa.array(episode["rewards"], pa.float32()),
        "next.done": pa.array(last),
        "next.success": pa.array(last & episode["success"]),
    }
    if dtype == "image" and "pictures" in episode:
        files = [{"bytes": _png(each), "path": f"frame-{n:06d}.png"} for n, each in enumerate(episode["pictures"])]
        columns[CAMERA] = pa.array(files, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    columns |= {
        "timestamp": pa.array((steps / fps).astype(np.float32)),
        "frame_index": pa.array(steps),
        "episode_index": pa.array(np.full(len(steps), index)),
        "index": pa.array(steps + start),
        "task_index": pa.array(np.full(len(steps), task)),
    }
    about = {"info": {"features": {name: _of_datasets(column.type) for name, column in columns.items()}}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(about)})


def _of_datasets(kind: pa.DataType) -> dict[str, Any]:
    """Return the name of a column's type in `datasets`."""
    if pa.types.is_struct(kind):
        return {"_type": "Image"}
    if pa.types.is_fixed_size_list(kind):
        return {"feature": _of_datasets(kind.value_type), "length": kind.list_size, "_type": "Sequence"}
    return {"dtype": "float32" if pa.types.is_float32(kind) else str(kind), "_type": "Value"}


def _write_v21(
    root: Path, info: dict[str, Any], episodes: Sequence[Episode], tables: Sequence[pa.Table], tasks: Sequence[str]
) -> None:
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info |= {"total_videos": 0, "total_chunks": 1}
    (root / "data/chunk-000").mkdir(parents=True)
    lines: dict[str, list[Any]] = {"episodes": [], "tasks": [], "episodes_stats": []}
    for index, (episode, table) in enumerate(zip(episodes, tables, strict=True)):
        parquet.write_table(table, root / f"data/chunk-000/episode_{index:06d}.parquet")
        lines["episodes"].append({"episode_index": index, "tasks": [episode["task"]], "length": table.num_rows})
        lines["episodes_stats"].append({"episode_index": index, "stats": {"action": _statistics(episode["actions"])}})
        if _is_filmed(info):
            info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
            _write_video(root / f"videos/chunk-000/{CAMERA}/episode_{index:06d}.mp4", episode["pictures"], info)
    lines["tasks"] = [{"task_index": index, "task": task} for index, task in enumerate(tasks)]
    for name, each in lines.items():
        (root / f"meta/{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in each))


def _write_v30(
    root: Path, info: dict[str, Any], episodes: Sequence[Episode], tables: Sequence[pa.Table], tasks: Sequence[str]
) -> None:
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    with parquet.ParquetWriter(root / "data/chunk-000/file-000.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    pd.DataFrame({"task_index": range(len(tasks))}, index=list(tasks)).to_parquet(root / "meta/tasks.parquet")
    rows, start = [], 0
    for index, (episode, table) in enumerate(zip(episodes, tables, strict=True)):
        end = start + table.num_rows
        row = {"episode_index": index, "tasks": [episode["task"]], "length": table.num_rows}
        row |= {"data/chunk_index": 0, "data/file_index": 0, "dataset_from_index": start, "dataset_to_index": end}
        if _is_filmed(info):
            row |= {f"videos/{CAMERA}/{name}": 0 for name in ("chunk_index", "file_index")}
            row |= {f"videos/{CAMERA}/from_timestamp": start / info["fps"]}
            row |= {f"videos/{CAMERA}/to_timestamp": end / info["fps"]}
        row |= {f"stats/action/{name}": value for name, value in _statistics(episode["actions"]).items()}
        rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        start = end
    parquet.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    (root / "meta/stats.json").write_text(json.dumps({"action": _statistics(episodes[0]["actions"])}))
    if _is_filmed(info):
        info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        pictures = np.concatenate([episode["pictures"] for episode in episodes])
        _write_video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", pictures, info)


def _is_filmed(info: Mapping[str, Any]) -> bool:
    return info["features"].get(CAMERA, {}).get("dtype") == "video"


def _write_video(path: Path, pictures: np.ndarray, info: Mapping[str, Any]) -> None:
    """Write AV1 with a whole picture at every second frame, as LeRobot does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libsvtav1", rate=info["fps"], options={"g": "2", "crf": "30"})
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, info["fps"])
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _lists(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float32).reshape(-1)), values.shape[1])


def _png(picture: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _statistics(values: np.ndarray) -> dict[str, Any]:
    names = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    return {name: value.tolist() for name, value in names.items()} | {"count": [len(values)]}
