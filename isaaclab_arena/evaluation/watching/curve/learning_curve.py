"""Build the learning curve of a watch: success by step, with intervals, as tables and a picture."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from isaaclab_arena.analysis.picture import png, svg
from isaaclab_arena.config.expansion.checkpoints import STEP
from isaaclab_arena.evaluation.watching.curve.curve_picture import curve_picture
from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.results.clusters import ScoredEpisodes
from isaaclab_arena.results.merge import merge_results, records, scored_by_job
from isaaclab_arena.results.rows import of_conditions, scored_episodes
from isaaclab_arena.results.stored import stored_results
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.storage.atomic import write_bytes, write_text

_NO_COLUMN = ("episodes", "is_baseline")


def points_of(run_directory: Path, step: int) -> list[Point]:
    """Return the success of each job of one checkpoint's run; jobs that measure none are left out.

    Raises:
        ArenaError: If the directory is no output of a run.
    """
    merged = stored_results(run_directory) or merge_results(run_directory)
    scored = scored_by_job(merged)
    lines = (line for line in records(merged.jobs) if line["success_rate"] is not None)
    return [_point(line, step, scored[str(line["name"])]) for line in lines]


def _point(line: Mapping[str, Any], step: int, episodes: ScoredEpisodes) -> Point:
    is_baseline = line.get(PREFIX + STEP) is None
    name = str(line["name"])
    return Point(
        job=name if is_baseline else name.removesuffix(f"-{step}"),
        step=step,
        successes=line["successes"],
        scored=scored_episodes(line),
        success_rate=line["success_rate"],
        success_low=line["success_low"],
        success_high=line["success_high"],
        episodes=episodes,
        is_baseline=is_baseline,
    )


def write_curve(directory: Path, points: Sequence[Point]) -> Path:
    """Write ``curve.csv``, ``curve.md``, ``curve.svg`` and ``curve.png``, and return the table.

    Args:
        directory: Directory of the watch.
        points: In any order.

    Raises:
        StorageError: If a file cannot be written.
    """
    ordered = sorted(points, key=lambda point: (point.job, point.step))
    table = directory / "curve.csv"
    write_text(table, _csv(ordered), overwrite=True)
    write_text(directory / "curve.md", _markdown(ordered), overwrite=True)
    if ordered:
        picture = curve_picture(ordered)
        write_text(directory / "curve.svg", svg(picture), overwrite=True)
        write_bytes(directory / "curve.png", png(picture), overwrite=True)
    return table


def _csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [field.name for field in fields(Point) if field.name not in _NO_COLUMN]
    repeats = not all(point.episodes.are_distinct for point in points)
    writer.writerow([*columns, *(["distinct_conditions"] if repeats else [])])
    for point in points:
        more = [point.episodes.num_distinct] if repeats else []
        writer.writerow([*(getattr(point, column) for column in columns), *more])
    return text.getvalue()


def _markdown(points: Sequence[Point]) -> str:
    lines = ["| job | step | success | 95 % interval | episodes |", "| --- | ---: | ---: | --- | ---: |"]
    for point in points:
        interval = f"{100 * point.success_low:.1f} to {100 * point.success_high:.1f} %"
        rate = f"{100 * point.success_rate:.1f} %"
        scored = f"{point.scored}{of_conditions(point.episodes.num_distinct, point.scored)}"
        lines.append(f"| {point.job} | {point.step} | {rate} | {interval} | {scored} |")
    return "\n".join(lines) + "\n"
