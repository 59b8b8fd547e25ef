"""What happened in filmed episodes, step by step: joints, actions and rewards from their recordings, for a page."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.jobs import packed_numbers
from isaaclab_arena.results.merge import Tables
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.episodes import RecordedSteps, locate_episodes, read_attributes
from isaaclab_arena.storage.ledger import RecordedEntries, read_job_reports

MOST_BYTES = 1_200_000
"""Size of all traces of a page, as base64 [bytes]; those of further episodes are left out."""

MOST_POINTS = 400
"""Points of a curve; a longer episode keeps the least and the greatest value of each stretch."""

MOST_ENTRIES = 32  # of an array; a recording may be a stranger's
MOST_STEPS = 200_000
MOST_PICTURES = 40  # of a camera of the policy
PICTURE_SIDE = 96  # pixels
_STATES = f"{layout.STATES}/articulation/robot/joint_position"
_NOT_A_POSITION = ("vel", "target", "action")


def traces_of_films(
    runs: Mapping[Path, Tables],
    jobs: Sequence[tuple[int, str]],
    filmed: Sequence[tuple[int, int]],
    *,
    most_bytes: int = MOST_BYTES,
) -> list[dict[str, Any]]:
    """Return the traces of filmed episodes, as far as there is room, for the page's script."""
    # `jobs` has the number of its run and the name of each job on the page, `filmed` the position of a job and an
    # episode of it, the most important first.
    directories = list(runs)

    def found() -> Iterator[dict[str, Any]]:
        for job, episodes in groupby(filmed, key=lambda each: each[0]):
            run, name = jobs[job]
            indices = [index for _, index in episodes]
            for trace in traces_of_job(directories[run], runs[directories[run]], name, indices):
                yield {"job": job, **trace}

    # Episodes that have no room for all of their curves keep the main ones.
    kept, left = [], most_bytes
    for trace in found():
        main = trace | {"panels": [panel for panel in trace["panels"] if panel["main"]], "pictures": []}
        sizes = [(len(json.dumps(each)), each) for each in (trace, main)]
        fitting = next(((size, each) for size, each in sizes if size <= left), None)
        if fitting is None:
            break
        left -= fitting[0]
        kept.append(fitting[1])
    return kept


