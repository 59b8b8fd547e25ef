"""Build the learning curve of a watch: success by step, with intervals, as tables and a picture."""

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from isaaclab_arena.analysis.replays.picture import png, svg
from isaaclab_arena.evaluation.watching.curve.curve_picture import curve_picture
from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.report.jobs import scored_episodes
from isaaclab_arena.results.merge import merge_results, records
from isaaclab_arena.results.stored import stored_results
from isaaclab_arena.storage.atomic import write_bytes, write_text


def points_of(run_directory: Path, step: int) -> list[Point]:
    """Return the success of each job of one checkpoint's run; jobs that measure none are left out.

    Raises:
        ArenaError: If the directory is no output of a run.
    """
    merged = stored_results(run_directory) or merge_results(run_directory)
    return [
        Point(
            job=str(line["name"]).removesuffix(f"-{step}"),
            step=step,
            successes=line["successes"],
            scored=scored_episodes(line),
            success_rate=line["success_rate"],
            success_low=line["success_low"],
            success_high=line["success_high"],
        )
        for line in records(merged.jobs)
        if line["success_rate"] is not None
    ]


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
    writer.writerow(field.name for field in fields(Point))
    writer.writerows(astuple(point) for point in points)
    return text.getvalue()


def _markdown(points: Sequence[Point]) -> str:
    lines = ["| job | step | success | 95 % interval | episodes |", "| --- | ---: | ---: | --- | ---: |"]
    for point in points:
        interval = f"{100 * point.success_low:.1f} to {100 * point.success_high:.1f} %"
        rate = f"{100 * point.success_rate:.1f} %"
        lines.append(f"| {point.job} | {point.step} | {rate} | {interval} | {point.scored} |")
    return "\n".join(lines) + "\n"