def thinned(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return at most `MOST_POINTS` of the steps, and the steps from one point to the next. Shape: (num_steps, n)."""
    if len(values) <= MOST_POINTS:
        return values, 1.0
    # The least and the greatest value of each stretch, in the order in which they come, so that no peak is lost.
    size = -(-2 * len(values) // MOST_POINTS)
    padded = np.pad(values, ((0, -len(values) % size), (0, 0)), mode="edge").reshape(-1, size, values.shape[1])
    known = np.isfinite(padded)
    least, most = (
        extreme(np.where(known, padded, fill), axis=1) for extreme, fill in ((np.argmin, np.inf), (np.argmax, -np.inf))
    )
    ends = np.stack([np.minimum(least, most), np.maximum(least, most)], axis=1)
    points = np.take_along_axis(padded, ends, axis=1).reshape(-1, values.shape[1])
    return points, size / 2


def traces_of_job(
    directory: Path, merged: Tables, name: str, episode_indices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the traces of a job's episodes; an episode without a recording has none."""
    reports, _ = read_job_reports(directory / name, name, merged.plan.run_id)
    entries = next((report.entries for report in reversed(reports) if report.entries), {})
    table, events = merged.episodes_of[name], {}
    if "events" in table:
        own = table[table["episode_index"].isin(episode_indices) & table["events"].notna()]
        events = {index: json.loads(text) for index, text in zip(own["episode_index"], own["events"], strict=True)}
    found, _ = locate_episodes(directory / name, name)
    steps = RecordedSteps()
    for index in episode_indices:
        for file in found.get(index, ())[:1]:
            # A damaged recording has no traces; `verify` names it.
            with suppress(StorageError):
                yield _trace(steps, file, index, entries, events.get(index, {}))


def _trace(
    steps: RecordedSteps,
    file: Path,
    index: int,
    entries: Mapping[str, RecordedEntries],
    events: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Return the traces of one episode."""
    control_dt = read_attributes(file, index).get("control_dt")
    dt_s = float(control_dt) if isinstance(control_dt, int | float) and 1e-6 <= control_dt <= 1e3 else None
    read = {name: steps.array(file, index, name) for name in steps.names(file, index) if _is_shown(name)}
    arrays = {name: array for name, array in read.items() if array.ndim}
    length = len(arrays[layout.ACTIONS]) if layout.ACTIONS in arrays else 0
    # Curves: joints, gripper, actions and reward come first, then whatever else the policy observed.
    panels = []
    for title, name, is_main in _chosen(arrays):
        array = arrays[name]
        if array.ndim not in (1, 2) or not 0 < len(array) == length <= MOST_STEPS or array.dtype.kind not in "biuf":
            continue
        values = array.reshape(length, -1)[:, :MOST_ENTRIES].astype(float)
        points, stride = thinned(values)
        packed, said = packed_numbers(points.T.reshape(-1)), entries.get(name, RecordedEntries())
        width = values.shape[1]
        if packed is not None:
            panels.append(
                {
                    "title": plain_text(title),
                    "unit": said.unit and plain_text(said.unit),
                    "main": is_main,
                    # Observations and actions are those before a step, rewards and states those after it.
                    "first": int(name == layout.REWARDS or name.startswith(layout.STATES)),
                    "count": len(points),
                    "stride": stride,
                    "names": [plain_text(each) for each in (said.names or ())][:width],
                    "low": None if said.low is None else [*said.low][:width],
                    "high": None if said.high is None else [*said.high][:width],
                    "width": width,
                    "values": packed,
                }
            )
    cameras = [name for name in arrays if name.startswith(f"{layout.CAMERA_OBSERVATIONS}/")]
    pictures = (_pictures(name.partition("/")[2], arrays[name]) for name in cameras if len(arrays[name]) == length)
    return {
        "episode": index,
        "dt": dt_s,
        "steps": length,
        "panels": panels,
        "pictures": [each for each in pictures if each is not None],
        "events": [[plain_text(name.replace("_", " ")), *when] for name, when in events.items()],
    }


def _is_shown(name: str) -> bool:
    """Whether an array of a recording may be part of the traces."""
    group = name.partition("/")[0]
    return name in (layout.ACTIONS, layout.REWARDS, _STATES) or group in (
        layout.OBSERVATIONS,
        layout.CAMERA_OBSERVATIONS,
    )


def _chosen(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, bool]]:
    """Yield the title and the path of each array to draw, and whether it is one of the main ones."""
    observed = [name for name in arrays if name.startswith(f"{layout.OBSERVATIONS}/")]
    joints = [name for name in observed if "joint" in name and not any(part in name for part in _NOT_A_POSITION)]
    grippers = [name for name in observed if "gripper" in name and name not in joints]
    if not joints and _STATES in arrays:
        joints = [_STATES]
    chosen = [("Joint positions", name) for name in joints[:1]] + [("Gripper", name) for name in grippers[:1]]
    chosen += [("Actions", name) for name in (layout.ACTIONS,) if name in arrays]
    chosen += [("Reward", name) for name in (layout.REWARDS,) if name in arrays]
    yield from ((title, name, True) for title, name in chosen)
    named = {name for _, name in chosen}
    yield from (
        (name.partition("/")[2].replace("_", " ").replace("/", " "), name, not joints)
        for name in observed
        if name not in named
    )


def _pictures(camera: str, array: np.ndarray) -> dict[str, Any] | None:
    """Return a camera's recorded pictures as one sheet, WebP in base64; None for what is no colour or grey picture."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        return None
    if 0 in array.shape or max(array.shape[1:3]) > 4096:
        return None
    kept = np.unique(np.linspace(0, len(array) - 1, min(len(array), MOST_PICTURES)).round().astype(int))
    height, width = array.shape[1:3]
    scale = min(1.0, PICTURE_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    sheet = Image.new("RGB", (size[0] * len(kept), size[1]))
    for place, at in enumerate(kept.tolist()):
        picture = np.array(array[at])
        if picture.ndim == 3 and picture.shape[2] == 1:
            picture = picture[:, :, 0]
        sheet.paste(Image.fromarray(picture).convert("RGB").resize(size), (place * size[0], 0))
    encoded = BytesIO()
    sheet.save(encoded, format="WEBP", quality=60)
    return {
        "camera": plain_text(camera),
        "width": size[0],
        "height": size[1],
        "steps": kept.tolist(),
        "sheet": base64.b64encode(encoded.getvalue()).decode("ascii"),
    }
